"""Findings: what to act on, in a line each, at the top of a page; every line leads to its part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntkscope.report.help import tau
from ntkscope.report.markup import Markup, tag
from ntkscope.report.numbers import as_float, number, percent
from ntkscope.report.source import Source, field_of, mapping

TRUST = {"high": "good", "medium": "neither", "do not trust": "bad"}
TARGETS = {
    "logits": "the network's logits",
    "labels": "the labels",
    "probabilities": "the network's probabilities",
    "outputs": "the network's outputs",
    "targets": "the targets",
}
UNKNOWN = "not assessed"
WHY_UNKNOWN = "This record was written by a version of ntkscope that did not assess it; X-ray the network again."


def findings(source: Source) -> Markup:
    """What the network gets wrong or how much it explains, doubtful labels or targets, trust: one card each."""
    data = source.section("summary").data
    first = _variance if source.regression else _wrong
    cards = [first(data, source), _doubtful(source), _trust(data, source)]
    return tag("ul", *(card for card in cards if card is not None), class_="findings")


def _variance(data: Mapping[str, Any], source: Source) -> Markup:
    said = (
        f"on {number(source.data.get('test_items'))} test items: the share of the targets' variance that it explains."
    )
    return _card(number(data.get("r2")), "R² of the network", said, href="#s-output-summary")


def wrong_items(source: Source) -> int | None:
    """How many test items the network gets wrong."""
    labels, predicted = source.array("labels.test"), source.array("network.test_prediction")
    if labels is None or predicted is None or labels.shape != predicted.shape:
        return None
    return int(np.sum(labels != predicted))


def best_row(source: Source) -> Mapping[str, Any]:
    """The surrogate that the summary calls best; in earlier records the one with the highest τ."""
    rows = source.section("surrogates").data.get("table")
    return best_of([mapping(row) for row in rows] if isinstance(rows, (list, tuple)) else [], source)


def best_of(rows: Sequence[Mapping[str, Any]], source: Source) -> Mapping[str, Any]:
    """The best of some surrogates; one that is faithful by construction does not count."""
    rated = [row for row in rows if not field_of(row, "trivial") and math.isfinite(as_float(field_of(row, "tau")))]
    summary = source.section("summary").data
    named = field_of(summary, "best_kernel"), field_of(summary, "best_target")
    for row in rated:
        if named[1] and (field_of(row, "kernel"), field_of(row, "target")) == named:
            return row
    return max(rated, key=lambda row: as_float(row["tau"]), default={})


def _card(value: Any, title: str, *said: Any, href: str, kind: str = "", find: str | None = None) -> Markup:
    link = tag("a", tag("b", value), " ", title, href=href, data_find=find, class_="finding-head")
    return tag("li", link, tag("p", *said, class_="soft"), class_=f"card finding {kind}".strip())


def _wrong(data: Mapping[str, Any], source: Source) -> Markup | None:
    stored = field_of(data, "wrong")
    wrong = stored if isinstance(stored, int) else wrong_items(source)
    if wrong is None:
        return None
    accuracy = percent(data.get("network_accuracy"))
    items = source.data.get("test_items")
    said: list[Any] = [f"of {number(items)} test items (accuracy {accuracy}). "]
    agreed = as_float(field_of(data, "agreement_wrong"))
    if wrong and agreed == agreed:
        said.append(
            f"The surrogate gives the network's own wrong answer on {round(agreed * wrong)} of them ({percent(agreed, 0)})."
        )
    title = "wrong prediction" if wrong == 1 else "wrong predictions"
    return _card(number(wrong), title, *said, href="#s-explain", find="wrong" if wrong else None)


def _doubtful(source: Source) -> Markup | None:
    problems = source.section("problems")
    if problems.status != "done":
        return None
    items = f"{number(source.data.get('train_items'))} training items"
    if problems.of_regression:
        count, what = int(problems.data["doubtful"]), "target"
        said = f"of {items}: left out of training, they would be predicted far from their target."
    else:
        count, what = len(source.doubtful), "label"
        said = f"of {items}: left out of training, they would be classified differently. Review them one by one."
        said = said if count else f"among {items}."
    return _card(number(count), f"doubtful {what}{'' if count == 1 else 's'}", said, href=f"#{problems.anchor}")


def _trust(data: Mapping[str, Any], source: Source) -> Markup:
    word = str(field_of(data, "trust") or UNKNOWN)
    why = str(field_of(data, "trust_why") or (WHY_UNKNOWN if word == UNKNOWN else ""))
    row = {} if source.regression else best_row(source)
    said: list[Any] = [why]
    if row:
        target = TARGETS.get(str(field_of(row, "target")), "")
        name = f" Best surrogate: {source.kernel_name(row['kernel'])}{', fitted to ' if target else ''}{target}, τ "
        said += [name, tau(row["tau"]), "."]
    link = tag(
        "a",
        "Trust in the explanations: ",
        tag("b", word),
        href=f"#{source.section('surrogates').anchor}",
        class_="finding-head",
    )
    return tag("li", link, tag("p", *said, class_="soft"), class_=f"card finding trust {TRUST.get(word, 'quiet')}")
