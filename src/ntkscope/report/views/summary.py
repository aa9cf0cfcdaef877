"""The summary: a verdict between lazy and rich, its evidence, and how accurate network and surrogates are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope.report.certificates import checks
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import as_float, percent
from ntkscope.report.plots import Bar, bars
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.views._verdict import evidence, hero
from ntkscope.report.views.registry import VIEWS


@VIEWS.register("summary")
def summary(section: Section, source: Source) -> Drawing:
    """Verdict, gauge, accuracies, how the kernels were checked, evidence."""
    data = section.data
    parts: list[Any] = [
        tag("div", hero(data), _accuracies(data, source), class_="pair"),
        checks(source).statement(),
        evidence(data),
    ]
    return Drawing(join(parts))


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
