"""`fit`: train a network and yield frozen snapshots on the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import Part, Snapshot, UsageError, fingerprint
from ntkscope.training import resuming
from ntkscope.training.evaluation import Weights, item_weights
from ntkscope.training.losses import Loss, LossFunction, as_loss
from ntkscope.training.modes import Phase, as_mode
from ntkscope.training.moments import Moments, snapshot_steps
from ntkscope.training.optimizers import OptimizerFactory
from ntkscope.training.run import Run
from ntkscope.training.schedules import ScheduleLike, as_schedule
from ntkscope.training.settings import Augment, Settings, StepReport
from ntkscope.training.snapshots import load_snapshot
from ntkscope.training.stopping import StopWhen
from ntkscope.training.store import SnapshotStore
from ntkscope.training.trajectory import Trajectory


def fit(
    model: nn.Module,
    part: Part,
    *,
    lr: float | int,
    optimizer: str | OptimizerFactory = "sgd",
    loss: str | Loss | LossFunction = "cross_entropy",
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    momentum: float | int = 0.0,
    nesterov: bool = False,
    weight_decay: float | int = 0.0,
    optimizer_options: Mapping[str, Any] | None = None,
    schedule: ScheduleLike = None,
    mode: str | Iterable[Phase] | None = None,
    stop: StopWhen | None = None,
    seed: int = 0,
    snapshots: Moments = "ends",
    store: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float | int = 60.0,
    resume: Snapshot | str | os.PathLike[str] | None = None,
    weights: Weights = None,
    augment: Augment | None = None,
    drop_last: bool = False,
    autocast: str | None = None,
    channels_last: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    measure: bool = True,
    progress: bool = False,
    on_step: Callable[[StepReport], None] | None = None,
) -> Trajectory:
    """Train `model` in place on `part`, θ ← θ - lr · update(∇ mean ℓ), while the returned trajectory is iterated.

    `fit(...).final()` trains to the end; `for snapshot in fit(...)` sees it at the chosen steps (`snapshots`: "ends",
    "final", a stride, `Every`, `LogSpaced` or steps), each a frozen copy with loss and accuracy on `part` in
    evaluation mode (`measure=False` leaves those out). Between snapshots the model has the mode it came with.

    - `batch_size=None` is the full batch, then a step is an epoch. Items come in an order fixed by `seed` alone.
    - `schedule`: `{epoch: factor}`, a `Schedule`, or a function of the step. `mode`: what is trainable when.
    - `weights`: one an item (a tensor, or the name of an extra); the loss is then Σ wᵢ ℓᵢ instead of the mean.
    - `augment(x, generator)` changes each batch. `autocast="bfloat16"` and `channels_last` make an accelerator fast.
    - `store=DIR` keeps the snapshots as safetensors; the same call, with the network as it was before training, resumes
      where a killed one stopped, to the bit. Another network, start, data or setting (any function among them) is refused:
      by what they are, and by making the first update again. `resume` continues from a snapshot (or its file), as if never
      interrupted.

    The seed fixes the result to the bit on one machine, and the global generators are left as they were.
    Cost: a forward and a backward pass a step; memory: the model, its optimizer state and one snapshot.

    >>> part = Part(torch.tensor([[1.0]]), torch.tensor([2.0]))
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> snapshot = fit(model, part, loss="mse", lr=0.25, steps=3).final()
    >>> snapshot.params["weight"].item()  # 2 (1 - (1 - 2 lr)³)
    1.75
    """
    settings = Settings(
        optimizer=optimizer,
        lr=lr,
        loss=as_loss(loss),
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        optimizer_options=dict(optimizer_options or {}),
        schedule=as_schedule(schedule),
        mode=as_mode(mode),
        stop=stop,
        seed=seed,
        augment=augment,
        drop_last=drop_last,
        autocast=autocast,
        channels_last=channels_last,
        measure=measure,
        on_step=on_step,
    )
    _check_finite(part)
    model.to(device=device, dtype=dtype)
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    lean = _lean(part, weights).to(_device(model), dtype)
    run = Run(model, lean, settings)
    chosen = snapshot_steps(snapshots, run.total, run.per_epoch)
    begin = resume if resume is None or isinstance(resume, Snapshot) else load_snapshot(resume)
    if begin is not None:
        run.load(begin)
    folder = None
    if store is not None:
        folder = SnapshotStore(store)
        data = fingerprint(lean.x, lean.y, lean.extras)
        told = {**resuming.describe(run, data, begin), "snapshots": chosen}
        folder.begin(told, resuming.answers(run))
        latest = folder.latest()
        start = run.step
        if latest is not None:
            resuming.verify(run, folder)
            run.load(latest)
        if folder.first is None and run.step == start and not run.done:
            run.after_first = partial(_keep_first, run, folder)
    return Trajectory(run, chosen, store=folder, checkpoint_seconds=checkpoint_seconds, show=progress)


def _keep_first(run: Run, folder: SnapshotStore) -> None:
    """Keep what the first update did, to compare with when the run is resumed."""
    folder.keep_first(resuming.first_update(run))


def _lean(part: Part, weights: Weights) -> Part:
    """The part with nothing but what training needs, so that a batch copies no more."""
    scale = item_weights(part, weights)
    if scale is not None and isinstance(part.x, Tensor) and part.x.is_floating_point():
        scale = scale.to(part.x.dtype)
    return Part(part.x, part.y, {} if scale is None else {"weights": scale})


def _check_finite(part: Part) -> None:
    for what, value in (("inputs", part.x), ("targets", part.y)):
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            where = (~torch.isfinite(value)).flatten(1).any(1) if value.ndim > 1 else ~torch.isfinite(value)
            raise UsageError(
                f"the {what} hold NaN or infinity, first at item {int(where.nonzero()[0])} ({int(where.sum())} items);"
                " expected finite numbers: drop or repair these items"
            )


def _device(model: nn.Module) -> torch.device | None:
    return next((parameter.device for parameter in model.parameters()), None)
