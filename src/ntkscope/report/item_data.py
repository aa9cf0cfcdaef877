"""What scripts know of single training items, and the panel that opens when one is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.report.items import COLUMNS
from ntkscope.report.markup import Markup, tag
from ntkscope.report.source import Source


def items_data(source: Source) -> dict[str, Any]:
    """The training items that the page shows: place in the sheet, label, text, number, id, and the scores they have.

    Called after all views, since they decide which items are shown.
    """
    labels, suggested = source.array("labels.train"), source.array("problems.suggested")
    shares, targets = source.array("problems.share"), source.array("targets.train")
    return {
        "classes": source.classes,
        "columns": COLUMNS,
        "scores": next((name for name in source.files if name.endswith(".csv")), None),
        "train": {
            i: {
                "slot": source.items.slot("train", i),
                "label": _at(labels, i),
                "target": _row(targets, i),
                "text": source.items.text("train", i),
                "number": source.items.number("train", i),
                "id": source.items.identifier("train", i),
                "doubtful": i in source.doubtful,
                "score": _at(source.label_scores, i),
                "suggested": _at(suggested, i),
                "share": _at(shares, i),
            }
            for i in source.items.used("train")
        },
    }


def _at(values: np.ndarray | None, index: int) -> Any:
    return None if values is None or values.ndim != 1 or not 0 <= index < len(values) else values[index].item()


def _row(values: np.ndarray | None, index: int) -> list[float] | None:
    """The real targets of one item of a regression."""
    return None if values is None or values.ndim != 2 or not 0 <= index < len(values) else values[index].tolist()


def dialog() -> Markup:
    """The empty panel for one training item; `assets/items.js` fills it."""
    close = tag("button", "Close", type="button", class_="action", popovertarget="train-item")
    inner = tag("div", id="train-item-body")
    return tag(
        "div",
        inner,
        close,
        id="train-item",
        popover="auto",
        class_="popover",
        role="dialog",
        aria_label="Training item",
    )
