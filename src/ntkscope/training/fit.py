"""`fit`: train a network and yield frozen snapshots as it goes."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import Part, Snapshot, UsageError
from ntkscope.core.arguments import instance
from ntkscope.core.types import fingerprint
from ntkscope.training import resuming
from ntkscope.training.evaluation import Weights, item_weights
from ntkscope.training.moments import snapshot_steps
from ntkscope.training.run import Run
from ntkscope.training.settings import Settings, as_settings
from ntkscope.training.snapshots import load_snapshot
from ntkscope.training.store import SnapshotStore
from ntkscope.training.trajectory import Trajectory


def fit(
    model: nn.Module,
    part: Part,
    settings: Settings | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float | int = 60.0,
    resume: Snapshot | str | os.PathLike[str] | None = None,
    progress: bool = False,
    **options: Any,
) -> Trajectory:
    """Train `model` in place on `part`, θ ← θ - lr · update(∇ mean ℓ), while the returned trajectory is iterated.

    Options are given as `Settings(lr=..., steps=...)`, as its fields by keyword, or both: keywords replace fields.

    `fit(...).final()` trains to the end; `for snapshot in fit(...)` sees it at the chosen steps (`snapshots`: "ends",
    "final", a stride, `Every`, `LogSpaced` or steps), each a frozen copy with loss and accuracy on `part` in
    evaluation mode (`measure=False` leaves those out). Between snapshots the model has its original mode.

    - `batch_size=None` is the full batch; then a step is an epoch. Items come in an order fixed by `seed` alone.
    - `schedule`: `{epoch: factor}`, a `Schedule`, or a function of the step. `mode`: what is trainable when.
    - `weights`: one per item (a tensor, or the name of an extra); the loss is then Σ wᵢ ℓᵢ instead of the mean.
    - `augment(x, generator)` changes each batch. `autocast="bfloat16"` and `channels_last` make an accelerator fast.
    - `store=DIR` keeps the snapshots as safetensors; the same call, with the network as it was before training, resumes
      where a killed one stopped, bit for bit. Another network, start, data or setting (any function among them) is refused:
      by what they are, and by repeating the first update. `resume` continues from a snapshot (or its file), as if never
      interrupted.

    The seed fixes the result to the bit on one machine, and the global generators are left as they were.
    Cost: a forward and a backward pass per step; memory: the model, its optimizer state and one snapshot.

    Examples:
        >>> part = Part(torch.tensor([[1.0]]), torch.tensor([2.0]))
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> snapshot = fit(model, part, loss="mse", lr=0.25, steps=3).final()
        >>> snapshot.params["weight"].item()  # 2 (1 - (1 - 2 lr)³)
        1.75
    """
    settings = as_settings(settings, options)
    instance(model, "a model", nn.Module, "a torch.nn.Module")
    instance(part, "data", Part, "a Part(x, y)")
    _check_finite(part)
    model.to(device=settings.device, dtype=settings.dtype)
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    where = next((parameter.device for parameter in model.parameters()), None)
    lean = _lean(part, settings.weights).to(where, settings.dtype)
    run = Run(model, lean, settings)
    chosen = snapshot_steps("ends" if settings.snapshots is None else settings.snapshots, run.total, run.per_epoch)
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
            run.after_first = lambda: folder.keep_first(resuming.first_update(run))
    return Trajectory(run, chosen, store=folder, checkpoint_seconds=checkpoint_seconds, show=progress)


def _lean(part: Part, weights: Weights) -> Part:
    """The part with nothing but what training needs, so that a batch copies no more."""
    scale = item_weights(part, weights)
    if scale is not None and isinstance(part.x, Tensor) and part.x.is_floating_point():
        scale = scale.to(part.x.dtype)
    y = part.y.long() if part.y.dtype == torch.bool and part.y.ndim == 1 else part.y  # False is class 0
    return Part(part.x, y, {} if scale is None else {"weights": scale})


def _check_finite(part: Part) -> None:
    for what, value in (("inputs", part.x), ("targets", part.y)):
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            where = (~torch.isfinite(value)).flatten(1).any(1) if value.ndim > 1 else ~torch.isfinite(value)
            raise UsageError(
                f"the {what} hold NaN or infinity, first at item {int(where.nonzero()[0])} ({int(where.sum())} items);"
                " expected finite numbers: drop or repair these items"
            )
