"""Resuming an X-ray: whether network, data and settings are those it was started with, and what of its files is intact."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import Record
from ntkscope.core.errors import RecordError, StoreError
from ntkscope.core.files.plain import to_plain
from ntkscope.core.files.schema import Mismatch, anything, fields, list_of, mapping, number, optional, text, whole
from ntkscope.core.identity import Answers, disagreement, drawn, identity, network_identity, tolerance
from ntkscope.xray.context import Context
from ntkscope.xray.items import Items
from ntkscope.xray.network import outputs
from ntkscope.xray.registry import Section

FEW = 6  # items whose kernel is computed again
REMEDY = "use what it was started with, or choose another folder"


def described(model: nn.Module) -> dict[str, str]:
    """The structure and the code of a network, in addition to its weights."""
    found = network_identity(model)
    return {"structure": found["structure of the model"], "code": found["code of the model"]}


def answers(model: nn.Module, items: Items, device: torch.device | None) -> Answers:
    """The network's outputs for a few items."""
    own = next((p for p in model.parameters() if p.is_floating_point()), None)
    where = device or (torch.device("cpu") if own is None else own.device)

    def ask(few: list[int]) -> Tensor:
        found = outputs(model, items.take(torch.tensor(few)).x, device)
        return found if own is None else found.to(own.dtype)

    return Answers.of(ask, len(items), where)


def recipe_checksum(record: Record, plan: Mapping[str, Any]) -> str:
    """The checksum of a record's configuration and seeds, as its file holds them, and of a plan."""
    document = record.to_json()
    return identity(document["config"], document["seeds"], to_plain(plan, "plan"))


def check_recipe(record: Record) -> None:
    """Raise an error if the configuration, the seeds or the plan in the file were changed."""
    plan = record.metrics.get("plan")
    if plan is not None and record.metrics.get("recipe_checksum") != recipe_checksum(record, plan):
        raise RecordError(
            f"{record.folder}: the configuration, seeds or plan in record.json are not what was written (their checksum"
            f" differs): put the file back as it was, or choose another folder"
        )


def check_answers(record: Record, now: Answers) -> None:
    """Raise an error if the network's outputs differ from those when the record was started."""
    kept = record.metrics.get("answers")
    if kept is None:
        return  # stopped before anything was computed
    try:
        Answers.from_json(kept, str(record.folder)).compare(now, str(record.folder))
    except StoreError as error:
        raise RecordError(str(error)) from error


def check_kernel(context: Context, lost: Container[str] = ()) -> None:
    """Recompute a few entries of a stored kernel, a different one each time, and compare them; skips what is `lost`."""
    arrays = context.record.arrays
    networks = {"": context.model} if context.initial is None else {"": context.model, "initial.": context.initial}
    keys = {f"kernels.{first}{name}.train": (name, first) for first in networks for name in context.plan.kernels}
    stored = [key for key in keys if key in arrays and key not in lost]
    if not stored:
        return
    key = drawn(stored)
    name, before = keys[key]
    kept = np.asarray(arrays[key])
    size = min(FEW, len(kept))
    first = drawn(range(len(kept) - size + 1))
    chosen = np.arange(first, first + size)
    rows = context.initial_rows[0][chosen] if before else chosen
    made = context.pairs.compute(name, networks[before], context.train.take(torch.from_numpy(rows)).x)
    found = disagreement(
        torch.from_numpy(kept[np.ix_(chosen, chosen)].copy()), made.dense().float().cpu(), tolerance(torch.float32)
    )
    if found:
        which = "the initial network's" if before else "the network's"
        raise RecordError(
            f"{context.record.folder}: {which} kernel {name} of training items {first} to {first + size - 1}, computed again,"
            f" and the one that is there {found}: the network answers differently from the one it was begun with; {REMEDY}"
        )


def reopen(record: Record, first: Section[Any], sections: Sequence[Section[Any]]) -> None:
    """Have a section and those that use its result computed again; what they stored of kernels and fits stays."""
    names = {first.name}
    for _ in sections:
        names |= {each.name for each in sections if any(before.name in names for before in each.after)}
    keys = [each.key for each in sections if each.name in names and each.key in record.metrics]
    record.put(
        **{
            key: {**record.metrics[key], "status": "waiting", "why": "computed again with what it needs"}
            for key in keys
        }
    )


def reopen_lacking(record: Record, sections: Sequence[Section[Any]]) -> None:
    """Have what failed or came too late computed again, and what was computed without it."""
    for section in sections:
        entry = record.metrics.get(section.key, {})
        if entry.get("status") == "failed" or entry.get("late"):
            reopen(record, section, sections)


def plain_options(options: Mapping[str, Any] | None) -> dict[str, str]:
    """Options of a factory as texts; values that are not plain by their identity."""
    plain = (bool, int, float, str, type(None))
    return {
        str(name): repr(value) if type(value) in plain else f"{type(value).__qualname__} {identity(value)}"
        for name, value in (options or {}).items()
    }


_section = fields({"status": text()}, {"why": optional(text()), "data": mapping(), "title": text()})
_metrics = fields(
    {},
    {
        "plan": fields(
            {
                "kernels": list_of(text(), 100),
                "train": whole(1),
                "test": whole(1),
                "initial_train": whole(),
                "initial_test": whole(),
                "expected_seconds": number(0, 1e10, "a number of seconds"),
                "text": list_of(text()),
                "subsampled": optional(text()),
                "steps": mapping(number(0, 1e10, "a number of seconds")),
            }
        ),
        "timings": list_of(fields({"what": text(), "seconds": number(0, 1e10, "a number of seconds")})),
        "sections": list_of(text()),
        "certificates": mapping(mapping(mapping(anything))),
        "surrogate_fits": mapping(fields({"seconds": number(), "converged": anything})),
        "coverage": mapping(mapping(anything)),
    },
)


def check_metrics(record: Record) -> None:
    """Raise a `RecordError` that names what does not fit, unless the record is as an X-ray writes it."""
    metrics = record.to_json()["metrics"]
    try:
        _metrics(metrics, "metrics")
        for name, entry in metrics.items():
            if name.startswith("section:"):
                _section(entry, f"metrics.{name}")
    except Mismatch as error:
        raise RecordError(
            f"{record.folder} is not an X-ray that can be resumed: {error}; restore its record.json, or choose another folder"
        ) from error


def repair(record: Record) -> None:
    """If files were lost, keep only intact kernels: every section is computed again from them and rewrites its arrays."""
    if not record.dropped:
        return
    bases = {name.rpartition(".")[0] for name in record.dropped if name.endswith((".test", ".test_diagonal"))}
    doubtful = {f"{base}.{part}" for base in bases for part in ("test", "test_diagonal")}
    record.discard(*(name for name in record.arrays if not name.startswith("kernels.") or name in doubtful))
    why = f"computed again: {', '.join(record.dropped[:5])} had been lost or changed"
    waiting = {
        name: {**entry, "status": "waiting", "why": why}
        for name, entry in record.metrics.items()
        if name.startswith("section:")
    }
    record.put(**waiting)
