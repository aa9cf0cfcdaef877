"""Kernels between training and test inputs: the laws of a pair, and that machines are the surrogates they are made with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.linalg import DenseGram
from ntkscope.machines import KernelPair, fit_machine, kernel_pairs, rate
from ntkscope.machines.computing import parts
from ntkscope.machines.rating import other_measures
from ntkscope.measures import MEASURES, Measure
from ntkscope.surrogates import KernelGLM

N, M = 12, 5


def inputs() -> tuple[Tensor, Tensor]:
    draw = generator(0, "machines")
    return tuple(torch.randn(count, 4, generator=draw, dtype=torch.float64) for count in (N, M))  # type: ignore[return-value]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def pair(name: str = "trntk0", **options: Any) -> KernelPair:
    (made,) = kernel_pairs({name: options}, network(), *inputs())
    return made


@pytest.mark.parametrize("name", ns.KERNELS.per_input())
def test_both_sides_are_those_of_ns_kernel(name: str) -> None:
    model, (x, z) = network(), inputs()
    (made,) = kernel_pairs({name: {}}, model, x, z)
    torch.testing.assert_close(made.train.dense(), ns.kernel(name, model, x).dense(), rtol=0, atol=1e-12)
    torch.testing.assert_close(made.test.dense(), ns.kernel(name, model, z, x).dense(), rtol=0, atol=1e-12)
    assert made.nbytes == 8 * (N * N + M * N)
    assert made.seconds > 0


def test_a_kernel_and_its_cosines_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    real = ns.machines.computing.kernel

    def counted(name: str, *arguments: Any, **options: Any) -> Any:
        computed.append(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(ns.machines.computing, "kernel", counted)
    names = [made.name for made in kernel_pairs({"trntk": {}, "ck": {}, "trntk0": {}}, network(), *inputs())]
    assert names == ["trntk", "trntk0", "ck"]
    assert computed == ["trntk0", "ck"]  # training and test rows in one pass


@pytest.mark.parametrize("name", ["trntk0", "ck"])
@pytest.mark.parametrize("wanted", [["train"], ["test"], ["train", "test"]])
def test_parts_give_what_is_wanted(name: str, wanted: list[str]) -> None:
    found = {side for part in parts(name, network(), *inputs(), wanted=wanted) for side in part.sides}
    assert set(wanted) <= found


def test_scaled_has_a_mean_diagonal_of_one_and_says_by_what() -> None:
    raw = pair()
    made = raw.scaled()
    assert float(made.train.diagonal().mean()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(made.test.dense() * made.scale, raw.test.dense())
    zero = KernelPair("zero", DenseGram(torch.zeros(2, 2), symmetric=True), DenseGram(torch.zeros(1, 2)))
    assert zero.scaled().scale == 1.0


def test_cosines_do_not_depend_on_scale_and_zeros_are_refused_or_kept() -> None:
    raw = pair()
    made = raw.normalized("trntk")
    assert torch.equal(made.train.diagonal(), torch.ones(N, dtype=torch.float64))
    torch.testing.assert_close(raw.scaled().normalized("trntk").test.dense(), made.test.dense(), rtol=1e-12, atol=0)
    values = raw.train.dense().clone()
    values[3], values[:, 3] = 0, 0
    dead = KernelPair("dead", DenseGram(values, symmetric=True), raw.test)
    with pytest.raises(NumericalError, match=r"not positive and finite at rows \[3\]"):
        dead.normalized("cosine")
    kept = dead.normalized("cosine", zeros=True).train.dense()
    assert float(kept[3].abs().sum()) == 1.0
    assert kept[3, 3] == 1
    others = torch.arange(N) != 3
    torch.testing.assert_close(kept[others][:, others], made.train.dense()[others][:, others], rtol=0, atol=1e-12)


def test_a_part_of_a_pair_is_the_pair_of_a_part() -> None:
    rows, columns = np.array([7, 1, 4]), np.array([2, 0])
    model, (x, z) = network(), inputs()
    (few,) = kernel_pairs({"trntk0": {}}, model, x[rows], z[columns])
    (whole,) = kernel_pairs({"trntk0": {}}, model, x, z)
    taken = whole.take(rows, columns)
    torch.testing.assert_close(taken.train.dense(), few.train.dense(), rtol=0, atol=1e-12)
    torch.testing.assert_close(taken.test.dense(), few.test.dense(), rtol=0, atol=1e-12)
    assert taken.train.symmetric


def test_a_pair_that_is_none_is_refused() -> None:
    square, wide = DenseGram(torch.eye(3), symmetric=True), DenseGram(torch.ones(2, 4))
    with pytest.raises(UsageError, match="expected a symmetric one"):
        KernelPair("wrong", square, wide)
    with pytest.raises(UsageError, match="expected a symmetric one"):
        KernelPair("wrong", wide, wide)


def test_a_machine_is_its_surrogate() -> None:
    made, y = pair().scaled(), np.arange(N) % 3
    machine = fit_machine(made, y, alpha=1e-3, tol=1e-9)
    expected = KernelGLM(alpha=1e-3, tol=1e-9).fit(made.train, y)
    np.testing.assert_allclose(machine.logits(made.test), expected.logits(made.test), rtol=0, atol=1e-12)
    assert (machine.converged, machine.iterations) == (expected.converged_, expected.n_iter_)
    ridge = fit_machine(made, y, "ridge-classifier", alpha=1e-3)
    assert ridge.logits(made.test).shape == (M, 3)
    with pytest.raises(UsageError, match="linear in the kernel"):
        fit_machine(made, y, "neighbors")


def test_classes_without_a_training_input_have_no_probability() -> None:
    made, y = pair().scaled(), np.arange(N) % 2 * 2  # classes 0 and 2 of 4
    logits = fit_machine(made, y, classes=4, alpha=1e-3).logits(made.test)
    assert (logits[:, [1, 3]] == -50).all()
    np.testing.assert_allclose(
        logits[:, [0, 2]], fit_machine(made, y, alpha=1e-3).logits(made.test), rtol=0, atol=1e-12
    )


def test_a_new_measure_is_read_by_whoever_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b, y = rng.standard_normal((20, 3)), rng.standard_normal((20, 3)), np.arange(20) % 3
    assert "more" not in rate(a, b, y, bootstrap=0).to_json()
    shift = Measure(lambda first, second: float((first - second).mean()), "two logits")
    monkeypatch.setitem(MEASURES._entries, "shift", shift)
    monkeypatch.setitem(MEASURES._spelling, "shift", "shift")
    assert rate(a, b, y, bootstrap=0).to_json()["more"] == {"shift": float((a - b).mean())}
    assert set(other_measures([], {"two logits": (a, b)})) == {"agreement", "r2-logits", "shift", "total-variation"}
