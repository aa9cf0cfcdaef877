"""Every case of the zoo gets what its user would rightly demand: the right numbers, or a refusal; nothing is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.catalogue import CASES
from zoo.judge import judge

TESTS = Path(__file__).parents[1]
EVERY = [pytest.param(name, marks=() if case.quick else pytest.mark.guard) for name, case in CASES.items()]


@pytest.mark.parametrize("name", EVERY)
def test_case(name: str) -> None:
    case = CASES[name]
    verdict = judge(case)
    assert verdict.holds(case.expect), f"expected {case.expect} ({case.why}), got {verdict}"


@pytest.mark.guard
def test_the_random_state_of_python_without_type_checks() -> None:
    """In a process of its own: the run-time type checks of the tests draw from that state."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])}
    names = ["process_state_moved*", "module_registered_twice*", "drawn_at_random[[]python]", "counters_and_lists"]
    command = [sys.executable, "-W", "ignore", "-m", "zoo", "--bad", *names]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_family_has_cases() -> None:
    families = [case.family for case in CASES.values()]
    assert min(families.count(family) for family in set(families)) >= 12
    assert {case.expect for case in CASES.values()} == {"exact", "refused", "either"}
