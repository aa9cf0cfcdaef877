"""Explain an output of a regression: every explained test item with the training points behind it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import number
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.views._findings import TRUST
from ntkscope.report.views.registry import VIEWS

LEVELS = ("do not trust", "medium", "high")
LISTS = {  # of training points: title, what is said of each, its sign
    "top": ("What the surrogate's output is made of", "adds", 1),
    "influence": ("Points without which a retrained fit would change most", "without it", -1),
    "nearest": ("Most similar training items", "similarity", 0),
}


@VIEWS.register("output_explain")
def output_explain(section: Section, source: Source) -> Drawing:
    """One folded entry per test item, the network's largest errors first."""
    data = section.data
    entries = [_item(n, int(i), data, source) for n, i in enumerate(data["items"])]
    words = tag(
        "p",
        f"{len(entries):,} test items: the network's largest errors, those where the surrogate differs most, and an even"
        f" selection of the others. Explained is the surrogate on {source.kernel_name(data['main'])}. Its output is a constant"
        " and the terms of all training points, of which the largest are listed.",
        class_="soft small",
    )
    return Drawing(join([words, tag("div", *entries, class_="explained")]))


def _item(n: int, index: int, data: Any, source: Source) -> Markup:
    arrays = {name: source.array(f"output_explain.{name}") for name in ("network", "surrogate", "trust")}
    network, surrogate, trust = (arrays[name] for name in ("network", "surrogate", "trust"))
    targets = source.array("targets.test")
    parts: list[Any] = []
    heads: list[str] = []
    for place, output in enumerate(data["chosen"][n]):
        name = source.output_name(output)
        said = [
            f"{name}: " if len(source.outputs) > 1 else "",
            f"target {_at(targets, index, output)}, network {_at(network, n, output)}, surrogate {_at(surrogate, n, output)}",
        ]
        heads.append("".join(said))
        constant = f"Constant {number(data['intercept'][output])}." if len(data["intercept"]) > output else ""
        parts.append(tag("p", tag("b", tag("bdi", heads[-1]))))
        parts.append(tag("p", constant, class_="soft small"))
        parts.append(tag("div", *(_list(kind, (n, place), source) for kind in ("top", "influence")), class_="panels"))
    parts.append(_list("nearest", (n,), source))
    word = LEVELS[int(trust[n])] if trust is not None and n < len(trust) and 0 <= int(trust[n]) < 3 else ""
    pill = tag("span", f"trust: {word}", class_=f"pill {TRUST.get(word, 'quiet')}") if word else None
    known, number_of = source.items.identifier("test", index), f"#{source.items.number('test', index)}"
    shown = source.items.show("test", index, longest=80)
    head = tag(
        "summary",
        shown if number_of in shown else join([shown, f" {number_of}"]),
        tag("bdi", f" {known}") if known else None,
        f" – {heads[0] if heads else ''} ",
        pill,
    )
    return tag("details", head, *parts, class_="card")


def _at(values: np.ndarray | None, row: int, column: int) -> str:
    known = values is not None and values.ndim == 2 and row < len(values) and column < values.shape[1]
    return number(float(values[row, column])) if known and values is not None else number(None)


def _list(kind: str, at: tuple[int, ...], source: Source) -> Markup | None:
    """The training points of one list, for an item or for an output of it."""
    index, value = (source.array(f"output_explain.{kind}_{part}") for part in ("index", "value"))
    if index is None or value is None or index.shape != value.shape or index.ndim <= len(at) or at[0] >= len(index):
        return None
    title, verb, sign = LISTS[kind]
    shown = [(int(i), (sign or 1) * float(v)) for i, v in zip(index[at], value[at]) if i >= 0]
    rows = [_point(i, f"{verb} {'+' if sign and v >= 0 else ''}{number(v)}", source) for i, v in shown]
    return tag("div", tag("p", title, class_="small strong"), tag("ul", *rows, class_="plain-list"))


def _point(index: int, said: str, source: Source) -> Markup:
    targets = source.array("targets.train")
    shown = ""
    if targets is not None and targets.ndim == 2 and index < len(targets):
        shown = ", target " + ", ".join(number(float(v)) for v in targets[index][:4])
    return tag("li", source.items.link("train", index, longest=80), f" {said}{shown}")
