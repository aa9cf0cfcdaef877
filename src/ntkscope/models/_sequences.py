"""Causal language models as models of one output: the log-likelihood of a continuation, given what precedes it."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ntkscope.core import UsageError
from ntkscope.core.arguments import instance
from ntkscope.core.checked import Count, checked
from ntkscope.core.model.calling import logits


@checked
class SequenceLogLikelihood(nn.Module):
    """`log p(continuation | what precedes it)` of a language model that it holds and does not copy."""

    def __init__(self, model: nn.Module, mean: bool = False, tokens: Count | None = None) -> None:
        super().__init__()
        if mean and tokens is not None:
            raise UsageError(
                f"got mean=True with tokens={tokens}; expected one: the mean over tokens, or each by itself"
            )
        self.model, self.mean, self.tokens = model, mean, tokens
        self.training = model.training
        _check_causal(model)

    def forward(
        self, input_ids: Int[Tensor, "n s"], attention_mask: Any = None, continuation: Any = None
    ) -> Float[Tensor, "n c"]:
        instance(input_ids, "token ids", Tensor, "a tensor (n, s)")
        if input_ids.ndim != 2 or input_ids.is_floating_point() or input_ids.shape[1] < 2:
            raise UsageError(
                f"got token ids of shape {tuple(input_ids.shape)} and {input_ids.dtype}; expected whole numbers (n, s) with"
                " s ≥ 2: a token to be predicted and one before it (put a start token before texts)"
            )
        ids, real = input_ids, _mask(attention_mask, input_ids, "attention_mask")
        scored = _mask(continuation, ids, "continuation") & real
        if attention_mask is not None:
            # Real tokens first: positions count from the first of them, and no token sees padding, whatever the model.
            order = real.to(torch.int8).argsort(dim=1, descending=True, stable=True)
            ids, real, scored = (tensor.gather(1, order) for tensor in (ids, real, scored))
            ids = ids.masked_fill(~real, 0)
        if continuation is not None:
            _refuse(
                scored[:, 0],
                "the first token is in the continuation, and nothing precedes it",
                "a start token before it",
            )
        counts = scored[:, 1:].sum(1, keepdim=True)
        _refuse(counts[:, 0] == 0, "no token of the continuation is left", "at least one token to score")
        values = logits(self.model(ids))
        _check_shape(values, ids.shape)
        values = values[:, :-1].to(torch.promote_types(values.dtype, torch.float32))
        each = values.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        each = torch.where(scored[:, 1:], each, torch.zeros_like(each))
        if self.tokens is not None:
            _refuse(
                counts[:, 0] > self.tokens, f"a continuation is longer than tokens={self.tokens}", "a larger tokens="
            )
            order = scored[:, 1:].to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, : self.tokens]
            return functional.pad(each.gather(1, order), (0, self.tokens - order.shape[1]))
        total = each.sum(1, keepdim=True)
        return total / counts if self.mean else total

    def extra_repr(self) -> str:
        return "mean over tokens" if self.mean else "" if self.tokens is None else f"each of {self.tokens} tokens"


def sequence_log_likelihood(
    model: nn.Module, *, mean: bool = False, tokens: Count | None = None
) -> SequenceLogLikelihood:
    """`f(x) = Σ_t log p(x_t | x_<t)` over the tokens of a continuation, (n, 1), of a causal language model.

    `model`: a Hugging Face model for causal language modelling, or any module from token ids (n, s) to logits
    (n, s, vocabulary). Its parameters are shared, its mode is not touched. Inputs, by name or in this order
    (`sequence_inputs` makes them): `input_ids`; `attention_mask`, 0 for padding on either side, by default none;
    `continuation`, 1 for the tokens to score, by default all but the first. Padding is moved behind the text, which a causal
    model does not see: masks and positions that the model makes of it do not matter.

    `mean=True`: divided by the number of tokens, whose negative is the usual loss. `tokens=c`: (n, c), each token of a
    continuation of up to c tokens by itself; 0, without a gradient, where it is shorter.

    Examples:
        >>> class Alike(nn.Module):  # every one of four tokens is as likely
        ...     def forward(self, ids: Tensor) -> Tensor:
        ...         return torch.zeros(*ids.shape, 4)
        >>> f = sequence_log_likelihood(Alike())
        >>> ids, text, continuation = [[3, 1, 2, 0]], [[1, 1, 1, 0]], [[0, 0, 1, 0]]
        >>> round(f(*map(torch.tensor, (ids, text, continuation))).item(), 4)  # -log 4
        -1.3863
    """
    return SequenceLogLikelihood(model, mean, tokens)


def _mask(mask: Any, ids: Tensor, name: str) -> Tensor:
    """A mask as booleans; without one, every token counts (as a continuation, the first cannot be scored)."""
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise UsageError(f"got {name} {found}; expected a tensor of shape {tuple(ids.shape)}, that of the token ids")
    _refuse(
        ((mask != 0) & (mask != 1)).any(1), f"{name} holds other numbers than 0 and 1", "a mask, not labels or weights"
    )
    return mask.bool()


def _refuse(rows: Tensor, what: str, expected: str) -> None:
    """Raise `UsageError` if any row is marked; inside `torch.func` values are not known, and what was probed before holds."""
    if rows.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(rows) or not bool(rows.any()):
        return
    raise UsageError(f"{what}, first in row {int(rows.nonzero()[0])} ({int(rows.sum())} rows); expected {expected}")


def _check_causal(model: nn.Module) -> None:
    """A model that sees later tokens predicts what it has read. Probed once, on two tokens and in evaluation mode."""
    first = next(model.parameters(), torch.empty(0))
    if first.is_meta:
        return
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            values = logits(model(torch.tensor([[0, 0], [0, 1]], device=first.device)))
    except (RuntimeError, TypeError, LookupError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{type(model).__name__} could not be run on token ids of shape (2, 2): {error}; expected a causal language model,"
            " from token ids (n, s) to logits (n, s, vocabulary)"
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
    _check_shape(values, (2, 2))
    change = (values[0, 0] - values[1, 0]).abs().max()
    if change > torch.finfo(values.dtype).eps ** 0.5 * values.abs().max():
        raise UsageError(
            f"the logits of {type(model).__name__} at a token change with the token after it; expected a causal language model,"
            " which sees none but those before: for encoders, use ns.models.text"
        )


def _check_shape(values: Tensor, expected: tuple[int, ...]) -> None:
    if values.ndim != 3 or values.shape[:2] != expected or not values.is_floating_point():
        raise UsageError(
            f"the language model returned {tuple(values.shape)}, {values.dtype}, for token ids {tuple(expected)}; expected"
            f" {(*expected, 'vocabulary')}, the logits of the next token at every position"
        )
