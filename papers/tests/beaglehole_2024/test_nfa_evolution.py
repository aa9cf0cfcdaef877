"""The feature ansatz through training: stacked tangents against the engine, the contract, verdicts on made-up paths."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, made_record, readings
from ntkscope.measures.feature_ansatz import double_centred_ratio
from ntkscope_papers.beaglehole_2024 import feature_path as path
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS, SPECTRA, ChainTask, correlation, follow
from ntkscope_papers.beaglehole_2024.feature_runs import array_of, columns, key_of
from ntkscope_papers.beaglehole_2024.nfa_evolution import NFAEvolution

READINGS = readings("nfa-evolution", "nfa-")

CPU = torch.device("cpu")
TINY = given(items=16, dimension=6, width=8, test_items=8, scales=(0.01, 1.0), steps=10)


@pytest.mark.guard
class TestNFAEvolution(ExperimentContract):
    name = "nfa-evolution"
    tiny = TINY


@settings(max_examples=10, deadline=None)
@drawn(st.integers(2, 9), st.integers(5, 8), st.integers(1, 9), st.integers(0, 99))
def test_stacked_tangents_are_those_of_the_engine(items: int, dimension: int, width: int, seed: int) -> None:
    task = ChainTask(items, dimension, width, test_items=1)
    models = [task.network(0.5, seed + i).double().eval() for i in range(2)]
    stacked = {name: torch.stack([m.get_parameter(name) for m in models]) for name, _ in models[0].named_parameters()}
    x = torch.stack([task.split(seed + i).train.x.double() for i in range(2)])
    weights = path.weights_of(stacked)
    outputs = path.outputs_of(weights, x)
    for i, model in enumerate(models):
        with torch.no_grad():
            torch.testing.assert_close(outputs[i], model(x[i])[:, 0])
    found = {layer: path.covariance(b) for layer, b in path.tangents_of(weights, x).items()}
    for i, model in enumerate(models):
        if not any(bool(K[i].any()) for K in found.values()):
            continue  # dead units: the engine refuses
        features = ns.feature_matrices(model, x[i], dtype=torch.float64)
        for layer in LAYERS:
            torch.testing.assert_close(found[layer][i], features[layer].ptk, rtol=1e-10, atol=1e-14)


def test_paths_end_at_the_correlations_of_the_trained_networks() -> None:
    task, seeds = ChainTask(20, 6, 10, test_items=5), [0, 1]
    centrings = {"uncentred": None, "weights": "weights", "tangents": "tangents", "both": "both"}
    measures = {**{name: correlation(how) for name, how in centrings.items()}, "ratio": double_centred_ratio}
    run = follow(task, 0.5, seeds, measures, lr=0.2, steps=12, every=5, device=CPU)
    assert run.steps == [0, 5, 10, 12]
    for i, model in enumerate(path.finals(run.ensemble)):
        initial = task.network(0.5, seeds[i]).double().eval()
        x = run.splits[i].train.x.double()
        features = ns.feature_matrices(model, x, initial=initial, dtype=torch.float64)
        for place, layer in enumerate(LAYERS):
            for name, centring in centrings.items():
                found = run.values[name][i, -1, place]
                assert found == pytest.approx(features[layer].correlation(centring), abs=1e-9), (name, layer)
            W, W0 = features[layer].weight, features[layer].initial_weight
            assert W is not None
            assert W0 is not None
            moved, K, Kc = W - W0, features[layer].ptk, features[layer].centred_ptk
            assert Kc is not None
            terms = [float((moved.T @ moved @ moved.T @ M @ moved).trace()) for M in (Kc, K)]
            assert run.values["ratio"][i, -1, place] == pytest.approx(terms[0] / terms[1], rel=1e-8)
        with torch.no_grad():
            loss = float((model(x)[:, 0] - run.splits[i].train.y).square().mean()) / 2
        assert run.losses["train"][i, -1] == pytest.approx(loss, rel=1e-5)
    assert np.isnan(run.values["weights"][:, 0]).all()
    assert np.isfinite(run.values["uncentred"]).all()


def test_a_step_is_one_of_half_the_squared_error() -> None:
    task = ChainTask(20, 6, 10, test_items=5)
    run = follow(task, 1.0, [3], {}, lr=0.1, steps=1, every=1, device=CPU)
    model, part = task.network(1.0, 3), run.splits[0].train
    loss = (model(part.x)[:, 0] - part.y).square().mean() / 2
    W = model.get_parameter("layer2.weight")
    (slope,) = torch.autograd.grad(loss, W)
    torch.testing.assert_close(run.ensemble.params["layer2.weight"][0], (W - 0.1 * slope).detach())


def test_members_that_diverge_have_no_correlation() -> None:
    run = follow(
        ChainTask(20, 6, 10, test_items=5), 1.0, [0], {"u": correlation(None)}, lr=1e6, steps=20, every=10, device=CPU
    )
    assert math.isnan(run.values["u"][0, -1, 0])


SCALES = (0.001, 0.01, 0.1, 1.0)


def record_of(tmp_path: Path, *, uncentred: list[float], centred: list[float], losses: list[float]) -> ns.Record:
    """Paths that go straight from 0.3 (uncentred) or stay where they are (centred), by scale, for ten seeds."""
    record = made_record(tmp_path, "nfa-evolution")
    steps = [0, 5, 25, 800]
    noise = np.random.default_rng(0).normal(size=(10, 1)) * 0.01
    for spectrum in SPECTRA:
        for place, scale in enumerate(SCALES):
            rise = np.linspace(0.3, uncentred[place], len(steps)) + noise
            flat = np.full((10, len(steps)), centred[place]) + noise
            loss = np.linspace(1.0, losses[place], len(steps)) + noise
            record.array(array_of(spectrum, scale), np.stack([rise, rise, flat, flat, loss, loss]))
            told = {"steps": steps, "rows": columns(["uncentred", "centred"]), "diverged": 0, "notes": []}
            record.put(**{key_of(spectrum, scale): told})
    return record


def test_paths_as_published_reproduce_every_statement(tmp_path: Path) -> None:
    record = record_of(
        tmp_path, uncentred=[0.95, 0.9, 0.6, 0.2], centred=[0.95, 0.94, 0.92, 0.9], losses=[0.1, 0.2, 0.3, 0.4]
    )
    config = NFAEvolution(scales=SCALES, steps=800, every=300)
    for name, read in READINGS.items():
        if name != "fig2-setting":  # these paths have fewer moments
            reading = read(config, record)
            assert reading.holds, (name, reading)
            assert reading.seeds == 10


@pytest.mark.parametrize(
    ("name", "uncentred", "centred", "losses"),
    [
        ("fig2-uncentred-sensitive", [0.5] * 4, [0.9] * 4, [0.1] * 4),
        ("fig2-centred-robust", [0.5] * 4, [0.9, 0.8, 0.7, 0.6], [0.1] * 4),
        ("fig2-centred-robust", [0.9, 0.8, 0.3, 0.1], [0.5, 0.5, 0.4, 0.4], [0.1] * 4),
        ("fig2-centred-early", [0.5] * 4, [0.95, 0.95, 0.95, 0.7], [0.1] * 4),
        ("fig2-centred-early", [0.5] * 4, [1.0, 0.95, 0.95, 0.82], [0.1] * 4),
        ("uncentred-rises", [0.9, 0.4, 0.9, 0.9], [0.9] * 4, [0.1] * 4),
        ("fig7-8-robust", [0.2, 0.2, 0.6, 0.9], [0.9] * 4, [0.1] * 4),
        ("fig7-8-test-loss", [0.9] * 4, [0.9] * 4, [0.4, 0.3, 0.2, 0.1]),
    ],
)
def test_other_paths_do_not(
    tmp_path: Path, name: str, uncentred: list[float], centred: list[float], losses: list[float]
) -> None:
    record = record_of(tmp_path, uncentred=uncentred, centred=centred, losses=losses)
    assert not READINGS[name](NFAEvolution(scales=SCALES), record).holds


def test_the_other_reading_of_the_scale_is_told_where_it_was_run(tmp_path: Path) -> None:
    record = record_of(tmp_path, uncentred=[0.9, 0.8, 0.7, 0.3], centred=[0.9] * 4, losses=[0.1] * 4)
    config = NFAEvolution(scales=(0.1, 1.0))  # squared: 0.01 and 1
    told = READINGS["fig2-uncentred-sensitive"](config, record).measured
    assert told["range over s"]["layer1"]["estimate"] == pytest.approx(0.4, abs=1e-3)
    assert told["range over s, standard deviations"]["layer1"]["estimate"] == pytest.approx(0.5, abs=1e-3)


def test_the_rate_of_mse_is_that_of_twice_half_of_it(tmp_path: Path) -> None:
    tiny = {**TINY, "seeds": 1}
    whole = NFAEvolution.run("smoke", out=tmp_path / "whole", device="cpu", legs=("mse/isotropic/s1",), **tiny)
    twice = NFAEvolution.run("smoke", out=tmp_path / "twice", device="cpu", legs=("isotropic/s1",), lr=0.1, **tiny)
    found, wanted = whole.arrays[array_of("mse/isotropic", 1.0)], twice.arrays[array_of("isotropic", 1.0)]
    np.testing.assert_array_equal(found, wanted)
