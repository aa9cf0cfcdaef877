"""Explain a prediction: an explorer of test items, drawn by a script from the data this view puts into the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ntkscope.report.markup import Markup, tag
from ntkscope.report.numbers import number
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.views._evidence import evidence, pack
from ntkscope.report.views.registry import VIEWS

LIKELY = 4  # most probable classes in the head of an item
TEXT = 600  # characters of a text


@VIEWS.register("explain")
def explain(section: Section, source: Source) -> Drawing:
    """The tools and the empty panels; `assets/explorer.js` fills them and the list of test items."""
    data = section.data
    rows = [int(i) for i in data["items"]]
    answers = zip(data["predicted"], data["network_predicted"], data["true"], strict=True)
    said = [(int(p), int(f), int(y)) for p, f, y in answers]
    kernels = [str(kernel) for kernel in data["kernels"]]
    found = evidence([true for _, _, true in said], source)
    nearest = {kernel: _nearest(kernel, len(rows), source) for kernel in kernels}
    shown = found.training_items().union(*(set(index[index >= 0].tolist()) for index, _ in nearest.values()))
    for i in sorted(shown):
        source.items.slot("train", i)
    trust = source.array("explain.trust")
    published = {
        "kernels": [{"key": kernel, "name": source.kernel_name(kernel)} for kernel in kernels],
        "main": source.kernel_name(data["main"]),
        "target": str(data["target"]),
        "count": source.data.get("train_items"),
        "items": [
            {
                "index": i,
                "number": source.items.number("test", i),
                "id": source.items.identifier("test", i),
                "slot": source.items.slot("test", i),
                "text": source.items.text("test", i, TEXT),
                "predicted": said[n][0],
                "network": said[n][1],
                "true": said[n][2],
                "trust": None if trust is None or n >= len(trust) else int(trust[n]),
            }
            for n, i in enumerate(rows)
        ],
        "likely": _likely(rows, said, source),
        "evidence": found.packed(),
        "nearest": {kernel: {"index": pack(index), "value": pack(value)} for kernel, (index, value) in nearest.items()},
    }
    return Drawing(_skeleton(said, rows, source), published)


def _nearest(kernel: str, t: int, source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Indices and similarities of the nearest training items of every explained item."""
    index, value = (source.array(f"explain.nearest_{part}.{kernel}") for part in ("index", "value"))
    if index is None or value is None:
        return np.full((t, 0), -1, dtype=np.int64), np.zeros((t, 0))
    return np.asarray(index, dtype=np.int64), np.asarray(value, dtype=np.float64)


def _likely(rows: Sequence[int], said: Sequence[tuple[int, int, int]], source: Source) -> dict[str, Any] | None:
    """The most probable classes of every item and the true one, with the network's and the surrogate's probabilities."""
    probabilities, surrogate = source.array("network.test_probabilities"), source.array("explain.probability")
    if probabilities is None or (rows and max(rows) >= len(probabilities)):
        return None
    classes = np.full((len(rows), LIKELY + 1), -1, dtype=np.int64)
    of_network, of_surrogate = (np.full(classes.shape, np.nan) for _ in range(2))
    for n, i in enumerate(rows):
        row = np.asarray(probabilities[i], dtype=np.float64)
        found = list(dict.fromkeys([*np.argsort(-row, kind="stable")[:LIKELY].tolist(), said[n][2]]))
        classes[n, : len(found)] = found
        of_network[n, : len(found)] = row[found]
        if surrogate is not None:
            of_surrogate[n, : len(found)] = np.asarray(surrogate[n], dtype=np.float64)[found]
    packed = {"classes": pack(classes), "network": pack(of_network)}
    return packed if surrogate is None else {**packed, "surrogate": pack(of_surrogate)}


def _skeleton(said: Sequence[tuple[int, int, int]], rows: Sequence[int], source: Source) -> Markup:
    pictures = any(source.items.slot("test", i) is not None for i in rows)
    wrong = sum(network != true for _, network, true in said)
    differ = sum(network != predicted for predicted, network, _ in said)

    def check(name: str, words: str) -> Markup:
        return tag("label", tag("input", type="checkbox", id=f"explorer-{name}"), words, class_="check")

    chooser = tag(
        "div",
        tag(
            "div",
            tag("label", "Find a test item", for_="explorer-search", class_="hidden"),
            tag(
                "input",
                id="explorer-search",
                type="search",
                placeholder="class:3  #123  wrong  text",
                autocomplete="off",
            ),
            check("wrong", f" network wrong ({wrong:,})"),
            check("differ", f" surrogate differs ({differ:,})") if differ else None,
            tag("span", class_="soft small", id="explorer-count", role="status"),
            class_="explorer-tools",
        ),
        _search_help(),
        tag(
            "ul",
            role="listbox",
            tabindex="0",
            id="explorer-list",
            aria_label=f"{len(rows):,} test items; select with the arrow keys",
            class_="strip pictures" if pictures else "strip texts",
        ),
        class_="chooser",
    )
    panels = tag(
        "div",
        tag("div", id="explorer-head", class_="card explorer-head", aria_live="polite"),
        tag("div", id="explorer-bars", class_="card"),
        tag("div", id="explorer-box", class_="card"),
        tag("div", id="explorer-class", class_="card whole explorer-class"),
        tag("div", id="explorer-top", class_="card whole"),
        tag("div", id="explorer-influence", class_="card whole", hidden=True),
        tag("div", id="explorer-replay", class_="card whole", hidden=True),
        tag("div", id="explorer-nearest", class_="card whole"),
        class_="explorer-panels",
        id="explorer-panels",
    )
    asks = tag("noscript", tag("p", "Selecting an item needs JavaScript, which is switched off.", class_="note"))
    every = source.data.get("test_items")
    all_there = f"All {len(rows):,} test items are here" if every in (None, len(rows)) else _some(len(rows), every)
    words = tag("p", f"{all_there}.", class_="soft small")
    return tag("div", asks, words, chooser, panels, id="explorer", class_="explorer")


def _search_help() -> Markup:
    """What may be searched for, and the keys; folded."""
    terms = (
        ("class:3, true:3, predicted:3", "items by class: either, the true one, or the predicted one"),
        ("#123, id:name", "one item by its number or name"),
        (
            "wrong, right, differs, doubtful",
            "by the network's answer, the surrogate's, or a doubtful label among the support",
        ),
        ("trust:high", "items by the trust in their explanation"),
        ("123", "an item, a class or a word of a text"),
        ('word, "two words"', "texts and names"),
        ("/", "the key to search"),
        ("← → or J K", "the keys for another item"),
    )
    rows = [tag("div", tag("dt", tag("code", what)), tag("dd", means)) for what, means in terms]
    return tag("details", tag("summary", "How to search"), tag("dl", *rows, class_="terms small"), class_="search-help")


def _some(count: int, every: Any) -> str:
    return f"{count:,} of the {number(every)} test items are here: mistakes, where the surrogate differs, some of every class"
