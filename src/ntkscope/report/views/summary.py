"""The summary: a verdict between lazy and rich, its evidence, and how accurate network and surrogates are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope.report.certificates import checks
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import as_float, number, percent
from ntkscope.report.plots import Bar, bars, gauge
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, table
from ntkscope.report.views.registry import VIEWS

_READS = {
    "lazy": "It behaves like a kernel machine with a fixed kernel.",
    "rich": "It learned features: its kernel changed during training.",
    "in between": "It behaves partly like a fixed kernel and partly has learned features.",
    "not enough evidence": "The measurements do not settle the question.",
}


@VIEWS.register("summary")
def summary(section: Section, source: Source) -> Drawing:
    """Verdict, gauge, accuracies, how the kernels were checked, evidence."""
    data = section.data
    verdict = str(data["verdict"])
    hero = tag(
        "div",
        tag("p", "This network looks", class_="eyebrow"),
        tag("p", verdict if verdict != "not enough evidence" else "undecided", class_="verdict"),
        tag("p", data.get("why") or _READS.get(verdict, ""), class_="soft"),
        gauge(data.get("score"), low="lazy: a fixed kernel", high="rich: learned features"),
        class_="card hero",
    )
    evidence = data.get("evidence") or []
    shown = table(
        ["Evidence", "Value", "Indicates", "Why"],
        [_row(e) for e in evidence],
        name="Evidence",
        sortable=False,
        kind="stacking",
    )
    parts: list[Any] = [
        tag("div", hero, _accuracies(data, source), class_="pair"),
        checks(source).statement(),
    ]
    if evidence:
        parts += [tag("h3", "Evidence for the verdict"), shown]
    return Drawing(join(parts))


def _row(evidence: Mapping[str, Any]) -> list[Cell]:
    says = str(evidence.get("says", ""))
    return [
        Cell(evidence.get("what", ""), kind="strong"),
        Cell(number(evidence.get("value")), numeric=True),
        Cell(tag("span", says, class_=f"pill {says if says in ('lazy', 'rich') else 'neither'}")),
        Cell(evidence.get("note", ""), kind="wide soft"),
    ]


def _accuracies(data: Mapping[str, Any], source: Source) -> Markup:
    """The network's accuracy and each surrogate's, best first."""
    surrogates = data.get("surrogate_accuracy") or {}
    best = data.get("best_kernel")
    rows = [Bar("network", data.get("network_accuracy"), percent(data.get("network_accuracy")), "network")]
    for kernel, accuracy in sorted(surrogates.items(), key=lambda pair: -as_float(pair[1])):
        name = join(
            [source.kernel_mark(kernel), tag("span", "most faithful", class_="pill quiet") if kernel == best else None]
        )
        rows.append(Bar(name, accuracy, percent(accuracy), "best" if kernel == best else ""))
    return tag(
        "div",
        tag("h3", "Accuracy on the test items"),
        bars(rows, label="Accuracy of the network and of each surrogate", largest=1),
        class_="card",
    )
