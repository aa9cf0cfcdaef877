"""Networks trained once: weights are stored in the record's folder and read from there afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope import models, training
from ntkscope.core import Inputs, Part, Record, UsageError
from ntkscope.core.model.calling import call
from ntkscope.core.model.tree import length
from ntkscope.core.types import fingerprint
from ntkscope_papers.framework import Run
from ntkscope_papers.framework.legs import showing
from ntkscope_papers.framework.results import once


def trained(
    run: Run, key: str, build: Callable[[], nn.Module], part: Part, how: Mapping[str, Any], *, seed: int
) -> nn.Module:
    """`build()` trained on `part` with the settings `how` of `fit`, in evaluation mode; the record holds the seconds it took.

    The weights are in `networks/KEY.safetensors`; the returned network is read from there, so a resumed run
    sees the same numbers as one that was not interrupted.
    """
    path, record, device = weights_file(run.record, key), run.record, run.device
    if not path.exists():
        on_device = {} if device.type == "cuda" else {"autocast": None, "channels_last": False}
        options = {**how, **on_device, "seed": seed, "device": device, "measure": False, "progress": showing()}
        began = time.perf_counter()
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            model = build()
            final = training.fit(model, part, snapshots="final", **options).final()
        seconds = round(time.perf_counter() - began, 2)
        refuse_another(record, key, mark_of(model))
        # Before the weights: a run killed between the two trains again, and no record is left without this result.
        once(record, f"training/{key}", lambda: {"seconds": seconds, "steps": final.step, "items": len(part)})
        path.parent.mkdir(exist_ok=True)
        models.save_weights(model, path)
    model = models.load_weights(build(), path)
    keep_mark(record, key, mark_of(model))
    return model.to(device).eval()


def trained_together(
    record: Record,
    key: str,
    build: Callable[[int], nn.Module],
    parts: Sequence[Part],
    how: Mapping[str, Any],
    *,
    seeds: Sequence[int],
    device: torch.device,
) -> None:
    """Networks `build(seed)`, each trained on its own part, all in one stack; weights in `networks/KEY-PLACE.safetensors`.

    Nothing is trained where the weights of all of them are there; a killed training continues where it stopped.
    """
    paths = [weights_file(record, f"{key}/{place}") for place in range(len(seeds))]
    if all(path.exists() for path in paths):
        keep_mark(record, key, mark_of(*(models.load_weights(build(s), path) for s, path in zip(seeds, paths))))
        return
    paths[0].parent.mkdir(exist_ok=True)
    store = paths[0].with_name(f"{key.replace('/', '-')}.training")
    shared = all(part is parts[0] for part in parts)
    options = {**how, "seeds": list(seeds), "device": device, "store": store}
    began = time.perf_counter()
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        ensemble = training.fit_ensemble(build, parts[0] if shared else list(parts), **options)
    seconds = round(time.perf_counter() - began, 2)
    steps = [int(count) for count in ensemble.steps.tolist()]
    members = list(ensemble.members())
    mark = mark_of(*members)
    refuse_another(record, key, mark)
    # Before the weights, as in `trained`.
    once(record, f"training/{key}", lambda: {"seconds": seconds, "steps": steps, "networks": len(seeds)})
    for path, member in zip(paths, members):
        models.save_weights(member, path)
    keep_mark(record, key, mark)
    training.SnapshotStore(store).discard()


def train_watched(
    run: Run,
    model: nn.Module,
    part: Part,
    store: Path,
    moments: Mapping[int, str],
    measure: Callable[[int], Mapping[str, Any]],
    **how: Any,
) -> None:
    """Train `model`, and at every step of `moments` put `measure(step)` under its key, where the record lacks it.

    A killed training continues from `store`, unless what is missing lies before it; the caller discards it in the end.
    """
    missing = {step: key for step, key in moments.items() if key not in run.record.metrics}
    kept = training.SnapshotStore(store).latest() if store.exists() else None
    if kept is not None and missing and kept.step > next(iter(missing)):
        training.SnapshotStore(store).discard()

    def reached(step: int) -> None:
        if step in missing:
            once(run.record, missing[step], lambda: measure(step))

    reached(0)
    options = {**how, "device": run.device, "measure": False, "progress": showing(), "store": store}
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        training.fit(model, part, snapshots="final", on_step=lambda report: reached(report.step), **options).final()


def accuracy(model: nn.Module, part: Part) -> float:
    """The share of items whose largest output is that of their class."""
    return float((logits_of(model, part.x).argmax(1) == part.y).double().mean())


def mark_of(*networks: nn.Module) -> str:
    """By which networks are told apart: of the values of their weights and buffers."""
    return mark_of_weights(*(network.state_dict() for network in networks))


def mark_of_weights(*weights: Mapping[str, Tensor]) -> str:
    return fingerprint([{name: value.detach().cpu() for name, value in each.items()} for each in weights])[:16]


def refuse_another(record: Record, key: str, mark: str) -> None:
    """Refuse weights other than those of which the record has results; trained again on a GPU, a network may be another one."""
    known = record.metrics.get(f"training/{key}", {}).get("weights")
    if known is not None and known != mark:
        raise UsageError(
            f"network {key} has weights {mark}, expected {known}, of which {record.folder} has results; a network that is"
            f" trained again may be another one: put the first one's weights into {weights_file(record, key).parent}, or run"
            " into a new folder"
        )


def keep_mark(record: Record, key: str, mark: str) -> None:
    """Put the mark of the weights of `key`, once they are in the folder, beside what the record says of their training; if it
    has one, they must be those."""
    refuse_another(record, key, mark)
    told = record.metrics.get(f"training/{key}", {"seconds": 0.0})
    if "weights" not in told:
        record.put(**{f"training/{key}": {**told, "weights": mark}})


def weights_file(record: Record, key: str) -> Path:
    """The path of the weights of network `key` in the record's folder."""
    return Path(record.folder) / "networks" / f"{key.replace('/', '-')}.safetensors"


def logits_of(model: nn.Module, x: Inputs, *, batch: int = 512) -> Float64[Tensor, "n c"]:
    """The network's outputs in its own dtype, as double precision on the CPU; batches go to the network's device."""
    device = next(model.parameters()).device
    part = Part(x, torch.zeros(length(x)))
    found = []
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for start in range(0, len(part), batch):
            piece = part.take(torch.arange(start, min(start + batch, len(part)))).to(device)
            found.append(call(model, piece.x).double().cpu())
    return torch.cat(found)
