"""Figure 1 of the feature-ansatz paper: the contract, the definitions, and verdicts on records made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, made_record, readings, run_of
from ntkscope_papers.beaglehole_2024.chain_monomial import ChainMonomial
from ntkscope_papers.framework.intervals import interval

READINGS = readings("chain-monomial", "nfa-")

EXACT = ("index-convention", "nfm-agop-def", "rho-def", "agop-decomposition", "prop2", "identity-K")


@pytest.mark.guard
class TestChainMonomial(ExperimentContract):
    name = "chain-monomial"
    tiny = given(
        items=24, dimension=6, width=10, ansatz_items=16, ansatz_width=8, steps=20, draws=5, samples=20_000, seeds=2
    )
    identities = tuple(f"nfa-{name}" for name in EXACT)


def record_of(folder: Path, **metrics: Any) -> ns.Record:
    return made_record(folder, "chain-monomial", **metrics)


def test_identities_hold_and_the_printed_ptk_is_off_by_n(tmp_path: Path) -> None:
    found = ChainMonomial().identities(run_of(ChainMonomial(), seed=5))
    record = record_of(tmp_path, **{"definitions/identities": found})
    for name in ("index-convention", "nfm-agop-def", "agop-decomposition", "prop2", "identity-K"):
        assert READINGS[name](ChainMonomial(), record).holds, name
    for one in found["layers"].values():
        assert one["printed / AGOP"] == pytest.approx(found["n"])
    for key, value in (("gap of feature_matrices", 0.1), ("sizes", [[6, 6], [9, 9]]), ("asymmetry", 0.1)):
        layers = {**found["layers"], "layer1": {**found["layers"]["layer1"], key: value}}
        record = record_of(tmp_path / key, **{"definitions/identities": {**found, "layers": layers}})
        assert not READINGS["nfm-agop-def"](ChainMonomial(), record).holds, key
    found["layers"]["layer1"]["printed / AGOP"] = 1.0
    record = record_of(tmp_path / "other", **{"definitions/identities": found})
    assert not READINGS["agop-decomposition"](ChainMonomial(), record).holds


def test_the_rank_of_the_egop_is_two_less_where_four_divides_r(tmp_path: Path) -> None:
    config = ChainMonomial(samples=50_000)
    found = config.targets(run_of(config))
    assert {r: rank for r, rank in found["ranks"].items() if rank != int(r)} == {"4": 2, "8": 6, "12": 10}
    found["r = 5"]["off, of samples"] = 0.005  # 400,000 samples reach it
    record = record_of(tmp_path, **{"definitions/targets": found})
    assert READINGS["egop-chain"](ChainMonomial(), record).holds
    assert READINGS["chain-monomial"](ChainMonomial(), record).holds
    found["ranks"]["4"] = 4  # as printed
    other = record_of(tmp_path / "other", **{"definitions/targets": found})
    assert not READINGS["egop-chain"](ChainMonomial(), other).holds


def test_laws_of_the_correlation(tmp_path: Path) -> None:
    config = ChainMonomial()
    record = record_of(tmp_path, **{"definitions/correlation": config.laws_of_correlation(run_of(config, seed=1))})
    assert READINGS["rho-def"](config, record).holds


@pytest.mark.parametrize(("drawn", "holds"), [(0.04, True), (0.2, False)])
def test_the_scale_is_a_variance(tmp_path: Path, drawn: float, holds: bool) -> None:
    config = ChainMonomial(items=10, dimension=8, width=30, seeds=2, scale=drawn if holds else drawn**2)
    found = config.start(run_of(config))
    if not holds:  # read as a standard deviation, the entries are too small
        found["standard errors off"]["layer1"] = (found["variances"]["layer1"] / drawn - 1) / (2 / 480) ** 0.5
    record = record_of(tmp_path, **{"definitions/start": found})
    assert READINGS["init-scale"](ChainMonomial(), record).holds is holds
    assert READINGS["general-setting"](ChainMonomial(), record).holds


def member(rho: float, control: float, spread: float, egop: float = 0.9) -> dict[str, Any]:
    layer = {
        "rho": rho,
        "control": {"mean": control, "least": control - 0.1, "most": control + 0.1},
        "spread": spread,
        "largest possible spread": 11.27,
    }
    return {"layers": {"layer1": layer, "layer2": layer}, "egop": {"agop": egop, "nfm": egop}, "train_loss": 0.001}


@pytest.mark.parametrize(
    ("name", "changed", "holds"),
    [
        ("fig1-rho", {}, True),
        ("fig1-rho", {"rho": 0.8}, False),
        ("fig1-random-Q", {}, True),
        ("fig1-random-Q", {"control": 0.62}, False),
        ("fig1-random-Q", {"rho": 0.8}, False),
        ("fig1-ptk-spread", {}, True),
        ("fig1-ptk-spread", {"spread": 4.0}, False),
        ("egop-agop", {}, True),
        ("egop-agop", {"egop": 0.5}, False),
    ],
)
def test_published_numbers_reproduce_and_others_do_not(
    tmp_path: Path, name: str, changed: dict[str, float], holds: bool
) -> None:
    told = member(**{"rho": 0.93, "control": 0.53, "spread": 5.9, **changed})
    record = record_of(tmp_path, **{"trained/variance": {"members": [told] * 5}})
    reading = READINGS[name](ChainMonomial(), record)
    assert reading.holds is holds
    assert READINGS["ansatz"](ChainMonomial(), record).lacks == ("trained/ansatz",)


def test_interval_of_one_value_is_that_value() -> None:
    assert interval([0.5]) == {"mean": 0.5, "low": 0.5, "high": 0.5, "n": 1}
    assert interval([0.5, float("nan")])["n"] == 1
