"""Views of regressions: what their sections hold is on the page, whatever it is called."""

from __future__ import annotations

from typing import Any

from contracts.view import ViewContract, read
from ntkscope.core import Record
from ntkscope.report import VIEWS
from ntkscope.report.source import Source
from ntkscope.xray.sections.explain import OutputExplanations
from ntkscope.xray.sections.problems import Double, DoubtfulTarget, OutputProblems
from ntkscope.xray.sections.summary import OutputSummary, Predicted
from ntkscope.xray.sections.surrogates import OfOutput, OutputRow, OutputSurrogates
from ntkscope.xray.verdict import Evidence
from report.fixtures.examples import example
from report.fixtures.xray import HOSTILE

NAME = HOSTILE[0]


def row(target: str, **changes: Any) -> dict[str, Any]:
    each = [example(OfOutput, output=k, rmse=0.25) for k in range(2)]
    return example(OutputRow, **{"kernel": NAME, "target": target, "r2": 0.9, "outputs": each, **changes})


class TestOutputSummary(ViewContract):
    name = "output_summary"
    data = example(
        OutputSummary,
        verdict="rich",
        why=NAME,
        evidence=[example(Evidence, what=NAME, says="rich", note=NAME)],
        r2=0.625,
        outputs=[example(Predicted, name=NAME, r2=0.625, rmse=0.125, train_r2=float("nan"))],
        surrogate_r2={NAME: 0.5, "ck": 0.375},
        best_kernel="ck",
    )

    def test_every_figure_is_there(self, made: Any) -> None:
        source = Source(Record.open(made(kind="image")))
        said = " ".join(read(VIEWS[self.name](self.section(source), source).body).text)
        for shown in ("0.625", "0.125", "0.500", "0.375", "rich"):
            assert shown in said


class TestOutputSurrogates(ViewContract):
    name = "output_surrogates"
    rows = (row("outputs"), row("targets", kernel="ck", r2=0.95), row("outputs", trivial=True, r2=1.0))
    data = example(OutputSurrogates, table=rows, network_r2=0.8)

    def test_a_trivial_fit_is_not_the_best(self, made: Any) -> None:
        source = Source(Record.open(made(kind="image")))
        body = VIEWS[self.name](self.section(source), source).body
        assert body.count("pill good") == 1
        assert body.index("pill good") < body.index("pill quiet")
        assert "Each output of" in body


class TestOutputExplain(ViewContract):
    name = "output_explain"
    data = example(OutputExplanations, main=NAME, items=[3, 0], chosen=[[0, 1], [1, 0]], intercept=[0.5, -0.25])

    def test_every_item_has_an_entry(self, made: Any) -> None:
        source = Source(Record.open(made(kind="image")))
        body = VIEWS[self.name](self.section(source), source).body
        assert body.count("<details") == 2
        assert "Constant 0.500." in body


class TestOutputProblems(ViewContract):
    name = "output_problems"
    data = example(
        OutputProblems,
        listed=[example(DoubtfulTarget, index=k, original=16 + k, score=score) for k, score in ((1, 12.0), (2, 1.0))],
        doubtful=3,
        threshold=4.0,
        duplicates=[example(Double, a=1, b=2, original_a=11, original_b=12, exact=True)],
    )

    def test_only_what_is_doubtful_is_listed(self, made: Any) -> None:
        source = Source(Record.open(made(kind="image")))
        body = VIEWS[self.name](self.section(source), source).body
        assert "#17<" in body
        assert "#18<" not in body
        assert "2 more are not listed" in body
        assert "different" in body
