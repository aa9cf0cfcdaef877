"""Silent alignment: the contract, stacked kernels and machines against plain ones, and verdicts that can fail."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, readings
from contracts.made_up import REMOVED, Changes, made_up
from ntkscope.core import NumericalError, Record
from ntkscope.measures.alignment import kernel_target_alignment
from ntkscope.surrogates import KernelRidgeLOO
from ntkscope_papers.balakrishnan_2023.alignment import stacked
from ntkscope_papers.balakrishnan_2023.alignment.claims import Most, lags, silence
from ntkscope_papers.balakrishnan_2023.alignment.silent_alignment import SilentAlignment
from ntkscope_papers.balakrishnan_2023.alignment.summary import correlations, half_time, jump, steepest
from ntkscope_papers.balakrishnan_2023.alignment.tasks import TASKS, Images, pictures

READINGS = readings("silent-alignment")


@pytest.mark.guard
class TestSilentAlignment(ExperimentContract):
    name = "silent-alignment"
    tiny = given(seeds=2, train_items=64, points=32, epochs=3, followed=2, watched=3, draws=99, drawn=["d3", "d8"])


# -- stacked kernels and machines ------------------------------------------------------------------------------------


def networks(count: int, depth: int, seed: int = 0) -> tuple[list[torch.nn.Module], dict[str, torch.Tensor]]:
    models = [
        ns.models.build("mlp", in_features=5, classes=1, widths=7, depth=depth, seed=seed + i).double()
        for i in range(count)
    ]
    names = [name for name, _ in models[0].named_parameters()]
    return models, {name: torch.stack([dict(m.named_parameters())[name].detach() for m in models]) for name in names}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_stacked_kernels_are_the_engines(depth: int) -> None:
    models, params = networks(3, depth)
    x = torch.randn(3, 9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(depth))
    stack = stacked.StackedReLU.of(models[0], params)
    K, cross = stack.kernel(x), stack.kernel(x[:, :4], x)
    for i, model in enumerate(models):
        exact = ns.kernel("trntk0", model, x[i]).dense()
        torch.testing.assert_close(K[i], exact, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(cross[i], exact[:4], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(stack.outputs(x)[i], model(x[i])[:, 0].detach())
    torch.testing.assert_close(stack.kernel(x[:1])[2], ns.kernel("trntk0", models[2], x[0]).dense())


def test_networks_that_are_no_such_chain_are_refused() -> None:
    model = ns.models.build("mlp", in_features=5, classes=1, widths=7, depth=1, activation="tanh", seed=0).double()
    params = {name: value.detach()[None] for name, value in model.named_parameters()}
    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(NumericalError, match="no chain of affine layers and ReLUs"):
        stacked.against_engine(model, params, 0, x)
    models, params = networks(2, 1)
    assert stacked.against_engine(copy.deepcopy(models[0]), params, 1, x) < 1e-12


def kernels(k: int, n: int, seed: int) -> torch.Tensor:
    F = torch.randn(k, n, n + 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return F @ F.mT


@pytest.mark.parametrize(("n", "block"), [(1, 4), (5, 4), (8, 4), (13, 5), (13, 64)])
def test_stacked_systems_are_solved(n: int, block: int) -> None:
    A, y = kernels(3, n, n), torch.randn(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = stacked.solve_stack(A.clone(), y, block)
    torch.testing.assert_close(found, torch.linalg.solve(A, y), rtol=1e-8, atol=1e-8)


def test_a_system_that_is_not_definite_is_nan_and_spoils_no_other() -> None:
    A, y = kernels(2, 9, 0), torch.ones(2, 9, dtype=torch.float64)
    A[0, 6, 6] = -1.0
    found = stacked.solve_stack(A.clone(), y, 4)
    assert found[0].isnan().all()
    torch.testing.assert_close(found[1], torch.linalg.solve(A[1], y[1]))


def test_stacked_machines_are_kernel_ridge_regressions() -> None:
    whole, random = kernels(3, 20, 4), torch.Generator().manual_seed(2)
    y = torch.randn(3, 20, dtype=torch.float64, generator=random)
    train, held, test = slice(0, 12), slice(12, 16), slice(16, 20)
    K, strengths = whole[:, train, train], (1e-3, 1e-1, 10.0)
    found = stacked.ridge_fits(K, y[:, train], (whole[:, held, train], y[:, held]), whole[:, test, train], strengths)
    for i in range(3):
        errors, predictions = [], []
        for strength in strengths:
            ridge = KernelRidgeLOO([strength]).fit(K[i], y[i, train])
            errors.append(np.square(ridge.predict(whole[i, held, train]) - y[i, held].numpy()).mean())
            predictions.append(ridge.predict(whole[i, test, train]))
        np.testing.assert_allclose(found.errors[i], errors, rtol=1e-9)
        assert int(found.chosen[i]) == int(np.argmin(errors))
        np.testing.assert_allclose(found.predictions[i], predictions[int(np.argmin(errors))], rtol=1e-8)


def test_stacked_alignments_are_the_measures() -> None:
    K, y = kernels(3, 11, 5), torch.randn(3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = stacked.centred_alignments(K, y)
    expected = [kernel_target_alignment(K[i], y[i], centred=True) for i in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert stacked.centred_alignments(torch.zeros(1, 4, 4, dtype=torch.float64), y[:1, :4]).isnan().all()


# -- what is read from a path ----------------------------------------------------------------------------------------


def test_half_times() -> None:
    times = np.linspace(0, 2, 21)
    assert half_time(np.minimum(times, 1.0), times, 0.1) == pytest.approx(0.5)
    assert math.isnan(half_time(np.zeros(21), times, 0.0))
    assert math.isnan(half_time(0.05 * times, times, 0.2))
    assert math.isnan(half_time(np.where(times > 1, np.nan, times), times, 0.1))


def test_a_planted_jump_is_dated_and_its_lag_paired() -> None:
    random, times = np.random.default_rng(0), np.arange(201) / 10
    cosine, late = (
        np.stack([(times >= 3 + s + delay) + 0.01 * random.normal(size=201) for s in range(6)]) for delay in (0, 2)
    )
    jumps = {"cosine": jump(cosine, times, 10, 99), "correlation": jump(late, times, 10, 99)}
    for how in ("epoch", "change"):
        mean, low, high, seeds = lags(jumps, how=how)["correlation"].values()
        assert mean == pytest.approx(2, abs=0.9)
        assert low <= mean <= high
        assert seeds == 6
    together = np.stack([(times >= 3) + 0.01 * random.normal(size=201) for _ in range(6)])
    assert jump(together, times, 10, 99)["common"]["p"] <= 0.02
    alone = jump(together[:1], times, 10, 99)["common"]
    assert alone["p"] is None
    assert "two seeds" in alone["reason"]


def test_undefined_moments_are_left_out_not_filled() -> None:
    series = np.tile(np.arange(41.0), (3, 1)) ** 2
    series[1, 5] = np.nan
    at, size = steepest(series, 10)
    assert np.isnan(at[1])
    assert np.isnan(size[1])
    found = jump(series, np.arange(41) / 10, 10, 99)
    assert found["seeds"] == 2
    assert np.isnan(found["change"][1])


def test_constant_predictions_correlate_with_nothing() -> None:
    random = np.random.default_rng(1)
    network = random.normal(size=200)
    assert np.isnan(correlations(1 + 1e-5 * network, network, 1.0))
    assert np.isnan(correlations(network, np.zeros(200), 1.0))
    assert correlations(2 + 0.1 * network, network, 1.0) == pytest.approx(1)


def test_silence_needs_an_interval_above_zero() -> None:
    def half(lag: list[Any]) -> dict[str, Any]:
        return {"alignment": [1.0] * len(lag), "loss": [2.0] * len(lag), "lag": lag, "loss fallen": [0.1] * len(lag)}

    assert silence(half([1.0, 1.2, 0.9, 1.1]))["silent"] is True
    assert silence(half([1.0, -1.2, 0.9, -1.1]))["silent"] is False
    assert silence(half([1.0, None, None]))["silent"] is None
    assert not Most([]).holds


def test_pictures_are_centred_two_class_regressions() -> None:
    config = SilentAlignment.at("smoke")
    split = pictures(config, Images("mnist", "small"), None)
    sizes = [len(part) for part in (split.train, split.validation, split.test) if part is not None]
    assert sizes == [96, 32, 32]
    assert set(split.train.y.tolist()) == {-1.0, 1.0}
    assert float(split.train.x.mean(0).abs().max()) < 1e-5
    assert float(split.train.x.square().mean()) == pytest.approx(1, rel=1e-5)


# -- verdicts --------------------------------------------------------------------------------------------------------

S = 10


def constant(value: float | None) -> list[float | None]:
    return [value] * S


def epochs(values: dict[str, float | None]) -> dict[str, Any]:
    return {key: constant(value) for key, value in values.items()}


def cosines(**changes: Any) -> dict[str, Any]:
    flat = {str(epoch): 0.3 for epoch in range(41)} | {"end": 0.3}
    rows = {name: epochs(dict(flat)) for name in ("mean", "largest", "share ≥ 0.5", "share ≥ 0.7", "share ≥ 0.8")}
    return {**rows, "first above 0.5": constant(16.0), **changes}


def jumped(epoch: float, p: float = 0.001) -> dict[str, Any]:
    return {
        "epoch": constant(epoch),
        "change": constant(epoch),
        "common": {"epoch": epoch, "share": 0.5, "p": p, "reason": None},
    }


def row(**more: Any) -> dict[str, Any]:
    half = {"alignment": constant(1.0), "loss": constant(2.0), "lag": constant(1.0), "loss fallen": constant(0.1)}
    jumps = {name: jumped(1.2) for name in ("cosine", "correlation", "fit", "alignment", "loss")}
    steady = epochs({str(e): 0.9 for e in range(41)} | {"end": 0.95})
    return {
        "seconds": 1.0,
        "network": {"fit": constant(0.9), "spread": constant(0.9)},
        "half": half,
        "jumps": jumps,
        "cosines": cosines(),
        "machine": {"correlation": steady, "fit": steady},
        "more points": {"correlation": steady, "fit": steady, "alignment": steady},
        **more,
    }


def good() -> dict[str, Any]:
    """A record in which every published statement holds."""
    rows = {one.name: row() for one in TASKS}
    rows["d3"]["cosines"]["share ≥ 0.8"] = epochs({"0": 0.0, "1": 0.4, "end": 0.6})
    rows["d6"]["cosines"]["share ≥ 0.8"] = epochs({"0": 0.0, "1": 0.01, "end": 0.6})
    rows["d11-correlated"]["correlation at the crossing"] = constant(0.05)
    rows["d12-correlated"]["cosines"]["mean"] = epochs({"0": 0.1, "1": 0.4, "end": 0.45})
    rows["d12-correlated"]["machine"]["correlation"] = epochs({"0": 0.2, "1": 0.8, "20": 0.6, "end": 0.5})
    for name in ("mnist", "cifar10"):
        for start in ("small", "standard"):
            rows[f"{name}/{start}"]["machine"]["correlation"] = epochs({"0": 0.7, "end": 0.97})
    return rows


def moved(share: float) -> dict[str, np.ndarray]:
    """Cosines of units at the start and at the end, of which this share is new."""
    start, new = np.random.default_rng(0).normal(size=(2, S, 64))
    return {"cosines-d8": np.stack([start, (1 - share) * start + share * new], axis=1)}


def test_all_statements_hold_in_a_made_up_record_that_fits_them() -> None:
    claims = list(SilentAlignment().judge(made_up(good(), arrays=moved(0.1)), ""))
    assert {claim.id: claim.verdict for claim in claims if claim.verdict != "reproduced"} == {}
    assert len(claims) == 7


D7, D8, D11, D12 = "d7", "d8", "d11-correlated", "d12-correlated"
LATE = {(D7, "jumps", name): jumped(8.0) for name in ("cosine", "correlation", "fit")}


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        ("d7-jump-epoch2", {(D7, "jumps", "correlation", "epoch"): constant(4.0)}),
        ("d7-jump-epoch2", LATE),
        ("d7-jump-epoch2", {(D7, "jumps", "fit"): jumped(1.2, p=0.4)}),
        ("d8-static", {(D8, "cosines", "largest", "end"): constant(0.5)}),
        ("d8-static", {(D8, "cosines", "largest", "end"): [0.5, 0.5] + [0.3] * 8}),
        ("d11corr-epoch16", {(D11, "cosines", "first above 0.5"): constant(0.4)}),
        ("d11corr-epoch16", {(D11, "cosines", "first above 0.5"): constant(None)}),
        ("d11corr-epoch16", {(D11, "correlation at the crossing"): constant(0.5)}),
        ("d12corr-epoch1", {(D12, "cosines", "mean", "end"): constant(0.9)}),
        ("d12corr-epoch1", {(D12, "machine", "correlation", "end"): constant(0.9)}),
        ("fig8-d3-cosines", {("d3", "cosines", "share ≥ 0.8", "1"): constant(0.05)}),
        ("fig9-d6-cosines", {("d6", "cosines", "share ≥ 0.8", "1"): constant(0.05)}),
        ("silent-alignment-reported", {("cifar10/small", "machine", "correlation", "end"): constant(0.85)}),
        ("silent-alignment-reported", {("mnist/small", "machine", "correlation", "0"): constant(0.99)}),
    ],
)
def test_a_verdict_follows_what_was_measured(claim: str, changes: Changes) -> None:
    assert READINGS[f"relu-{claim}"](SilentAlignment(), made_up(good(), changes)).holds is False


def test_weights_that_are_drawn_anew_are_not_still() -> None:
    static = READINGS["relu-d8-static"]
    assert static(SilentAlignment(), made_up(good(), arrays=moved(0.1))).holds
    assert not static(SilentAlignment(), made_up(good(), arrays=moved(1.0))).holds
    assert "not kept" in static(SilentAlignment(), made_up(good())).other


def test_undefined_correlations_leave_too_few_seeds_for_a_verdict() -> None:
    record = made_up(good(), {(D12, "machine", "correlation", "end"): [None] * 4 + [0.5] * 6})
    claims = {c.id: c for c in SilentAlignment().judge(record, "")}
    assert claims["relu-d12corr-epoch1"].verdict == "stand-in"
    assert "6 network(s) where the check asks for 10" in claims["relu-d12corr-epoch1"].note


def test_a_missing_leg_names_the_command_that_makes_it() -> None:
    record = made_up(good(), {("cifar10/small",): REMOVED}, moved(0.1))
    claims = {claim.id: claim for claim in SilentAlignment().judge(record, "")}
    assert claims["relu-silent-alignment-reported"].verdict == "not testable here"
    assert '"cifar10/small"' in claims["relu-silent-alignment-reported"].note
    assert claims["relu-d8-static"].verdict == "reproduced"


def test_tasks_whose_arrays_were_not_kept_are_not_drawn(tmp_path: Path) -> None:
    record = Record.create(tmp_path / "run", kind="experiment", name="silent-alignment", config={})
    record.put(**good())
    assert set(SilentAlignment(drawn=("d7",)).draw(record)) == {"silence"}
