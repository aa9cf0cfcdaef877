"""Views of regressions: what their sections hold is on the page, whatever it is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from contracts.view import ViewContract, read
from ntkscope.core import Record
from ntkscope.report import VIEWS
from ntkscope.report.source import Source
from report.fixtures.xray import HOSTILE

NAME = HOSTILE[0]
NEAR = {"a": 1, "b": 2, "original_a": 11, "original_b": 12, "similarity": 0.999, "distance": 0.0}


def row(target: str, **changes: Any) -> dict[str, Any]:
    ends = {f"{name}{end}": 0.9 for name in ("r2", "tau") for end in ("", "_low", "_high")}
    worst = {"worst_r2": 0.8, "worst_r2_low": 0.7, "worst_tau_low": 0.6}
    each = [{"output": k, "rmse": 0.25, **ends} for k in range(2)]
    more = {"kernel": NAME, "alpha": 0.1, "trivial": False, "seconds": 0.5, "converged": True, "r2_targets": 0.75}
    return {"target": target, **ends, **worst, **more, "outputs": each, **changes}


class TestOutputSummary(ViewContract):
    name = "output_summary"
    data: ClassVar[Mapping[str, Any] | None] = {
        "verdict": "rich",
        "score": 0.9,
        "why": NAME,
        "evidence": [{"what": NAME, "value": 1.0, "says": "rich", "note": NAME}],
        "r2": 0.625,
        "outputs": [{"name": NAME, "r2": 0.625, "rmse": 0.125, "spread": 2.0, "train_r2": float("nan")}],
        "surrogate_r2": {NAME: 0.5, "ck": 0.375},
        "best_kernel": "ck",
        "best_target": "outputs",
        "trust": "high",
        "trust_why": NAME,
    }

    def test_every_figure_is_there(self, made: Any) -> None:
        source = Source(Record.open(made(kind="image")))
        said = " ".join(read(VIEWS[self.name](self.section(source), source).body).text)
        for shown in ("0.625", "0.125", "0.500", "0.375", "rich"):
            assert shown in said


class TestOutputSurrogates(ViewContract):
    name = "output_surrogates"
    data: ClassVar[Mapping[str, Any] | None] = {
        "table": [row("outputs"), row("targets", kernel="ck", r2=0.95), row("outputs", trivial=True, r2=1.0)],
        "network_r2": 0.8,
    }

    def test_a_trivial_fit_is_not_the_best(self, made: Any) -> None:
        source = Source(Record.open(made(kind="image")))
        body = VIEWS[self.name](self.section(source), source).body
        assert body.count("pill good") == 1
        assert body.index("pill good") < body.index("pill quiet")
        assert "Each output of" in body


class TestOutputExplain(ViewContract):
    name = "output_explain"
    data: ClassVar[Mapping[str, Any] | None] = {
        "main": NAME,
        "target": "outputs",
        "items": [3, 0],
        "chosen": [[0, 1], [1, 0]],
        "intercept": [0.5, -0.25],
        "k": 4,
    }

    def test_every_item_has_an_entry(self, made: Any) -> None:
        source = Source(Record.open(made(kind="image")))
        body = VIEWS[self.name](self.section(source), source).body
        assert body.count("<details") == 2
        assert "Constant 0.500." in body


class TestOutputProblems(ViewContract):
    name = "output_problems"
    data: ClassVar[Mapping[str, Any] | None] = {
        "listed": [
            {"index": 1, "original": 17, "output": 0, "target": 9.0, "predicted": 1.5, "score": 12.0},
            {"index": 2, "original": 18, "output": 0, "target": 2.0, "predicted": 1.5, "score": 1.0},
        ],
        "doubtful": 3,
        "threshold": 4.0,
        "loo_r2": 0.5,
        "duplicates": [{**NEAR, "same_label": False, "exact": True}],
    }

    def test_only_what_is_doubtful_is_listed(self, made: Any) -> None:
        source = Source(Record.open(made(kind="image")))
        body = VIEWS[self.name](self.section(source), source).body
        assert "#17<" in body
        assert "#18<" not in body
        assert "2 more are not listed" in body
        assert "different" in body
