"""The claims are the ledger: every statement once and complete; beside a ledger of the papers, with its ids and its figures."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import ntkscope as ns
from contracts.experiment import judged, made_record
from ntkscope.core import Record
from ntkscope_papers.framework.claims import Reading, Statement, claim
from ntkscope_papers.framework.pages import PAPERS

LEDGER = Path(__file__).resolve().parents[3] / "shared" / "claims"
DOCUMENTS = {
    "surrogate": 64,
    "conjugate": 57,
    "shift": 21,
    "probes": 21,
    "spectra": 52,
    "relu": 63,
    "ntkreview": 29,
    "linearized": 58,
    "nfa": 66,
    "own": 39,
}
NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e-?\d+)?(?!\w)")
DERIVED = {  # figures that follow from those of the ledger, and do not stand in it
    "nfa-general-setting": "no biases: 0 of them",
    "nfa-nfm-agop-def": "1/n",
    "nfa-ntk-limit": "the exponent of 1/width",
    "probes-ncc-plateaus": "the hundred components of the statement before it",
    "relu-rbf-overfit-ntk-underfit": "near zero",
    "shift-m-split": "halves of 300; no tweet is in both",
    "spectra-theorem-4-2-path": "the index t + 1",
    "surrogate-embedding-inconsistent": "a difference of two rows of Table 2",
    "surrogate-proj-pntk-weakest-clean": "a difference of two rows of Table 3",
    "surrogate-table4-times": "7.4 minutes in hours",
}
RECORDS = {path.parent.name: Record.open(path.parent) for path in sorted(PAPERS.glob("*/results/*/record.json"))}
SETTINGS = {"linearized-alexnet-overparam", "probes-layer-sizes", "probes-protocol"}  # arithmetic, which needs no data

IN_PARTS = [
    name for name, entry in ns.EXPERIMENTS.items() if "im_2021" not in entry.__module__
]  # those judge whole runs


def statements() -> list[Statement]:
    return [statement for entry in ns.EXPERIMENTS.values() for statement in entry.published()]


def numbers(value: Any) -> set[float]:
    """Every number in a text or in nested values."""
    if isinstance(value, Mapping):
        return numbers([*value.keys(), *value.values()])
    if isinstance(value, list | tuple):
        return {number for item in value for number in numbers(item)}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {float(value)}
    return {float(found.replace(",", "")) for found in NUMBER.findall(str(value))}


def unknown(statement: Statement, entry: Mapping[str, Any]) -> list[float]:
    """The published figures that the ledger's entry does not have, as they are or as percentages."""
    known = numbers([entry.get("values"), *(str(item) for item in entry.values())])
    return [
        figure
        for figure in sorted(numbers(statement.values))
        if not any(math.isclose(figure * unit, other, rel_tol=1e-8) for unit in (1, 100, 0.01) for other in known)
    ]


def test_every_statement_is_made_once_and_is_complete() -> None:
    every = statements()
    ids = [statement.id for statement in every]
    assert len(set(ids)) == len(ids)
    assert {start: sum(name.startswith(f"{start}-") for name in ids) for start in DOCUMENTS} == DOCUMENTS
    assert sum(DOCUMENTS.values()) == len(ids)
    for statement in every:
        assert statement.source, statement.id
        assert statement.values not in (None, "", {}, []), statement.id
        assert statement.check not in ("", "reported", "none"), statement.id


@pytest.mark.parametrize("name", IN_PARTS)
def test_what_was_not_run_says_with_which_command_it_is(name: str, tmp_path: Path) -> None:
    """A record without results: every statement is there, and only what is arithmetic has a measured value."""
    claims = judged(made_record(tmp_path, name))
    assert set(claims) == {statement.id for statement in ns.EXPERIMENTS[name].published()}
    untested = [claim for claim in claims.values() if claim.verdict == "not testable here"]
    assert all(claim.measured is None for claim in untested)
    assert any(f"ntkscope run {name} --scale paper" in claim.note for claim in untested)


@pytest.fixture(name="entries", scope="module")
def _entries() -> dict[str, Any]:
    if not LEDGER.is_dir():
        pytest.skip(
            f"no ledger of the papers beside the checkout ({LEDGER.parent.name}/{LEDGER.name}): nothing to compare"
        )
    return {
        entry["id"]: entry
        for path in LEDGER.glob("*.yaml")
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))
    }


def test_ids_and_figures_are_those_of_the_ledger(entries: Mapping[str, Any]) -> None:
    published = {statement.id: statement for statement in statements() if not statement.id.startswith("own-")}
    assert set(published) == set(entries)
    other = {name: found for name, statement in published.items() if (found := unknown(statement, entries[name]))}
    assert set(other) == set(DERIVED), other


def test_what_is_not_available_is_never_called_reproduced(entries: Mapping[str, Any]) -> None:
    """A statement whose data or weights the ledger does not have is judged on a stand-in, unless it is arithmetic."""
    elsewhere = {name for name, entry in entries.items() if entry["data_available"] != "yes"} - SETTINGS
    for name, record in RECORDS.items():
        plain = {c.id for c in record.claims if c.outcome in ("reproduced", "not reproduced")}
        assert not plain & elsewhere, name


def test_what_was_not_reproduced_has_a_reason_and_nothing_else_has() -> None:
    why = tomllib.loads((PAPERS / "reasons.toml").read_text(encoding="utf-8"))
    failed = {
        c.id for name, record in RECORDS.items() if name == record.name for c in record.claims if c.holds is False
    }
    assert set(why) == {name for name in failed if not name.startswith("own-")}
    assert all(len(words) > 20 for words in why.values())


def test_canary_another_figure_is_noticed() -> None:
    statement = claim("x", "Table 1", {"tau": 0.71, "share": "45 %"}, "within 0.1")(
        lambda config, record: Reading(None)
    )
    assert unknown(statement, {"values": {"tau": 0.71}, "statement": "a share of 0.45"}) == []
    assert unknown(statement, {"values": {"tau": 0.72}, "statement": "a share of 0.45"}) == [0.71]
