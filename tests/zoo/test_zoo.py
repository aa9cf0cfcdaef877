"""Every case of the zoo gets what its user would rightly demand: the right numbers, or a refusal; nothing is changed.

A few cases run here, in every test run. `make guard` runs all of them, a family at a time and in a process of its own:
there the run-time type checks of the tests are off, which are slow, draw from Python's random state, and would refuse a
mistyped option before the package can. `PYTHONPATH=src:tests python -m zoo GLOB` runs single cases the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.catalogue import CASES
from zoo.judge import judge

TESTS = Path(__file__).parents[1]
FAMILIES = list(dict.fromkeys(case.family for case in CASES.values()))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.quick])
def test_case(name: str) -> None:
    case = CASES[name]
    verdict = judge(case)
    assert verdict.holds(case.expect), f"expected {case.expect} ({case.why}), got {verdict}"


@pytest.mark.guard
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    sources = [path for path in sys.path if (Path(path) / "ntkscope").is_dir()]  # the package that these tests import
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sources, str(TESTS)])}
    command = [sys.executable, "-W", "ignore", "-m", "zoo", "--bad", family]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"0 of {sum(case.family == family for case in CASES.values())} cases" in found.stdout


def test_every_family_has_cases() -> None:
    families = [case.family for case in CASES.values()]
    assert min(families.count(family) for family in FAMILIES) >= 12
    assert {case.expect for case in CASES.values()} == {"exact", "refused", "either"}
