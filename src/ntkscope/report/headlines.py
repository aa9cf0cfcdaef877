"""The figure that matters of each long section, in a sentence: what a page shows of it until a reader opens it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ntkscope.report.numbers import as_float, duration, number, percent
from ntkscope.report.source import Section, Source, rows_of


def headline(section: Section, source: Source) -> str | None:
    """The sentence of a section that is long and not for every reader; None for one that stays open.

    A record may hold anything: a section without its figure is called by its title.
    """
    say = _SAID.get(section.name)
    if say is None or section.status != "done":
        return None
    try:
        return say(section.data, source)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return section.title


def _shift(data: Mapping[str, Any], _: Source) -> str:
    found = rows_of(data, "judged")
    said = "; ".join(f"{row['other']}: {row['verdict']} (p = {number(row['p'], 2)})" for row in found)
    return f"{said[:1].upper()}{said[1:]}."


def _kernel(data: Mapping[str, Any], source: Source) -> str:
    first = data.get("initial") or {}
    gain = f", {number(first['centred_alignment'])} before training" if first.get("centred_alignment") else ""
    goal, aligned = "targets" if source.regression else "labels", number(data["centred_alignment"])
    return (
        f"{source.kernel_name(data['name'])}: alignment with the {goal} {aligned}{gain}; effective rank"
        f" {number(data['effective_rank'])}."
    )


def _tangent(data: Mapping[str, Any], _: Source) -> str:
    loss = {row["name"]: number(row["loss"]) for row in rows_of(data, "readings")}
    parts = {"network": "network", "readout": "last layer trained again", "tangent": "linearised network"}
    return "Test loss: " + ", ".join(f"{words} {loss[name]}" for name, words in parts.items() if name in loss) + "."


def _layers(data: Mapping[str, Any], _: Source) -> str:
    most = max(rows_of(data, "layers"), key=lambda row: as_float(row["share"]))
    return f"{most['name']} has {percent(most['share'], 0)} of the kernel, more than any other layer."


def _representations(data: Mapping[str, Any], _: Source) -> str:
    rows = [row for row in rows_of(data, "layers") if row.get("accuracy")]
    best = [(max(as_float(value) for value in row["accuracy"].values()), row["name"]) for row in rows]
    return f"The best probe: {percent(best[0][0])} after {best[0][1]}, {percent(best[-1][0])} after {best[-1][1]}."


def _layer_features(data: Mapping[str, Any], _: Source) -> str:
    rows = [row for row in rows_of(data, "layers") if row.get("correlation") is not None]
    said = ", ".join(f"{row['name']} {number(row['correlation'], 2)}" for row in rows[:4])
    return f"Weights and gradients look the same way, ρ: {said}{', …' if len(rows) > 4 else ''}."


def _weight_spectra(data: Mapping[str, Any], _: Source) -> str:
    rows = rows_of(data, "layers")
    spiked, tested = sum(bool(row["count"]) for row in rows), sum(row["label"] != "undecided" for row in rows)
    return (
        f"{spiked} of {tested} weight matrices that could be tested have directions outside the noise;"
        f" {len(rows) - tested} could not be."
    )


def _computed(data: Mapping[str, Any], source: Source) -> str:
    took = duration(source.record.wall_seconds)
    return f"{took} on {data.get('device') or 'an unknown device'}; command, versions, seeds and times."


_SAID: Mapping[str, Callable[[Mapping[str, Any], Source], str]] = {
    "shift": _shift,
    "kernel": _kernel,
    "tangent": _tangent,
    "layers": _layers,
    "representations": _representations,
    "layer_features": _layer_features,
    "weight_spectra": _weight_spectra,
    "computed": _computed,
}
