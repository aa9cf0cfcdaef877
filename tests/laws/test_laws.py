"""Every public function obeys the laws.

The tables say how valid arguments are drawn and how results follow them; `laws.py` has the laws. What is known to break one is
in `known.py`, one line each: it must still break (else its line goes), and nothing beside it may.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laws.every import CASES, LONG, SLOW, all_broken
from laws.known import KNOWN
from laws.laws import LAWS, scale
from laws.table import Case

EXPONENTS = (-200, -150, 150, 200)


def judged(case: Case, broken: list[str]) -> None:
    """Nothing breaks a law but what is known to, and all of that still does."""
    known = KNOWN.get(case.name, ())
    new = [what for what in broken if not what.startswith(known)]
    assert not new, f"{case.name}: {len(new)} broken\n" + "\n".join(new[:30])
    mended = [start for start in known if not any(what.startswith(start) for what in broken)]
    assert not mended, f"{case.name} now obeys: take {mended} out of known.py"
    if known:
        pytest.xfail(f"{len(broken)} known: {broken[0]}")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files that are not there are not there, and nothing is written beside the tests."""
    monkeypatch.chdir(tmp_path)


def marked(case: Case) -> Any:
    marks = [pytest.mark.nightly] if case.name in LONG else [pytest.mark.guard] if case.name in SLOW else []
    return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.wrong_type
@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_laws(case: Case) -> None:
    judged(case, all_broken(case))


@pytest.mark.wrong_type
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=pytest.mark.nightly if case.name in SLOW else pytest.mark.guard)
        for case in CASES
        if case.name not in {*KNOWN, *LONG}
    ],
)
@settings(max_examples=3, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), exponent=st.sampled_from(EXPONENTS))
def test_drawn_arguments(case: Case, seed: int, exponent: int) -> None:
    """Other arguments than those of `test_laws`, and other scales."""
    for law in ("valid", "order", "kinds", "labels", "not finite", "degenerate"):
        assert not list(LAWS[law](case, seed)), law
    assert not list(scale(case, seed, exponent))
