"""What verbs share: what options stand for, and how a record is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

import ntkscope as ns
from ntkscope.core import UsageError
from ntkscope.core.files.printable import printable
from ntkscope.core.machine.interrupts import Terminated
from ntkscope.core.progress import duration
from ntkscope.report.certificates import Checks
from ntkscope.report.source import Source
from ntkscope.report.views._findings import Missing
from ntkscope.xray.sections import problems, replay, summary, surrogates
from ntkscope.xray.task import recorded_task

CERTIFY: dict[str, str | bool] = {"every": "every", "sampled": "sampled", "none": False}


def certified(certify: str) -> str | bool:
    """What `--certify` means."""
    if certify not in CERTIFY:
        raise UsageError(f"got --certify {certify!r}; expected one of {', '.join(CERTIFY)}")
    return CERTIFY[certify]


@contextmanager
def stoppable() -> Iterator[None]:
    """Says, when Ctrl-C stops the block, how to go on."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        typer.echo("\nntkscope: stopped; run the same command again to continue", err=True)
        raise


def show(record: ns.Record) -> None:
    """Make the page, print the summary and where the page is; exit code 1 when a section failed."""
    page = ns.report.write_page(record.folder)
    typer.echo("\n".join(in_short(record)))
    typer.echo(f"\npage: {page.resolve()}")
    if any(entry["status"] == "failed" for entry in sections(record)):
        raise typer.Exit(1)


def sections(record: ns.Record) -> list[dict[str, Any]]:
    """The sections of a record in the order of the page."""
    return [record.metrics[f"section:{name}"] for name in record.metrics["sections"]]


def in_short(record: ns.Record) -> list[str]:
    """The main results in a few lines for a terminal."""
    metrics, task = record.metrics, recorded_task(record.metrics)
    lines = ["", f"X-ray of {metrics['model']['name']} on {metrics['data']['name'] or 'its data'}"]
    for section in (summary.SECTION, surrogates.SECTION, replay.SECTION, problems.SECTION):
        found = section.of(task).read(metrics)
        lines += [] if found is None else found.in_short()
    checks = Checks.of(metrics, record.arrays)
    if checks.by_kernel:
        lines.append(f"kernels: {checks.state}. {' '.join(checks.lines())}")
    late = [entry["title"] for entry in sections(record) if entry.get("late")]
    lines += [
        f"{entry['title']}: {entry['status']} ({entry['why']})"
        for entry in sections(record)
        if entry["why"] and not entry.get("late")
    ]
    lines += [f"left out for want of time: {', '.join(late)}"] if late else []
    for said, command in Missing(Source(record)).commands():
        lines += [said, f"  {command}"]
    return [*map(printable, lines), f"record: {record.folder} ({duration(record.wall_seconds)})"]
