"""An X-ray whose files were lost or changed: what is damaged is computed again, and everything else is kept.

Also validates a record of kind `xray` before a run resumes it.
"""

from __future__ import annotations

from ntkscope.core import Record, RecordError
from ntkscope.core.files.schema import Mismatch, anything, fields, list_of, mapping, number, optional, text, whole
from ntkscope.core.records.soundness import unsound

_items = whole(1)
_section = fields({"status": text()}, {"why": optional(text()), "data": mapping(), "title": text()})
_metrics = fields(
    {},
    {
        "plan": fields(
            {
                "kernels": list_of(text(), 100),
                "train": _items,
                "test": _items,
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


def lost(record: Record) -> tuple[str, ...]:
    """The arrays whose files differ from what was written; reads all of them."""
    return unsound(record.folder, record.to_json())


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
