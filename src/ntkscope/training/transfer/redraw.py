"""Fresh weights for a whole network: what a random-feature baseline has in place of the trained ones."""

from __future__ import annotations

import torch
from torch import nn

from ntkscope.core import UsageError, derive_seed
from ntkscope.training.modes import cuda_devices

CUT = 2.0  # standard deviations beyond which a draw is repeated


def redraw_network(model: nn.Module, seed: int, std: float | None = 0.02) -> nn.Module:
    """Redraw every parameter of `model` in place and return it.

    Matrices and larger tensors are drawn from a normal distribution of standard deviation `std` cut off at two standard
    deviations; scales of normalisation layers become 1, biases 0, the row of a padding token 0. With `std=None` each module's
    own `reset_parameters` draws instead. Running statistics are reset. Radford et al. (2018), section 4.1, for `std=0.02`.

    >>> redraw_network(nn.Sequential(nn.Linear(1, 1), nn.LayerNorm(1)), 0)[1].weight.item()
    1.0
    """
    if std is not None and not std > 0:
        raise UsageError(f"got std={std}; expected a positive standard deviation, or None for each module's own draws")
    with torch.random.fork_rng(devices=cuda_devices(model)), torch.no_grad():
        torch.manual_seed(derive_seed(seed, "redraw"))
        for name, module in model.named_modules():
            if std is None:
                _by_itself(name, module)
            else:
                _normal(name, module, std)
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.reset_running_stats()
    return model


def _normal(name: str, module: nn.Module, std: float) -> None:
    for own, value in module.named_parameters(recurse=False):
        if value.ndim >= 2:
            nn.init.trunc_normal_(value, std=std, a=-CUT * std, b=CUT * std)
        elif own.endswith("bias"):
            value.zero_()
        elif own.endswith("weight"):
            value.fill_(1.0)
        else:
            raise UsageError(
                f"got the parameter {f'{name}.{own}'.lstrip('.')!r} of shape {tuple(value.shape)}, neither a matrix, a bias"
                " nor a scale; give std=None, which uses the modules' own reset_parameters"
            )
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        module.weight[module.padding_idx].zero_()


def _by_itself(name: str, module: nn.Module) -> None:
    if not any(True for _ in module.parameters(recurse=False)):
        return
    reset = getattr(module, "reset_parameters", None)
    if reset is None:
        raise UsageError(
            f"{name or 'the model'} ({type(module).__name__}) has parameters and no reset_parameters() to redraw them with;"
            " give std=, such as 0.02"
        )
    reset()
