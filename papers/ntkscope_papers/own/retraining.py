"""Networks trained again on subsets of the training points, many in one call; only their margins are kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ntkscope.core import Part, Record
from ntkscope.measures.log_odds import correct_class_log_odds
from ntkscope.training import fit_ensemble
from ntkscope_papers.framework import Run
from ntkscope_papers.framework.results import once
from ntkscope_papers.own.attribution_tasks import Task
from ntkscope_papers.shared.paired_training import products

FIRST = 1_000  # seeds of retrained networks begin here: none is a checkpoint's


def retrained_margins(
    run: Run, task: Task, name: str, masks: Bool[np.ndarray, "s n"], repeats: int, together: int, *, same: bool = False
) -> Float64[np.ndarray, "s r m"]:
    """The margins of the test items of `repeats` networks trained on each subset; all subsets have one size.

    With `same` repeat r has the seed of checkpoint r, and the batches of a training with all points, where the losses of those
    outside the subset count nothing; else every network has a seed of its own, and batches of the subset alone. Networks are
    trained `together` at a time; each such call is kept in the record when it ends, and not repeated.
    """
    runs = [(s, r) for s in range(len(masks)) for r in range(repeats)]
    chunks = [runs[start : start + together] for start in range(0, len(runs), together)]
    found = np.empty((len(masks), repeats, len(task.test)))
    record = run.record
    with record.stage(f"{task.name} {name}", total=len(chunks), progress="auto" if run.progress else False) as stage:
        for at, chunk in enumerate(chunks):
            array, key = f"{task.name}-{name}-{at}", f"{task.name}/{name}/{at}"
            train = partial(_train, record, array, task, masks, chunk, run.seed if same else None)
            once(record, key, train)
            if array not in record.arrays:  # it was lost
                record.put(**{key: train()})
            for (s, r), margins in zip(chunk, record.arrays[array]):
                found[s, r] = margins
            stage.advance(max(0, at + 1 - stage.done))
    return found


def _train(
    record: Record,
    array: str,
    task: Task,
    masks: Bool[np.ndarray, "s n"],
    chunk: Sequence[tuple[int, int]],
    first: int | None,
) -> dict[str, Any]:
    """`first`: the seed of the first checkpoint, where the networks have the seeds and batches of checkpoints."""
    device, how = task.train.y.device, dict(task.how)
    parts: dict[int, Part] = {}
    for s in dict.fromkeys(s for s, _ in chunk):
        parts[s] = without(task.train, ~masks[s], same=first is not None)
    seeds = [FIRST + s * 1_000 + r if first is None else first + r for s, r in chunk]
    if first is not None:
        how["weights"] = "kept"
    with products(task.recipe.tf32):
        ensemble = fit_ensemble(task.build, [parts[s] for s, _ in chunk], seeds=seeds, device=device, **how)
    y = task.test.y.cpu().numpy()
    margins, right = [], []
    for rows in torch.arange(len(task.test), device=device).split(128):
        outputs = ensemble(task.test.take(rows).x).double().cpu().numpy()  # (k, b, c)
        labels = y[rows.cpu().numpy()]
        flat = correct_class_log_odds(outputs.reshape(-1, outputs.shape[2]), np.tile(labels, len(outputs)))
        margins.append(flat.reshape(len(outputs), -1))
        right.append((outputs.argmax(2) == labels).mean(1))
    record.array(array, np.concatenate(margins, 1).astype(np.float32))
    accuracy = float(np.average(np.stack(right, 1), axis=1, weights=[len(m[0]) for m in margins]).mean())
    return {"networks": len(chunk), "accuracy": accuracy, "tf32": task.recipe.tf32 and device.type == "cuda"}


def without(part: Part, gone: Bool[np.ndarray, " n"], *, same: bool) -> Part:
    """A part without some points: the others alone, or with `same` all of them, weighted 0 where `gone` by its extra "kept"."""
    kept = torch.from_numpy(~gone).to(part.y.device)
    if not same:
        return part.take(torch.nonzero(kept).flatten())
    return Part(part.x, part.y, {"kept": kept.float() / len(part)})


def reliability(margins: Float64[np.ndarray, "s r m"]) -> float:
    """The highest mean rank correlation that noise of training leaves to any prediction, from two halves of the repeats.

    `√(2 ρ / (1 + ρ))` with ρ the mean correlation of the halves over subsets (Spearman-Brown, then the root: a prediction
    has no noise of its own). NaN with a single repeat.
    """
    half = margins.shape[1] // 2
    if not half:
        return float("nan")
    left, right = (part - part.mean(0) for part in (margins[:, :half].mean(1), margins[:, half : 2 * half].mean(1)))
    sizes = np.linalg.norm(left, axis=0) * np.linalg.norm(right, axis=0)
    rho = float(np.clip(((left * right).sum(0) / np.where(sizes > 0, sizes, 1)).mean(), 0, 1))
    return float(np.sqrt(2 * rho / (1 + rho)))


def nearest_groups(task: Task, items: int, size: int) -> Int64[np.ndarray, "t k"]:
    """For each of the first test items the `size` most similar training points of its class, by the cosine of the inputs."""
    cosine = input_cosine(task)[:items]
    same = (task.train.y[None] == task.test.y[:items, None]).cpu().numpy()
    return np.argsort(np.where(same, -cosine, np.inf), axis=1, kind="stable")[:, :size].astype(np.int64)


def input_cosine(task: Task) -> Float64[np.ndarray, "m n"]:
    """The cosine between the inputs of test items and training points."""
    sides = []
    for part in (task.test, task.train):
        assert isinstance(part.x, Tensor)
        flat = part.x.flatten(1).double()
        sides.append(flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-12))
    return (sides[0] @ sides[1].T).cpu().numpy()
