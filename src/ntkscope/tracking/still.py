"""A network held still: measured in evaluation mode in the middle of its training, and left as it was to the last bit."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ntkscope.core import UsageError
from ntkscope.tangent.model.subject import quiet
from ntkscope.training.evaluation import modes_kept


def bare(model: Any) -> nn.Module:
    """The network inside what `torch.compile`, DataParallel or DistributedDataParallel wrapped it in."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"got a model of type {type(model).__name__}; expected a torch.nn.Module")
    while True:
        kind = type(model).__name__
        if kind in ("FullyShardedDataParallel", "FSDPModule"):
            raise UsageError(
                f"got a model wrapped in {kind}, whose parameters are spread over processes; expected one that is whole in"
                " this process: use DistributedDataParallel, or measure saved checkpoints"
            )
        if kind == "OptimizedModule" and isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod
        elif kind in ("DistributedDataParallel", "DataParallel") and isinstance(
            getattr(model, "module", None), nn.Module
        ):
            model = model.module
        else:
            return model


def writes() -> bool:
    """Whether this process is the one that records: of several that train together, the first."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return bool(torch.distributed.get_rank() == 0)
    return all(os.environ.get(name, "0") in ("", "0") for name in ("RANK", "LOCAL_RANK"))


@contextlib.contextmanager
def held_still(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Evaluation mode, no mixed precision, compiled code run as it was written; modes and random states are put back."""
    with quiet(device, model), modes_kept(model), contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # otherwise nothing was compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module in model.modules():
            module.training = False
        yield
