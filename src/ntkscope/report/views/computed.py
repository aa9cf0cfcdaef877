"""How this was computed: command, versions, seeds, device, timings, numerical health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import duration, number
from ntkscope.report.plots import Bar, bars
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.views._generic import terms
from ntkscope.report.views.registry import VIEWS


@VIEWS.register("computed")
def computed(section: Section, source: Source) -> Drawing:
    """The command first, then what is needed to reproduce the numbers."""
    data = section.data
    notes = [tag("li", note) for note in data.get("notes") or []]
    seeds = {f"seed of {name}": seed for name, seed in (data.get("seeds") or {}).items()}
    cards = [
        _card("Numerical health", data.get("health")),
        _card("Versions", data.get("versions")),
        _card("Seeds and machine", {**seeds, **_machine(data)}),
    ]
    plan = source.metrics.get("plan")
    return Drawing(
        join(
            [
                tag("pre", tag("code", data.get("command", "")), class_="command", tabindex="0", aria_label="Command"),
                tag("div", *cards, class_="cards"),
                _times(data.get("timings") or [], source),
                _plan(plan) if isinstance(plan, Mapping) else None,
                [tag("h3", "Notes"), tag("ul", *notes)] if notes else None,
            ]
        )
    )


def _machine(data: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: data[key] for key in ("device", "platform", "threads", "commit") if data.get(key)}
    commit, mark, changed = str(found.get("commit", "")).partition("+")
    return {**found, "commit": commit[:12] + mark + changed} if commit else found


def _times(timings: Sequence[Any], source: Source) -> Markup | None:
    """Sections beside the single steps; a section's time includes the steps it was the first to need."""
    found = [(str(row.get("what", "")), row.get("seconds")) for row in timings if isinstance(row, Mapping)]
    titles = {f"section {section.name}": section.title for section in source.sections()}
    lacking = {f"section {section.name}" for section in source.sections() if section.status == "skipped"}
    sections = [
        (titles.get(what, what.removeprefix("section ")), seconds)
        for what, seconds in found
        if what.startswith("section ") and what not in lacking
    ]
    steps = [(what, seconds) for what, seconds in found if not what.startswith("section ")]
    cards = [
        tag(
            "div",
            tag("h3", title),
            bars([Bar(what, time, _seconds(time)) for what, time in rows], label=title),
            class_="card",
        )
        for title, rows in (("Time by section", sections), ("Time by step", steps))
        if rows
    ]
    return tag("div", *cards, class_="pair") if cards else None


def _seconds(value: Any) -> str:
    return duration(value) if isinstance(value, (int, float)) else number(value)


def _card(title: str, pairs: Mapping[str, Any] | None) -> Markup | None:
    return tag("div", tag("h3", title), terms(pairs), class_="card") if pairs else None


def _plan(plan: Mapping[str, Any]) -> Markup:
    """The plan shown before the run."""
    lines = plan.get("text") or []
    said = lines if isinstance(lines, str) else "\n".join(str(line) for line in lines)
    return tag("details", tag("summary", "The plan, as shown before the run"), tag("pre", said, class_="command"))
