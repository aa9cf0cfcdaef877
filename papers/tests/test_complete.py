"""Every experiment of the papers is an entry point, and has a test class that inherits the contract."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import ntkscope as ns
import ntkscope_papers
from ntkscope_papers.framework import Experiment

SUITE = re.compile(r"^class Test\w+\(ExperimentContract\):.*?^    name = \"([\w-]+)\"", re.MULTILINE | re.DOTALL)


def written() -> set[type[Experiment]]:
    """Every class in the package that has a name, which is what makes it an experiment."""
    found = set()
    for part in pkgutil.walk_packages(ntkscope_papers.__path__, "ntkscope_papers."):
        module = importlib.import_module(part.name)
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Experiment) and hasattr(value, "name"):
                found.add(value)
    return found


def test_every_experiment_is_an_entry_point_under_its_name() -> None:
    assert {experiment.name: experiment for experiment in written()} == dict(ns.EXPERIMENTS.items())


def test_every_experiment_has_a_test_class() -> None:
    files = Path(__file__).parent.glob("*/test_*.py")
    tested = {name for file in files for name in SUITE.findall(file.read_text(encoding="utf-8"))}
    assert tested == set(ns.EXPERIMENTS)
