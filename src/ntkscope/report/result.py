"""The page of an experiment, or of any record: claims next to what was measured, figures, numbers, how it was computed."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ntkscope.core import Record
from ntkscope.core.errors import RecordError
from ntkscope.core.files.safe_files import is_inside, read_bytes
from ntkscope.report.claims import claims_table, tally
from ntkscope.report.document import page_of_parts
from ntkscope.report.markup import Markup, folded, join, tag
from ntkscope.report.numbers import NONE, as_float, duration
from ntkscope.report.series import series
from ntkscope.report.source import mapping, names, rows_of
from ntkscope.report.tables import Cell, table
from ntkscope.report.views._generic import terms, values

_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
LARGEST = 4_000_000  # bytes of one embedded figure


def result(record: Record) -> Markup:
    """The page of one record that is not an X-ray."""
    written = record.to_json()
    parts = {
        "claims": ("Published and measured", claims_table(record.claims) if record.claims else None),
        "figures": ("Figures", figures(record.folder)),
        "series": ("Series", series(record)),
        "numbers": (
            "Numbers",
            folded("All numbers of the record", values(record.metrics, "")) if record.metrics else None,
        ),
        "setting": ("Setting", setting(record)),
        "made": ("How this was computed", made(record, written)),
    }
    return page_of_parts(record.name, [_header(record)], parts)


def figures(folder: Path) -> Markup | None:
    """The files `figures/*.svg` and `figures/*.png` of a record, as images, in which nothing in an SVG can run.

    A link that points outside the folder is named, not followed.
    """
    shown = []
    for path in sorted((folder / "figures").glob("*")):
        if path.suffix.lower() not in _TYPES or not path.is_file():
            continue
        name = path.stem.replace("_", " ").replace("-", " ")
        if not is_inside(path, folder):  # a page may be shared, and with it the target of a link
            note = f"{path.name} is a link that points outside the record's folder; it is not shown."
            shown.append(tag("p", note, class_="note"))
            continue
        if path.stat().st_size > LARGEST:
            shown.append(
                tag("p", f"{path.name} is too large to be shown here; see the folder figures/.", class_="note")
            )
            continue
        held = base64.b64encode(read_bytes(path, RecordError, limit=LARGEST, inside=folder)).decode()
        image = tag("img", src=f"data:{_TYPES[path.suffix.lower()]};base64,{held}", alt=f"Figure: {name}")
        shown.append(tag("figure", image, tag("figcaption", name)))
    return tag("div", *shown, class_="figures") if shown else None


def _header(record: Record) -> Markup:
    scale = record.config.get("scale")
    state = (
        None if record.status == "done" else f"State: {record.status}" + (f" ({record.error})" if record.error else "")
    )
    return tag(
        "header",
        tag("p", f"{record.kind}, {scale} scale" if isinstance(scale, str) else record.kind, class_="eyebrow"),
        tag("h1", record.name),
        tally(record.claims) if record.claims else None,
        tag("p", state, class_="note") if state else None,
    )


def status_note(record: Record) -> str | None:
    """What to say about a record that is not finished."""
    if record.status == "done":
        return None
    why = f" ({record.error})" if record.error else ""
    return f"This run is not finished: its state is “{record.status}”{why}. Below are the results it had by then."


def setting(record: Record) -> Markup | None:
    """The configuration and the seeds of a record."""
    pairs: Mapping[str, Any] = {**record.config, **{f"seed: {key}": value for key, value in record.seeds.items()}}
    return values(pairs, "") if pairs else None


def made(record: Record, written: Mapping[str, Any]) -> Markup:
    """The command, the environment and the stages of a record, and where its results were made."""
    environment = {key: value for key, value in record.environment.items() if key != "packages"}
    packages = record.environment.get("packages") or {}
    stages = {name: f"{stage.done:,} steps, {duration(stage.seconds)}" for name, stage in record.stages.items()}
    about = {"started": written["started"], "wall time": duration(record.wall_seconds), "status": record.status}
    return join(
        [
            tag("pre", tag("code", str(written["command"])), class_="command", tabindex="0", aria_label="Command"),
            terms({**about, **environment, **packages}),
            [tag("h3", "Stages"), terms(stages)] if stages else None,
            sources(record),
        ]
    )


def sources(record: Record) -> Markup | None:
    """Of each process that made results of a record: where it ran and of which code, the command, seconds, and how busy others
    kept the machine. A record may hold anything under these names."""
    rows = []
    for source in [entry for key in ("gathered", "provenance") for entry in rows_of(record.metrics, key)]:
        about, legs, seconds = (
            mapping(source.get("environment")),
            names(source.get("legs")),
            as_float(source.get("seconds")),
        )
        beside = max((as_float(cores) for cores in mapping(source.get("beside")).values()), default=math.nan)
        rows.append(
            [
                Cell(str(len(legs)), len(legs), True),
                Cell.of(about.get("device")),
                Cell.of(about.get("commit") or source.get("source")),
                Cell(duration(seconds) if math.isfinite(seconds) else NONE, seconds, True),
                Cell("not known" if math.isnan(beside) else f"{beside:g} cores", beside, True),
                Cell.of(source.get("command")),
            ]
        )
    heads = ["Results", "Device", "Commit or source", "Time", "Others kept busy, at most", "Command"]
    return join([tag("h3", "Where results were made"), table(heads, rows, name="Sources")]) if rows else None
