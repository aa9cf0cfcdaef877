"""What became of each member of an ensemble: which ended, when and why, and the weights it ends with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from ntkscope.core import Params
from ntkscope.training.stopping import StopWhen

KEPT = {"params": "kept/params/", "buffers": "kept/buffers/"}
COUNTED = ("done", "diverged", "steps", "best", "since", "losses")


class Watch:
    """The members that ended, and copies of the weights that members end with; small tensors, on the CPU.

    A member that ended is still computed along with the others, since they are one stack; its weights are those kept here.
    """

    def __init__(
        self, members: int, patience: int | None, ends: bool, restore: bool = True, min_delta: float = 0.0
    ) -> None:
        self.patience, self._ends = patience, ends  # whether anything but the last step can end a member
        self.restore, self.min_delta = restore, min_delta
        self.done = torch.zeros(members, dtype=torch.bool)
        self.diverged = torch.zeros(members, dtype=torch.bool)
        self.steps = torch.zeros(members, dtype=torch.int64)  # updates that led to the weights kept
        self.best = torch.full((members,), math.inf, dtype=torch.float64)  # validation losses of the weights kept
        self.since = torch.zeros(members, dtype=torch.int64)  # epochs since then
        self.losses = torch.full((members,), math.nan, dtype=torch.float64)  # training losses of those that ended
        self.params: Params = {}
        self.buffers: Params = {}

    def keep(self, which: Bool[Tensor, " k"], params: Params, buffers: Params, step: int) -> None:
        """Copy the weights of some members."""
        if not bool(which.any()):
            return
        for kept, now in ((self.params, params), (self.buffers, buffers)):
            for name, tensor in now.items():
                if name not in kept:
                    kept[name] = tensor.detach().clone()
                else:
                    mask = which.to(tensor.device)
                    kept[name][mask] = tensor.detach()[mask]
        self.steps[which] = step

    def end(self, which: Bool[Tensor, " k"], losses: Tensor) -> None:
        """Some members ended, with these training losses."""
        self.losses[which] = losses.detach().double().cpu()[which]
        self.done |= which

    def note_validation(
        self, found: Float64[Tensor, " k"], params: Params, buffers: Params, step: int, losses: Tensor
    ) -> None:
        """Keep the weights of members that are better than ever; end those that were not for `patience` epochs."""
        better = (found < self.best - self.min_delta) & ~self.done
        if self.restore:
            self.keep(better, params, buffers, step)
        self.best[better] = found[better]
        self.since = torch.where(better, 0, self.since + 1)
        if self.patience is not None:
            ended = (self.since >= self.patience) & ~self.done
            if not self.restore:
                self.keep(ended, params, buffers, step)
            self.end(ended, losses)

    def without_best(self, last: bool) -> Bool[Tensor, " k"]:
        """The members that ended (all of them at the `last` step) and whose validation loss was finite after no epoch."""
        return (self.done | last) & ~torch.isfinite(self.best) & ~self.diverged

    def validation_losses(self) -> Float64[Tensor, " k"]:
        """Of the weights that members end with; NaN where there was no epoch to choose."""
        return torch.where(torch.isfinite(self.best), self.best, math.nan)

    def reached(self, stop: StopWhen, metrics: Mapping[str, Float64[Tensor, " k"]]) -> Bool[Tensor, " k"]:
        """The members that are good enough and have not ended."""
        each = [{name: float(values[i]) for name, values in metrics.items()} for i in range(len(self.done))]
        return torch.tensor([stop.reached(one) for one in each]) & ~self.done

    def mark_diverged(self, which: Bool[Tensor, " k"], params: Params, buffers: Params, step: int) -> None:
        """End members whose loss is not finite; their weights become NaN."""
        self.keep(which, params, buffers, step)
        for kept in (self.params, self.buffers):
            for tensor in kept.values():
                if tensor.is_floating_point():
                    tensor[which.to(tensor.device)] = math.nan
        self.diverged |= which
        self.done |= which
        self.best[which] = math.nan

    def settled(self, final: bool) -> Bool[Tensor, " k"]:
        """The members whose weights are those kept here."""
        return self.done | (torch.isfinite(self.best) & final & self.restore)

    def shown(self, params: Params, buffers: Params, final: bool) -> tuple[Params, Params]:
        """Copies of the members' weights: those kept of members that ended and, at the end, of members that were validated."""
        which = self.settled(final)
        chosen = []
        for kept, now in ((self.params, params), (self.buffers, buffers)):
            copies = {name: tensor.detach().clone() for name, tensor in now.items()}
            if bool(which.any()):
                for name, tensor in copies.items():
                    mask = which.to(tensor.device)
                    tensor[mask] = kept[name][mask]
            chosen.append(copies)
        return chosen[0], chosen[1]

    def state(self, params: Params, buffers: Params) -> dict[str, Tensor]:
        """Everything, as tensors with a first axis of members; `params` and `buffers` stand for weights not kept yet."""
        told = {name: getattr(self, name).clone() for name in COUNTED}
        if not self._ends:
            return told
        for (_, prefix), kept, now in zip(KEPT.items(), (self.params, self.buffers), (params, buffers)):
            told |= {prefix + name: kept.get(name, tensor).detach().clone() for name, tensor in now.items()}
        return told

    def load(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Restore what `state` returned."""
        for name in COUNTED:
            setattr(self, name, state[name].clone().cpu())
        self.params, self.buffers = (
            {
                key.removeprefix(prefix): value.clone().to(device)
                for key, value in state.items()
                if key.startswith(prefix)
            }
            for prefix in KEPT.values()
        )
