"""Spectra of the weights: planted directions are found, noise is left alone, and the plan knows what it costs."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ntkscope as ns
from ntkscope.core import Record, generator
from ntkscope.kernels.costs import Rates
from ntkscope.xray.budget import Budget
from ntkscope.xray.plan import fewer_items, make_plan, section_step
from ntkscope.xray.sections import weight_spectra
from ntkscope.xray.sections.weight_spectra import PERMUTED, Layer, Spectra, corrected, holm, kept_values
from xray.small import blobs, only, workload

RATES = Rates(0.05, 1e-3, 1e-5, 1e-4, 2e-10, 1e-10, 1e-8, 24_000, 10)


def network() -> nn.Module:
    """A convolution with a planted direction, a random layer large enough for a test, and a small readout."""
    draw = generator(0, "weight spectra")
    model = nn.Sequential(
        nn.Unflatten(1, (1, 1, 5)),
        nn.Conv2d(1, 64, (1, 5)),
        nn.Tanh(),
        nn.Conv2d(64, 60, 1),
        nn.Flatten(),
        nn.Linear(60, 60),
        nn.Linear(60, 3),
    )
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) / p[0].numel() ** 0.5)
        model[3].weight += (
            4 * torch.outer(torch.ones(60), torch.ones(64) - 2 * (torch.arange(64) % 2))[..., None, None] / 62
        )
    return model


def xrayed(folder: Path, model: nn.Module, **options: Any) -> Record:
    train, test = blobs(n=30)
    with only(weight_spectra.SECTION):
        return ns.xray(model, train, test, folder, kernels=["ck"], untrained=True, progress=False, **options)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Spectra]:
    model = network()
    initial = copy.deepcopy(model)
    record = xrayed(tmp_path_factory.mktemp("spectra"), model, initial=initial)
    result = weight_spectra.SECTION.read(record.metrics)
    assert result is not None, record.metrics[weight_spectra.SECTION.key]
    return record, result


def test_the_planted_direction_is_found_and_noise_is_left_alone(found: tuple[Record, Spectra]) -> None:
    record, result = found
    first, planted, noise, readout = result.layers
    assert (planted.name, planted.rows, planted.columns) == ("3.weight", 60, 64)  # a convolution as out × in·k·k
    assert (planted.label, planted.count) == ("bulk + spikes", 1)
    assert planted.strengths[0] == pytest.approx(4.0, rel=0.15)  # of the noise, n = 60
    assert planted.holm is not None
    assert planted.holm < 1e-6  # less than permutations alone could say
    assert (noise.label, noise.count) == ("invariant bulk", 0)
    assert noise.p is not None
    assert noise.p > 0.05
    for small in (first, readout):
        assert small.label == "undecided"
        assert "singular values are too few" in small.reason
    assert result.tested == 2
    values = np.asarray(record.arrays["weight_spectra.values.1"])
    expected = torch.linalg.svdvals(network()[3].weight.detach().flatten(1).double())
    np.testing.assert_allclose(values, expected.numpy(), rtol=1e-10)
    assert "weight_spectra.initial.1" in record.arrays


def test_the_page_says_it_in_words(found: tuple[Record, Spectra]) -> None:
    page = ns.report.write_page(found[0].folder).read_text()
    assert (
        "In 1 of 4 weight matrices, one direction stands out of the noise; 1 looks like random entries; 2 are undecided."
        in page
    )
    assert "1 direction stands out of what otherwise looks like noise" in page
    assert "undrawn" not in page


@pytest.mark.parametrize("case", ["constant", "symmetric"])
def test_a_matrix_without_a_test_says_why(case: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 60), nn.Tanh(), nn.Linear(60, 60), nn.Linear(60, 3))
    with torch.no_grad():
        w = model[2].weight
        w.copy_(torch.full_like(w, 0.1) if case == "constant" else (w + w.T) / 2)
    result = weight_spectra.SECTION.read(xrayed(tmp_path, model).metrics)
    assert result is not None
    middle = result.layers[1]
    assert (middle.label, middle.count, middle.p) == ("undecided", 0, None)
    assert ("is constant" if case == "constant" else "equal to its transpose") in middle.reason


@given(st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=12))
def test_holm_rejects_what_the_step_down_rule_rejects(p_values: list[float]) -> None:
    """The rule as Holm wrote it: compare the k-th smallest with level / (m - k + 1), stop at the first above."""
    adjusted = holm(p_values)
    for level in (0.01, 0.05, 0.3):
        rejected: set[int] = set()
        for place, k in enumerate(sorted(range(len(p_values)), key=lambda k: p_values[k])):
            if p_values[k] * (len(p_values) - place) > level:
                break
            rejected.add(k)
        assert {k for k, p in enumerate(adjusted) if p <= level} == rejected


def test_matrices_without_a_test_do_not_count_for_holm() -> None:
    blank = Layer("w", 60, 60, "undecided", 0, 1.0, (), (), *(None,) * 7, null="", cause="", reason="")
    layers = corrected([replace(blank, p=0.02), blank, replace(blank, p=0.5)])
    assert [layer.holm for layer in layers] == [0.04, None, 0.5]


def test_long_spectra_keep_their_largest_values() -> None:
    values = np.sort(np.random.default_rng(0).normal(size=5000))[::-1]
    kept = kept_values(values)
    assert len(kept) == 2000
    assert kept[:200].tolist() == values[:200].tolist()
    assert kept[-1] == values[-1]
    assert (np.diff(kept) <= 0).all()


def test_the_plan_knows_what_it_costs(tmp_path: Path) -> None:
    step = section_step(weight_spectra.SECTION.name)

    def plan(*matrices: tuple[int, int]) -> float:
        return make_plan(workload(RATES, matrices=matrices), Budget(None)).steps[step]

    assert plan() == 0
    assert plan((30, 9)) < 0.01  # no test: too few singular values
    assert 0.1 < plan((128, 128)) < 10  # permuted
    assert plan((128, 128), (128, 128)) == pytest.approx(2 * plan((128, 128)))
    assert PERMUTED < 256 * 256
    assert plan((256, 256)) < plan((128, 128))  # by the law of noise
    assert plan((4096, 4096)) > plan((1024, 1024))
    large = workload(RATES, matrices=((9000, 9000),))
    assert fewer_items(step, make_plan(large, Budget(None)), large, 1.0) is None  # fewer items do not help


def test_it_is_left_out_when_the_time_does_not_suffice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_spectra, "permuting", lambda rows, columns: 1e15)
    record = xrayed(tmp_path, network(), budget="60s")
    entry = record.metrics[weight_spectra.SECTION.key]
    assert entry["status"] == "skipped"
    assert "it was expected to take" in entry["why"]


@pytest.mark.guard
def test_large_matrices_of_heavy_entries_are_permuted_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law of noise does not hold for them; without time for permutations there is no p rather than a wrong one."""
    monkeypatch.setattr(weight_spectra, "PERMUTED", 3000)
    model = nn.Sequential(nn.Linear(5, 60), nn.Tanh(), nn.Linear(60, 60), nn.Linear(60, 3))
    draw = np.random.default_rng(0)
    with torch.no_grad():
        model[2].weight.copy_(torch.from_numpy(draw.standard_t(2.5, (60, 60)) / 20))
    result = weight_spectra.SECTION.read(xrayed(tmp_path / "time", model).metrics)
    assert result is not None
    assert result.layers[1].null == "permutations"
    monkeypatch.setattr(weight_spectra, "permuting", lambda rows, columns: 1e15)
    result = weight_spectra.SECTION.read(xrayed(tmp_path / "none", model, budget="60s").metrics)
    assert result is not None
    assert (result.layers[1].label, result.layers[1].p) == ("undecided", None)
    assert "too heavy-tailed for the fast test" in result.layers[1].reason


def test_chosen_parameters_alone(tmp_path: Path) -> None:
    result = weight_spectra.SECTION.read(xrayed(tmp_path, network(), params="5.*").metrics)
    assert result is not None
    assert [layer.name for layer in result.layers] == ["5.weight"]
