"""Help: what a τ means, one press away from wherever a page shows one; `docs/guides/reading.md` has the long version."""

from __future__ import annotations

import math
from typing import Any

from ntkscope.report.markup import Markup, tag
from ntkscope.report.numbers import as_float, number

POPOVER = "help-tau"


def same_order(tau: Any) -> str:
    """What a τ says, in one sentence: of two random items, the share of pairs in the same order is (1 + τ) / 2.

    >>> print(same_order(0.64))
    Of two random test items, network and surrogate order about 82 % the same way; this says
    nothing of wrong predictions: look there.
    """
    value = as_float(tau)
    if not math.isfinite(value):
        return "τ could not be computed: one of the two rankings is constant."
    return (
        f"Of two random test items, network and surrogate order about {50 * (1 + value):.0f} % the same way; this says"
        " nothing of wrong predictions: look there."
    )


def tau(value: Any) -> Markup:
    """A τ that says what it means when it is pressed or pointed at."""
    return tag(
        "button",
        number(value),
        type="button",
        class_="help",
        popovertarget=POPOVER,
        data_tip=same_order(value),
        aria_label=f"τ {number(value)}: what it means",
    )


def popover(regression: bool = False) -> Markup:
    """The text that opens; one per page."""
    ranked = (
        "by the network's output and by the surrogate's"
        if regression
        else "by how confident the network is of the true class and by how confident the surrogate is"
    )
    read = (
        "Read it together with R² of the outputs, which scale and offset count for, and with the trust mark."
        if regression
        else "Read it together with the agreement on the items the network gets wrong, and with the trust mark."
    )
    hidden = (
        "It needs no agreement in scale: a surrogate whose outputs are all too small can have τ = 1."
        if regression
        else "Most test items are easy and predicted correctly. A high τ can hide that both differ on the few wrong ones."
    )
    return tag(
        "div",
        tag("h3", "How to read τ"),
        tag("p", id=f"{POPOVER}-said", class_="strong"),
        tag(
            "p",
            f"Kendall's τ compares two rankings of the test items, {ranked}: 1 is the same order, 0 no relation, −1 the"
            " reverse. The share of pairs in the same order is (1 + τ) / 2.",
        ),
        tag(
            "ul",
            tag("li", hidden),
            tag("li", read),
            tag("li", "Its interval covers the choice of test items, not another training run."),
            tag("li", "Compare τ only between surrogates of one network on the same items."),
        ),
        tag("p", "The whole story: docs/guides/reading.md in the source of ntkscope.", class_="soft small"),
        tag("button", "Close", type="button", class_="action", popovertarget=POPOVER),
        id=POPOVER,
        popover="auto",
        class_="popover",
    )
