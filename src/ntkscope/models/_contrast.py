"""The difference of two outputs of a model, as a model of one output."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.checked import CountOrZero, checked
from ntkscope.core.model.calling import logits


@checked
class Contrast(nn.Module):
    """`f_first(x) - f_second(x)`, (n, 1), of a model that it holds and does not copy."""

    def __init__(self, model: nn.Module, first: CountOrZero, second: CountOrZero) -> None:
        super().__init__()
        if first == second:
            raise UsageError(f"got outputs {first} and {second}; expected two different ones, counted from 0")
        self.model = model
        self.first, self.second = first, second
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        outputs = logits(self.model(*args, **kwargs))
        if outputs.ndim != 2 or outputs.shape[1] <= max(self.first, self.second):
            raise UsageError(
                f"got outputs of shape {tuple(outputs.shape)}; expected (n, c) with c > {max(self.first, self.second)} for the"
                f" difference of outputs {self.first} and {self.second}"
            )
        return outputs[:, self.first : self.first + 1] - outputs[:, self.second : self.second + 1]

    def extra_repr(self) -> str:
        return f"output {self.first} minus output {self.second}"


def contrast(model: nn.Module, first: CountOrZero = 0, second: CountOrZero = 1) -> Contrast:
    """`f_first - f_second` of a model: the log-odds of two classes, since their softmax is its logistic function.

    The parameters are those of `model`, shared. Kernels of it are what a logistic regression of two classes needs: Qadeer et
    al., in the PNNL report (2023), equation 10 and remark 3.1; the conjugate kernel there is that of one output, without the
    factor 2 of the two copies of its features.

    Examples:
        >>> import torch
        >>> model = nn.Linear(2, 2, bias=False)
        >>> _ = model.weight.data.copy_(torch.eye(2))
        >>> contrast(model)(torch.tensor([[5.0, 2.0]])).tolist()
        [[3.0]]
    """
    return Contrast(model, first, second)
