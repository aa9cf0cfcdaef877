"""Every section keeps the contract."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from contracts.section import SectionContract, watched
from ntkscope.xray import registry
from ntkscope.xray.registry import SECTIONS
from ntkscope.xray.result import Result


class TestSummary(SectionContract):
    name = "summary"


class TestConfusion(SectionContract):
    name = "confusion"


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


def test_canary_a_field_that_is_none_is_noticed() -> None:
    @dataclass(frozen=True)
    class Row(Result):
        tau: float

    strange: list[str] = []
    (row,) = watched([{"tau": 0.5}], tuple[Row, ...], strange)
    assert (row["tau"], row.get("tua"), strange) == (0.5, None, ["Row.tua"])


def test_only_a_sections_own_file_names_it() -> None:
    """Neither the job, nor the plan, nor another section tests for a section by its name."""
    room = Path(registry.__file__).parent
    named = {
        f"{file.name}: {name}"
        for file in [*room.glob("*.py"), *room.glob("sections/*.py")]
        for name in SECTIONS
        if file.stem not in (name, "__init__") and re.search(f"[\"']({name}|section:{name})[\"']", file.read_text())
    }
    assert named == set()
