"""Findings: what to act on, in a line each, at the top of a page; every line leads to its part."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.report.help import tau
from ntkscope.report.markup import Markup, tag, text
from ntkscope.report.numbers import as_float, number, percent
from ntkscope.report.source import Source, mapping, names, rows_of

TRUST = {"high": "good", "medium": "neither", "do not trust": "bad"}
LACKING = {"skipped": "left out", "failed": "it failed", "waiting": "not computed yet"}
TARGETS = {
    "logits": "the network's logits",
    "labels": "the labels",
    "probabilities": "the network's probabilities",
    "outputs": "the network's outputs",
    "targets": "the targets",
}


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


def best_of(rows: Sequence[Mapping[str, Any]], source: Source) -> Mapping[str, Any]:
    """The surrogate that the summary calls best, else that of the highest τ; one faithful by construction does not count."""
    rated = [row for row in rows if not row.get("trivial") and math.isfinite(as_float(row.get("tau")))]
    summary = source.section("summary").data
    named = summary.get("best_kernel"), summary.get("best_target")
    called = (row for row in rated if named[1] and (row.get("kernel"), row.get("target")) == named)
    return next(called, None) or max(rated, key=lambda row: as_float(row["tau"]), default={})


def _card(value: Any, title: str, *said: Any, href: str, kind: str = "", find: str | None = None) -> Markup:
    link = tag("a", tag("b", value), " ", title, href=href, data_find=find, class_="finding-head")
    return tag("li", link, tag("p", *said, class_="soft"), class_=f"card finding {kind}".strip())


def _wrong(data: Mapping[str, Any], source: Source) -> Markup | None:
    """Also of a record whose summary was left out: the network's predictions are in it from the start."""
    predicted, labels = source.array("network.test_prediction"), source.array("labels.test")
    wrong = data.get("wrong")
    if not isinstance(wrong, int) and predicted is not None and labels is not None and predicted.shape == labels.shape:
        wrong = int((predicted != labels).sum())
    items = source.data.get("test_items")
    if not isinstance(wrong, int) or not isinstance(items, int) or not items:
        return None
    said: list[Any] = [f"of {number(items)} test items (accuracy {percent(1 - wrong / items)}). "]
    agreed = as_float(data.get("agreement_wrong"))
    if wrong and agreed == agreed:
        said.append(
            f"The surrogate gives the network's own wrong answer on {round(agreed * wrong)} of them ({percent(agreed, 0)})."
        )
    title = "wrong prediction" if wrong == 1 else "wrong predictions"
    return _card(number(wrong), title, *said, href="#s-explain", find="wrong" if wrong else None)


def left_out(source: Source) -> Markup | None:
    """How much of the data was used, what was not computed, and the command that adds it; None if nothing is missing."""
    missing = Missing(source)
    used = [said for said in (missing.used, missing.gradients) if said]
    if not (used or missing.sections or missing.kernels):
        return None
    parts = [tag("p", tag("b", "Used: "), f"{'; '.join(used)}.")] if used else []
    lacking = [tag("a", section.title, href=f"#{section.anchor}") for section in missing.sections]
    lacking += [text(source.kernel_name(name)) for name in missing.kernels]
    if lacking:
        parts.append(tag("p", tag("b", "Left out: "), Markup(", ".join(lacking)), "."))
    for said, command in missing.commands():
        shown = tag("pre", tag("code", command), class_="command", tabindex="0", aria_label="Command that adds it")
        parts += [tag("p", said), shown]
    return tag("div", *parts, class_="note", id="left-out")


class Missing:
    """What an X-ray left out for want of time, and the commands that add it."""

    def __init__(self, source: Source) -> None:
        self.record, self.plan = source.record, mapping(source.metrics.get("plan"))
        entries = {
            section.name: mapping(source.metrics.get(f"section:{section.name}")) for section in source.sections()
        }
        self.late = [name for name, entry in entries.items() if entry.get("late")]
        self.sections = [
            section
            for section in source.sections()
            if section.status in ("failed", "waiting") or section.name in self.late
        ]
        self.kernels = [*names(self.plan.get("unplanned")), *names(source.metrics.get("left_out"))]
        self.used = str(source.data.get("subsampled") or "").rstrip(".")
        self.gradients = str(self.plan.get("gradients") or "")

    def commands(self) -> list[tuple[str, str]]:
        """What each command does, in words, and the command."""
        found = []
        budget = as_float(mapping(self.plan.get("budget")).get("time"))
        if self.kernels or self.late:
            steps = [*(f"kernel {name}" for name in self.kernels), *(f"section {name}" for name in self.late)]
            seconds = sum(as_float(mapping(self.plan.get("steps")).get(step)) for step in steps)
            pace = as_float(self.plan.get("pace"))
            enough = 2 * seconds * (pace if pace > 1 else 1.0)
            said = "This adds what was left out; what is finished is not computed again:"
            found.append((said, self._command(max(enough, budget), str(self.record.folder))))
        used, total = as_float(self.plan.get("train")), as_float(self._data.get("train_total"))
        if "would not fit" in self.used and budget == budget and used > 0:
            said = "With more time all items are used, in a folder of its own:"
            found.append((said, self._command(budget * (total / used) ** 2, f"{self.record.folder}-all")))
        return found

    @property
    def _data(self) -> Mapping[str, Any]:
        return mapping(self.record.metrics.get("data"))

    def _command(self, seconds: float, out: str) -> str:
        """The command of this X-ray with so much time, or how to call it from Python."""
        time = f"{math.ceil(seconds / 60)}m" if math.isfinite(seconds) else "none"
        words = shlex.split(str(self.record.to_json().get("command") or ""))
        verb = next((place for place, word in enumerate(words) if word in ("xray", "demo")), None)
        if verb is None:
            return f'ns.xray(…, out={out!r}, budget="{time}"), otherwise as before'
        words = ["ntkscope", "xray", *(["--demo"] if words[verb] == "demo" else []), *words[verb + 1 :]]
        for place, word in reversed(list(enumerate(words))):
            option = word.partition("=")[0]
            if option in ("--time", "--out"):
                del words[place : place + (2 if word == option else 1)]
        return shlex.join([*words, "--time", time, "--out", out])


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
    summary = source.section("summary")
    word = str(data.get("trust") or "not measured")
    lacking = f"The summary is not part of this X-ray ({summary.why or LACKING.get(summary.status, summary.status)})."
    row = {} if source.regression else best_of(rows_of(source.section("surrogates").data, "table"), source)
    said: list[Any] = [data.get("trust_why") if data.get("trust") else lacking]
    if row:
        target = TARGETS.get(str(row.get("target")), "")
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
