"""Label review: doubtful training items one by one, with the evidence, and a decision on each that stays in the browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.core.records.record_id import record_id
from ntkscope.report.markup import Markup, tag
from ntkscope.report.source import Source, mapping


def review(rows: Sequence[tuple[int, Mapping[str, Any]]], source: Source) -> tuple[Markup, dict[str, Any]]:
    """The panel, which `assets/review.js` fills, and its data; `rows`: places in the section's list, and the doubtful items."""
    index, value = source.array("problems.neighbour_index"), source.array("problems.neighbour_value")
    items = []
    for place, row in rows:
        i = int(row["index"])
        near: list[tuple[int, float]] = []
        if index is not None and value is not None and place < min(len(index), len(value)):
            near = [(int(j), float(v)) for j, v in zip(index[place], value[place], strict=True) if j >= 0]
        for j in (i, *(j for j, _ in near)):
            source.items.slot("train", j)
        items.append(
            {
                "index": i,
                "original": int(row.get("original", i)),
                "label": int(row["label"]),
                "suggested": int(row["suggested"]),
                "score": row["score"],
                "near": near,
            }
        )
    about = mapping(source.metrics.get("model"))
    data = {
        "record": record_id(source.record),
        "name": source.record.name,
        "model": str(about.get("name", "")),
        "data": str(source.data.get("name") or ""),
        "classes": source.classes,
        "items": items,
    }
    return _panel(len(items)), data


def _panel(count: int) -> Markup:
    def button(words: str, id_: str, **more: Any) -> Markup:
        return tag("button", words, type="button", class_="action", id=f"review-{id_}", **more)

    tools = tag(
        "div",
        button("← Previous", "previous"),
        button("Next →", "next"),
        tag("label", tag("input", type="checkbox", id="review-open"), " only undecided", class_="check"),
        tag("span", f"0 of {count:,} decided", id="review-progress", class_="soft small", role="status"),
        tag("span", class_="spread"),
        button("Save as JSON", "json"),
        button("Save as CSV", "csv"),
        tag(
            "label",
            "Load a review",
            tag("input", type="file", id="review-load", accept=".json", class_="hidden"),
            class_="action like-button",
        ),
        class_="review-tools",
    )
    words = tag(
        "p",
        "Decisions stay in this browser until you save them; ",
        tag("code", "from ntkscope.xray import read_review"),
        " to read the saved file. Keys: A accept, K keep, U undecided, ← and →.",
        class_="soft small",
    )
    asks = tag(
        "noscript",
        tag("p", "Reviewing needs JavaScript, which is switched off; the table below has every item.", class_="note"),
    )
    body = tag(
        "div",
        id="review-body",
        class_="card review-body",
        tabindex="0",
        role="group",
        aria_label="The label under review",
    )
    note = tag("p", id="review-note", class_="note", role="status", hidden=True)
    return tag("div", asks, tools, note, body, words, id="review", class_="review")
