"""The summary of a regression: how well it predicts, a verdict between lazy and rich, and its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope.report.certificates import checks
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import as_float, number
from ntkscope.report.plots import Bar, bars
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, table
from ntkscope.report.views._verdict import evidence, hero
from ntkscope.report.views.registry import VIEWS


@VIEWS.register("output_summary")
def output_summary(section: Section, source: Source) -> Drawing:
    """Verdict, R² of network and surrogates, every output, how the kernels were checked, evidence."""
    data = section.data
    parts = [
        tag("div", hero(data), _explained(data, source), class_="pair"),
        _outputs(data, source),
        checks(source).statement(),
        evidence(data),
    ]
    return Drawing(join(parts))


def _explained(data: Mapping[str, Any], source: Source) -> Markup:
    """The network's R² and each surrogate's, best first."""
    best = data.get("best_kernel")
    rows = [Bar("network", data.get("r2"), number(data.get("r2")), "network")]
    for kernel, value in sorted((data.get("surrogate_r2") or {}).items(), key=lambda pair: -as_float(pair[1])):
        pill = tag("span", "most faithful", class_="pill quiet") if kernel == best else None
        rows.append(
            Bar(join([source.kernel_mark(kernel), pill]), value, number(value), "best" if kernel == best else "")
        )
    return tag(
        "div",
        tag("h3", "R² of the targets on the test items"),
        bars(rows, label="R² of the network and of each surrogate", largest=1),
        class_="card",
    )


def _outputs(data: Mapping[str, Any], source: Source) -> Markup:
    rows = [
        [
            Cell(tag("bdi", row["name"]), row["name"], kind="strong"),
            Cell(number(row["r2"]), row["r2"], True),
            Cell(number(row["rmse"]), row["rmse"], True),
            Cell(number(row["spread"]), row["spread"], True),
            Cell(number(row["train_r2"]), row["train_r2"], True),
        ]
        for row in data.get("outputs") or []
    ]
    heads = ["Output", "R²", "RMSE", "Spread of the target", "R² on training items"]
    shown = table(heads, rows, name="Outputs", export=f"{source.record.name}-outputs.csv", kind="snug")
    words = (
        "RMSE is in the unit of the target; predicting its mean for every item would have the spread as RMSE and R² 0."
    )
    return join([tag("h3", "How well each output is predicted"), shown, tag("p", words, class_="soft small")])
