"""What training would have done: in a sentence and item by item; the explorer shows the training points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import number, percent, whole
from ntkscope.report.source import Drawing, Section, Source, name_at
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.views._evidence import pack
from ntkscope.report.views.registry import VIEWS

WAYS = {"replay": "By replaying the training", "ridge": "By the kernel"}


@VIEWS.register("replay")
def replay(section: Section, source: Source) -> Drawing:
    """The sentence, a row per test item, and the points that `assets/explorer.js` shows for it."""
    data, published = section.data, dict[str, Any]()
    for way, words in WAYS.items():
        index, value = (source.array(f"replay.{way}_{part}") for part in ("index", "value"))
        if index is not None and value is not None:
            for i in sorted(set(np.asarray(index).flatten().tolist())):
                source.items.slot("train", i)
            published[way] = {"name": words, "index": pack(np.asarray(index)), "value": pack(np.asarray(value))}
    items = [int(i) for i in data["items"]]
    both = [data["kernel"]["items"], data["replay"]["items"]]
    shown = {"items": items, "correlations": both[0], "ways": published} if published and not data["rough"] else {}
    labels, predicted = source.array("labels.test"), source.array("network.test_prediction")
    rows = []
    for i, *correlations in zip(items, *both, strict=True):
        label = f"test item {source.items.number('test', i)}"
        said = [
            Cell(name_at(source.classes, int(values[i]))) if values is not None and i < len(values) else Cell("")
            for values in (predicted, labels)
        ]
        rows.append([Cell(tag("a", label, href=source.items.address("test", i)), i), *said, *figures(*correlations)])
    name = f"{source.record.name}-replay.csv"
    listed = table(
        ["Item", "Predicted", "Label", "ρ, kernel", "ρ, replay"], rows, name="Replayed items", export=name, kind="snug"
    )
    same = (
        f"Of the {whole(data['k'])} training points that support a prediction most, {number(data['shared'], 2)} are the same by"
        f" both, on average. The training had {whole(data['steps'])} steps."
    )
    where = (
        ""
        if data["rough"]
        else " The explorer above has the training points of these items, under What training itself would have done."
    )
    said_of_all = [tag("p", sentence(data)), tag("p", f"{same}{where}", class_="soft small")]
    return Drawing(join([*said_of_all, tag("h3", "Item by item"), listed]), shown)


def sentence(data: Mapping[str, Any]) -> Markup:
    """How well the kernel predicts what training would have done, in plain words."""
    kernel, replayed = (
        f"{number(one['mean'], 2)} ({number(one['low'], 2)} to {number(one['high'], 2)})"
        for one in (data["kernel"], data["replay"])
    )
    mean = data["kernel"]["mean"]
    said = "well" if mean >= 0.7 else "in part" if mean >= 0.3 else "hardly"
    rough = (
        " This training is too rough for a replay to say which points matter: of what two retrainings with slightly other"
        f" weights did, its derivative missed {percent(data['error'], 0)}. Lower rates are smoother."
    )
    return join(
        [
            tag("b", f"The kernel predicts {said} what training would have done without some points: "),
            f"what it says of training on random halves of the points has, with what {whole(data['retrainings'])} such"
            f" trainings did to {len(data['items'])} predictions, a rank correlation of {kernel}; 1 is the same order."
            f" A replay of the training has {replayed}.",
            rough if data["rough"] else "",
        ]
    )
