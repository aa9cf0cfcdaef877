"""Low-rank adapters: trained beside frozen matrices through `peft`, then added to them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from torch import nn

from ntkscope.core import UsageError

# The last part of the names that attention's matrices have in the usual encoders and decoders.
ATTENTION = (
    "query", "key", "value", "q_proj", "k_proj", "v_proj", "o_proj", "q_lin", "k_lin", "v_lin", "out_lin", "c_attn",
    "query_key_value", "Wqkv", "Wq", "Wk", "Wv",
)  # fmt: skip


def adapter_targets(model: nn.Module, head: str, targets: Iterable[str] | None = None) -> list[str]:
    """The names of the layers that get adapters: those whose names end with one of `targets`; by default attention's
    matrices, and in a network without attention every linear layer but the head.

    >>> adapter_targets(nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2)), "2")
    ['0']
    """
    wanted = ATTENTION if targets is None else tuple(targets)
    names = [name for name, module in model.named_modules() if _takes_adapters(module) and name != head]
    found = [name for name in names if any(name == end or name.endswith(f".{end}") for end in wanted)]
    if not found and targets is None:
        found = [name for name in names if isinstance(model.get_submodule(name), nn.Linear)]
    if not found:
        raise UsageError(
            f"got {'no layer' if targets is None else f'targets={wanted!r}, which no layer of'} {type(model).__name__}"
            f" {'to adapt' if targets is None else 'is called'}; expected the ends of names among:"
            f" {', '.join(names[:8]) or 'none, it has no linear layer beside its head'}"
        )
    return found


def _takes_adapters(module: nn.Module) -> bool:
    """Linear layers, convolutions, and the transposed linear layer of GPT-2 in transformers."""
    return type(module) in (nn.Linear, nn.Conv2d) or (
        type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")
    )


def add_adapters(model: nn.Module, names: list[str], *, rank: int, alpha: float) -> Any:
    """Put adapters of `rank` beside the layers `names` of `model`, in place; all other parameters are frozen.

    The adapted layer is `W + (alpha / rank) B A`, with B zero at the start. Hu et al. (2022), section 4.1. `merge_and_unload()`
    of what is returned is the network with its adapters added to its matrices.
    """
    try:
        peft = importlib.import_module("peft")
    except ModuleNotFoundError as error:
        raise UsageError(
            'low-rank adapters need the package peft, which is not installed; run: pip install "ntkscope[lora]"'
        ) from error
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=names, lora_dropout=0.0, bias="none")
    return peft.LoraModel(model, config, "default")
