"""How this was computed: command, versions, seeds, device, timings, numerical health."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import duration, number
from ntkscope.report.plots import Bar, bars
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.views._generic import terms
from ntkscope.report.views.registry import VIEWS


@VIEWS.register("computed")
def computed(section: Section, source: Source) -> Drawing:
    """The command first; then what a person needs who wants the same numbers again."""
    data = section.data
    notes = [tag("li", note) for note in data.get("notes") or []]
    timings = [_timing(row) for row in data.get("timings") or [] if isinstance(row, Mapping)]
    cards = [
        _card("Numerical health", data.get("health")),
        _card("Versions", data.get("versions")),
        _card("Seeds", data.get("seeds")),
        _card("Machine", {key: data[key] for key in ("device", "platform", "threads", "commit") if data.get(key)}),
    ]
    plan = source.metrics.get("plan")
    return Drawing(
        join(
            [
                tag("pre", tag("code", data.get("command", "")), class_="command", tabindex="0", aria_label="Command"),
                tag("div", *cards, class_="cards"),
                tag("h3", "Time"),
                bars(timings, label="Time of each step") if timings else None,
                _plan(plan) if isinstance(plan, Mapping) else None,
                [tag("h3", "Notes"), tag("ul", *notes)] if notes else None,
            ]
        )
    )


def _timing(row: Mapping[str, Any]) -> Bar:
    seconds = row.get("seconds")
    return Bar(
        row.get("what", ""), seconds, duration(seconds) if isinstance(seconds, (int, float)) else number(seconds)
    )


def _card(title: str, pairs: Mapping[str, Any] | None) -> Markup | None:
    return tag("div", tag("h3", title), terms(pairs), class_="card") if pairs else None


def _plan(plan: Mapping[str, Any]) -> Markup:
    """What was said before it started."""
    lines = plan.get("text") or []
    said = lines if isinstance(lines, str) else "\n".join(str(line) for line in lines)
    return tag("details", tag("summary", "The plan, as it was said before it started"), tag("pre", said))
