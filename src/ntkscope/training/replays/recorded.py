"""The training that `fit` recorded in a store, as a loop: its batches, augmentation, schedule, phases and random stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ntkscope.core import Inputs, Part, Snapshot, UsageError
from ntkscope.core.identity import identity, network_identity
from ntkscope.core.model.copies import own_copy
from ntkscope.core.random import kept_randomness
from ntkscope.core.types import fingerprint
from ntkscope.training import resuming
from ntkscope.training.optimizers import make_optimizer
from ntkscope.training.replays.loop import Loop
from ntkscope.training.run import Run
from ntkscope.training.schedules import Schedule
from ntkscope.training.snapshots import restore
from ntkscope.training.store import SnapshotStore
from ntkscope.training.trajectory import Trajectory


@dataclass(frozen=True)
class Paced(Schedule):
    """A schedule at another pace."""

    schedule: Schedule
    pace: float

    def factor(self, step: int, per_epoch: int, total: int) -> float:
        return self.pace * self.schedule.factor(step, per_epoch, total)


class RecordedFit(Loop):
    """What `fit(…, store=DIR)` did; that call has compared network, data, settings and first update with what it recorded."""

    def __init__(self, trajectory: Trajectory) -> None:
        store, settings = trajectory.store, trajectory.run.settings
        if store is None:
            raise UsageError(
                "this training was not recorded; expected fit(…, store=DIR), which keeps its start and end"
            )
        end = store.final_step
        if end is None:
            raise UsageError(f"the training in {store.folder} has not ended; call .final() on its trajectory first")
        missing = [step for step in (0, end) if step not in store]
        if missing:
            raise UsageError(
                f"{store.folder} has no snapshot of step {missing[0]}; expected snapshots of start and end"
            )
        if settings.autocast is not None:
            raise UsageError("got a training with autocast=, whose rounding has no derivative; train without it")
        if any(phase.reinit or phase.reset_optimizer for phase in settings.phases):
            raise UsageError(
                "got a training that redraws parameters or moments on its way; expected a mode without that"
            )
        self.final = store[end].to(trajectory.run.device).params
        self._settings = replace(settings, stop=None, on_step=None, measure=False)
        self._part = trajectory.run.part.to(trajectory.run.device)
        model = own_copy(trajectory.run.model, "a replay must not change the model")
        restore(model, store[0])
        _verify(trajectory, store, model)
        optimizer = make_optimizer(settings.optimizer, list(model.parameters()), **settings.update_rule())
        super().__init__(model, optimizer, items=len(self._part), steps=end)
        self.start = store[0].to(self.device)
        self._run = Run(self.model, self._part, self._settings)

    def batch(self, step: int) -> tuple[Tensor, Inputs, Tensor]:
        rows, part = self._run.batch(step)
        return rows.to(self.device), part.x, part.y

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._settings.loss_rule.each(outputs, targets)

    def rate(self, step: int) -> float:
        return self._settings.rate.factor(step, self._run.per_epoch, self._run.total)

    @property
    def data(self) -> str:
        """What tells its training points from others."""
        return fingerprint(self._part.x, self._part.y)

    def told(self) -> str:
        return identity(
            self._settings.describe(),
            network_identity(self.model),
            self.steps,
            self._part.x,
            self._part.y,
            self._part.extras,
        )

    def learning(self, step: int) -> set[str]:
        return self._run.learning(step)

    def weighed(self, each: Tensor, weights: Tensor, step: int) -> Tensor:
        own = self._part.extras.get("weights")
        if own is None or each.shape != weights.shape:
            return super().weighed(each, weights, step)
        rows = self.batch(step)[0]
        return (own[rows] * weights * each).sum() * (self.items / len(each))

    @contextmanager
    def randomness(self, state: Snapshot) -> Iterator[None]:
        on_gpu = self.device.type == "cuda"
        with kept_randomness([self.device] if on_gpu else []):
            torch.set_rng_state(state.random["cpu"])
            if on_gpu:
                torch.cuda.set_rng_state(state.random["cuda"], self.device)
            yield

    def path(self, state: Snapshot, until: int, weights: Tensor) -> Iterator[Snapshot]:
        part, own = self._part, self._part.extras.get("weights")
        if own is not None or not bool((weights == 1).all()):
            own = torch.full_like(weights, 1 / self.items) if own is None else own
            part = Part(part.x, part.y, {"weights": own * weights})
        run = Run(self.model, part, replace(self._settings, schedule=Paced(self._settings.rate, self.pace)))
        run.load(state)
        while run.step < until:
            run.advance(run.step + 1)
            yield run.snapshot(measure=False)


def _verify(trajectory: Trajectory, store: SnapshotStore, model: nn.Module) -> None:
    """Network, data and settings are still those of the store, and the first update is the one it kept."""
    part = trajectory.run.part
    for module, mode in zip(model.modules(), trajectory.run.modes, strict=True):
        module.training = mode  # as it was when the training began
    run = Run(model, part, replace(trajectory.run.settings, on_step=None, stop=None))
    told = resuming.describe(trajectory.run, fingerprint(part.x, part.y, part.extras), None)
    told |= network_identity(model)
    store.begin({**told, "snapshots": trajectory.steps}, resuming.answers(run))
    if store.first is not None and store.final_step:
        run.load(store[0])
        run.rehearse()
        resuming.compare_first(store, store.first, resuming.first_update(run))
        restore(model, store[0])
