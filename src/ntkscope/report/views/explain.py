"""Explain a prediction: an explorer of test items, drawn by a script from the data this view puts into the page."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.report.items import COLUMNS
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.views.registry import VIEWS

CLASSES = 12  # at most this many training classes are shown for one item
LOGITS = 3  # most probable classes whose logits can be selected, in addition to the predicted and the true one


@VIEWS.register("explain")
def explain(section: Section, source: Source) -> Drawing:
    """The list of test items and the empty panels; `assets/explorer.js` fills them."""
    data = section.data
    offered = [int(i) for i in data["items"]]
    items = [_item(n, i, section, source) for n, i in enumerate(offered)]
    used: set[int] = set()
    for item in items:
        for key in ("outliers", "top"):
            used.update(index for index, _ in item[key])
        used.update(index for pairs in item["nearest"].values() for index, _ in pairs)
    labels = source.array("labels.train")
    train = {
        i: {
            "slot": source.items.slot("train", i),
            "label": None if labels is None or i >= len(labels) else int(labels[i]),
            "text": source.items.text("train", i),
        }
        for i in sorted(used)
    }
    published = {
        "classes": source.classes,
        "columns": COLUMNS,
        "kernels": [str(kernel) for kernel in data["kernels"]],
        "main": str(data.get("main", "")),
        "count": source.data.get("train_items"),
        "items": items,
        "train": train,
    }
    return Drawing(_skeleton(items, source), published)


def _item(n: int, i: int, section: Section, source: Source) -> dict[str, Any]:
    """What the script needs to know about the n-th item on offer, test item i."""
    data = section.data
    predicted, true = int(data["predicted"][n]), int(data["true"][n])
    said = int((data.get("network_predicted") or data["predicted"])[n])
    probabilities = source.array("network.test_probabilities")
    row = None if probabilities is None or i >= len(probabilities) else np.asarray(probabilities[i], dtype=np.float64)
    surrogate = source.array("explain.probability")
    likely = [] if row is None else np.argsort(-row, kind="stable")[:5].tolist()
    means = source.array("explain.class_mean")
    logits = list(dict.fromkeys([predicted, said, true, *likely[:LOGITS]]))
    classes = _classes(None if means is None else np.asarray(means[n, predicted]), predicted, true)
    box = source.array("explain.box")
    share = source.array("explain.concentration")
    return {
        "index": i,
        "slot": source.items.slot("test", i),
        "text": source.items.text("test", i, 1000),
        "network": said,
        "predicted": predicted,
        "true": true,
        "likely": [] if row is None else [[k, float(row[k])] for k in dict.fromkeys([*likely[:4], true])],
        "surrogate": {}
        if surrogate is None
        else {str(k): float(surrogate[n, k]) for k in dict.fromkeys([*likely[:4], true])},
        "classes": classes,
        "means": {} if means is None else {str(k): np.asarray(means[n, k])[classes] for k in logits},
        "box": [] if box is None else np.asarray(_own(box[n], 2), dtype=np.float64)[classes],
        "outliers": _pairs("explain.outliers", n, source),
        "top": _pairs("explain.top", n, source),
        "nearest": {str(k): _pairs("explain.nearest", n, source, f".{k}") for k in data["kernels"]},
        "concentration": None if share is None else np.asarray(_own(share[n], 1), dtype=np.float64),
    }


def _own(values: Any, axes: int) -> Any:
    """What belongs to the first of an item's classes, the network's own, where there is one entry per class."""
    return values[0] if np.ndim(values) > axes else values


def _pairs(name: str, n: int, source: Source, ending: str = "") -> list[tuple[int, float]]:
    """Indices and values of row n; an index below zero stands for none."""
    index, value = source.array(f"{name}_index{ending}"), source.array(f"{name}_value{ending}")
    if index is None or value is None:
        return []
    return [(int(i), float(v)) for i, v in zip(_own(index[n], 1), _own(value[n], 1), strict=True) if i >= 0]


def _classes(means: np.ndarray | None, predicted: int, true: int) -> list[int]:
    """The training classes to show, in their order: all, or those with the largest contributions."""
    if means is None:
        return sorted({predicted, true})
    if len(means) <= CLASSES:
        return list(range(len(means)))
    loud = np.argsort(-np.abs(means), kind="stable")[: CLASSES - 2].tolist()
    return sorted({*loud, predicted, true})


def _skeleton(items: list[dict[str, Any]], source: Source) -> Markup:
    pictures = any(item["slot"] is not None for item in items)
    options = [_option(n, item, source) for n, item in enumerate(items)]
    wrong = sum(item["network"] != item["true"] for item in items)
    differ = sum(item["network"] != item["predicted"] for item in items)
    chooser = tag(
        "div",
        tag(
            "div",
            tag("label", "Find a test item", for_="explorer-search", class_="hidden"),
            tag("input", id="explorer-search", type="search", placeholder="Class, text or number", autocomplete="off"),
            tag(
                "label", tag("input", type="checkbox", id="explorer-wrong"), f" network wrong ({wrong})", class_="check"
            ),
            tag(
                "label",
                tag("input", type="checkbox", id="explorer-differ"),
                f" surrogate differs ({differ})",
                class_="check",
            )
            if differ
            else None,
            tag("span", class_="soft small", id="explorer-count", role="status"),
            class_="explorer-tools",
        ),
        tag(
            "ul",
            *options,
            role="listbox",
            tabindex="0",
            id="explorer-list",
            aria_label="Test items; select with the arrow keys",
            class_="strip pictures" if pictures else "strip texts",
        ),
        class_="chooser",
    )
    panels = tag(
        "div",
        tag("div", id="explorer-head", class_="card explorer-head", aria_live="polite"),
        tag("div", id="explorer-bars", class_="card"),
        tag("div", id="explorer-box", class_="card"),
        tag("div", id="explorer-top", class_="card whole"),
        tag("div", id="explorer-nearest", class_="card whole"),
        class_="explorer-panels",
        id="explorer-panels",
    )
    asks = tag("noscript", tag("p", "Selecting an item needs JavaScript, which is switched off.", class_="note"))
    return tag("div", asks, chooser, panels, id="explorer", class_="explorer")


def _option(n: int, item: dict[str, Any], source: Source) -> Markup:
    predicted, true = source.class_name(item["network"]), source.class_name(item["true"])
    right = item["network"] == item["true"]
    said = f"test item {item['index']}: predicted {predicted}" + (", correct" if right else f", actually {true}")
    shown = source.items.show("test", item["index"], longest=90)
    inner = (
        [shown]
        if item["slot"] is not None
        else [shown, tag("span", source.class_mark(item["network"]), class_="tagged")]
    )
    return tag(
        "li",
        join(inner),
        role="option",
        id=f"explorer-option-{n}",
        aria_selected="true" if n == 0 else "false",
        aria_label=said,
        class_=None if right else "wrong",
        data_n=n,
        data_differ=item["network"] != item["predicted"],
        data_find=f"{item['index']} {predicted} {true} {item['text'] or ''}".lower()[:600],
        data_tip=said,
    )
