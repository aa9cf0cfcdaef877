"""Snapshots: taking one of a network, restoring one, saving one to disk."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from ntkscope.core import Params, Snapshot, UsageError
from ntkscope.core.errors import DataCorrupt, DataNotFound
from ntkscope.core.files.atomic import write_file
from ntkscope.core.files.safe_files import LARGEST_JSON, check_safetensors
from ntkscope.core.files.schema import Mismatch, mapping, number, whole
from ntkscope.core.types import fingerprint

FORMAT, EARLIER = "ntkscope snapshot 2", "ntkscope snapshot 1"  # the earlier one has no checksum
MARK = b'"ntkscope snapshot '  # in the head of either


def _any_number(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):  # NaN too: training may diverge
        raise Mismatch(where, value, "a number")


_HEADER = {"step": whole(), "epoch": number(0), "metrics": mapping(_any_number), "random": mapping()}


def take(
    model: nn.Module,
    step: int,
    epoch: float | int,
    *,
    metrics: Mapping[str, float] | None = None,
    optimizer: Mapping[str, Any] | None = None,
    random: Mapping[str, Any] | None = None,
) -> Snapshot:
    """A snapshot of `model`: copies, so that further training does not change it."""
    return Snapshot(
        step=step,
        epoch=float(epoch),
        params=_copies(dict(model.named_parameters())),
        buffers=_copies(dict(model.named_buffers())),
        metrics=dict(metrics or {}),
        optimizer=dict(optimizer or {}),
        random=dict(random or {}),
    )


def restore(model: nn.Module, snapshot: Snapshot) -> nn.Module:
    """Copy the parameters and buffers of `snapshot` into `model`, in place, and return it.

    Examples:
        >>> from ntkscope.core import Part
        >>> snapshot = ns.training.fit(model, Part(x, y), lr=0.1, steps=2).final()
        >>> restore(model, snapshot).readout.weight.equal(snapshot.params["readout.weight"])
        True
    """
    for kind, own, stored in (
        ("parameters", dict(model.named_parameters()), snapshot.params),
        ("buffers", dict(model.named_buffers()), snapshot.buffers),
    ):
        wrong = sorted(own.keys() ^ stored.keys())
        wrong += [name for name in own.keys() & stored.keys() if own[name].shape != stored[name].shape]
        if wrong:
            raise UsageError(
                f"the snapshot of step {snapshot.step} does not fit {type(model).__name__}: its {kind} differ in"
                f" {', '.join(wrong[:6])}{', …' if len(wrong) > 6 else ''}; build the network as it was when trained"
            )
        for name, tensor in own.items():
            tensor.data.copy_(stored[name])
    return model


def save_snapshot(snapshot: Snapshot, path: str | os.PathLike[str], *, store: str | None = None) -> None:
    """Write `snapshot` to a safetensors file with a checksum, atomically; `store`: which store it belongs to.

    Examples:
        >>> from ntkscope.core import Part
        >>> snapshot = ns.training.fit(model, Part(x, y), lr=0.1, steps=2).final()
        >>> save_snapshot(snapshot, folder + ".safetensors")
        >>> load_snapshot(folder + ".safetensors").params["readout.bias"].equal(snapshot.params["readout.bias"])
        True
    """
    tensors = {f"params/{k}": v for k, v in snapshot.params.items()}
    tensors |= {f"buffers/{k}": v for k, v in snapshot.buffers.items()}
    tensors |= {f"optimizer/{k}/{key}": v for k, state in snapshot.optimizer.items() for key, v in state.items()}
    tensors |= {f"random/{k}": v for k, v in snapshot.random.items() if isinstance(v, Tensor)}
    header = {
        "format": FORMAT,
        "step": json.dumps(snapshot.step),
        "epoch": json.dumps(snapshot.epoch),
        "metrics": json.dumps(dict(snapshot.metrics)),
        "random": json.dumps({k: v for k, v in snapshot.random.items() if not isinstance(v, Tensor)}),
    }
    tensors = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    header |= {} if store is None else {"store": store}
    header["checksum"] = _checksum(header, tensors)
    write_file(path, safetensors.torch.save(tensors, metadata=header), over=MARK)


def load_snapshot(path: str | os.PathLike[str], *, store: str | None = None) -> Snapshot:
    """Read what `save_snapshot` wrote; an error if its bytes differ, or if it belongs to another `store`.

    Examples:
        >>> from ntkscope.core import Part
        >>> snapshot = ns.training.fit(model, Part(x, y), lr=0.1, steps=2).final()
        >>> save_snapshot(snapshot, folder + ".safetensors")
        >>> load_snapshot(folder + ".safetensors").step
        2
    """
    if not Path(path).is_file():
        raise DataNotFound(f"no snapshot at {path}; expected a file that training wrote with store=, or save_snapshot")
    check_safetensors(Path(path), "delete it and train again")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (safetensors.SafetensorError, OSError, KeyError, RuntimeError, ValueError) as error:
        raise DataCorrupt(f"{path} is not a complete safetensors file: {error}; delete it and train again") from error
    if header.get("format") not in (FORMAT, EARLIER):
        raise DataCorrupt(f"{path} has format {header.get('format')!r}; expected {FORMAT!r}: is it a weights file?")
    if header["format"] == FORMAT and header.get("checksum") != _checksum(header, tensors):
        raise DataCorrupt(f"{path} is not what was written (its checksum differs); delete it and train again")
    if store is not None and header.get("store") != store:
        raise DataCorrupt(
            f"{path} was written for another store; expected a snapshot of this one: delete it and train again"
        )
    said = {}
    try:
        for name, check in _HEADER.items():
            said[name] = json.loads(header.get(name, "")[:LARGEST_JSON])
            check(said[name], name)
    except (ValueError, RecursionError) as error:  # a mismatch, or not JSON
        raise DataCorrupt(f"{path} is not a snapshot: {error}; delete it and train again") from error
    optimizer: dict[str, dict[str, Tensor]] = {}
    for key, value in _under("optimizer/", tensors).items():
        name, _, field = key.rpartition("/")
        optimizer.setdefault(name, {})[field] = value
    return Snapshot(
        step=said["step"],
        epoch=said["epoch"],
        params=_under("params/", tensors),
        buffers=_under("buffers/", tensors),
        metrics=said["metrics"],
        optimizer=optimizer,
        random=said["random"] | _under("random/", tensors),
    )


def _checksum(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    return fingerprint({name: value for name, value in header.items() if name != "checksum"}, dict(tensors))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> Params:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _copies(tensors: Mapping[str, Tensor]) -> Params:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
