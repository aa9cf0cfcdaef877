"""Every section keeps the contract, and none is without a test."""

from __future__ import annotations

from contracts.section import SectionContract
from ntkscope.xray.registry import SECTIONS


class TestSummary(SectionContract):
    name = "summary"


class TestSurrogates(SectionContract):
    name = "surrogates"


class TestExplain(SectionContract):
    name = "explain"


class TestProblems(SectionContract):
    name = "problems"


class TestKernel(SectionContract):
    name = "kernel"


class TestLayers(SectionContract):
    name = "layers"


class TestComputed(SectionContract):
    name = "computed"


def test_every_section_is_held_to_the_contract() -> None:
    assert {suite.name for suite in SectionContract.__subclasses__()} == set(SECTIONS)
