"""The summary: a verdict between lazy and rich, its evidence, and how well network and surrogates predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ntkscope.report.certificates import checks
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import as_float, number, percent
from ntkscope.report.plots import Bar, bars, gauge
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.views.registry import VIEWS
from ntkscope.report.views.replay import sentence

_READS = {
    "lazy": "It behaves like a kernel machine with a fixed kernel.",
    "rich": "It learned features: its kernel changed during training.",
    "in between": "It behaves partly like a fixed kernel and partly has learned features.",
    "not enough evidence": "The measurements do not settle the question.",
}


@VIEWS.register("summary", "output_summary")
def summary(section: Section, source: Source) -> Drawing:
    """Verdict, gauge, how well network and surrogates predict, how the kernels were checked, evidence."""
    data, outputs = section.data, None
    if section.of_regression:
        shares = _bars(data, source, "r2", "surrogate_r2", number)
        title, label, outputs = "R² of the targets on the test items", "R²", _outputs(data, source)
    else:
        shares = _bars(data, source, "network_accuracy", "surrogate_accuracy", percent)
        title, label = "Accuracy on the test items", "Accuracy"
    drawn = bars(shares, label=f"{label} of the network and of each surrogate", largest=1)
    pair = tag("div", _hero(data), tag("div", tag("h3", title), drawn, class_="card"), class_="pair")
    return Drawing(join([pair, outputs, checks(source).statement(), _replayed(source), _evidence(data)]))


def _replayed(source: Source) -> Markup | None:
    """How well the kernel predicts what training would have done; None where the training was not at hand."""
    found = Section.read("replay", source.metrics.get("section:replay"))
    return tag("p", sentence(found.data)) if found.status == "done" and found.data else None


def _bars(data: Mapping[str, Any], source: Source, own: str, others: str, shown: Callable[[Any], str]) -> list[Bar]:
    """What the network scores and what each surrogate does, best first."""
    best = data.get("best_kernel")
    rows = [Bar("network", data.get(own), shown(data.get(own)), "network")]
    for kernel, value in sorted((data.get(others) or {}).items(), key=lambda pair: -as_float(pair[1])):
        pill = tag("span", "most faithful", class_="pill quiet") if kernel == best else None
        name = join([source.kernel_mark(kernel), pill])
        rows.append(Bar(name, value, shown(value), "best" if kernel == best else ""))
    return rows


def _outputs(data: Mapping[str, Any], source: Source) -> Markup:
    rows = [
        [
            Cell(tag("bdi", row["name"]), row["name"], kind="strong"),
            *figures(row["r2"], row["rmse"], row["spread"], row["train_r2"]),
        ]
        for row in data.get("outputs") or []
    ]
    heads = ["Output", "R²", "RMSE", "Spread of the target", "R² on training items"]
    shown = table(heads, rows, name="Outputs", export=f"{source.record.name}-outputs.csv", kind="snug")
    words = (
        "RMSE is in the unit of the target; predicting its mean for every item would have the spread as RMSE and R² 0."
    )
    return join([tag("h3", "How well each output is predicted"), shown, tag("p", words, class_="soft small")])


def _hero(data: Mapping[str, Any]) -> Markup:
    """The verdict in a word, why, and where it lies between lazy and rich."""
    verdict = str(data["verdict"])
    return tag(
        "div",
        tag("p", "This network looks", class_="eyebrow"),
        tag("p", verdict if verdict != "not enough evidence" else "undecided", class_="verdict"),
        tag("p", data.get("why") or _READS.get(verdict, ""), class_="soft"),
        gauge(data.get("score"), low="lazy: a fixed kernel", high="rich: learned features"),
        class_="card hero",
    )


def _evidence(data: Mapping[str, Any]) -> Markup | None:
    """The measured values behind the verdict; None without any."""
    found = data.get("evidence") or []
    if not found:
        return None
    shown = table(
        ["Evidence", "Value", "Indicates", "Why"],
        [_evidence_row(each) for each in found],
        name="Evidence",
        sortable=False,
        kind="stacking",
    )
    return join([tag("h3", "Evidence for the verdict"), shown])


def _evidence_row(evidence: Mapping[str, Any]) -> list[Cell]:
    says = str(evidence.get("says", ""))
    return [
        Cell(evidence.get("what", ""), kind="strong"),
        Cell(number(evidence.get("value")), numeric=True),
        Cell(tag("span", says, class_=f"pill {says if says in ('lazy', 'rich') else 'neither'}")),
        Cell(evidence.get("note", ""), kind="wide soft"),
    ]
