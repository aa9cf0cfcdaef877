"""Every road to the minimum of a linearised network ends at the same place, which is SciPy's."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import Part, UsageError
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.infinite.dynamics import dynamics
from ntkscope.linalg import NumericalWarning
from ntkscope.tangent import Jacobian
from strategies.architectures import architectures
from surrogates.linear_cases import build, jacobian, noise

ROADS = ("dense", "kernel", "lsmr", "cg")


def flat(linear: ns.Linearized) -> Tensor:
    return torch.cat([p.detach().flatten() for p in linear.parameters()])


def network(seed: int = 0, outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


@pytest.mark.parametrize("method", [*ROADS, "auto"])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_road_is_the_ridge_solution(method: str, weighted: bool) -> None:
    model, x, y = network(), noise(7, 4), noise(7, 3, seed=2)
    weights = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.0, 3.0, 0.1], dtype=torch.float64) if weighted else None
    linear = ns.linearize(model)
    report = linear.solve(Part(x, y), alpha=0.3, weights=weights, method=method, tol=1e-12)
    J, b = jacobian(model, x), (y - model(x)).detach().flatten()
    W = torch.ones(7, dtype=torch.float64) if weights is None else weights
    D = W.repeat_interleave(3)[:, None]
    expected = torch.linalg.solve(J.T @ (D * J) + 0.3 * torch.eye(J.shape[1], dtype=torch.float64), J.T @ (D[:, 0] * b))
    torch.testing.assert_close(flat(linear), expected, rtol=1e-8, atol=1e-10)
    assert report.converged
    assert report.optimality < 1e-9
    residual = y - linear(x).detach()
    assert report.loss == pytest.approx(float((W[:, None] * residual.square()).mean()), rel=1e-8)
    assert report.norm == pytest.approx(float(expected.norm()), rel=1e-8)


@pytest.mark.guard
@settings(max_examples=5, deadline=None, derandomize=True)
@given(architectures(), st.floats(0.01, 10.0))
def test_roads_agree_on_random_architectures(architecture, ridge: float) -> None:  # type: ignore[no-untyped-def]
    model, x = architecture.model, architecture.x
    with torch.no_grad():
        shape = model(x).shape
    part, found = Part(x, noise(*shape, seed=6)), {}
    for method in ROADS:
        linear = ns.linearize(model)
        linear.solve(part, alpha=ridge, method=method, tol=1e-10)
        found[method] = flat(linear)
    J = jacobian(model, x)
    b = (part.y - model(x)).detach().flatten()
    stacked = np.vstack([J.numpy(), np.sqrt(ridge) * np.eye(J.shape[1])])
    right = np.concatenate([b.numpy(), np.zeros(J.shape[1])])
    found["SciPy lstsq"] = torch.from_numpy(scipy.linalg.lstsq(stacked, right)[0])
    by_lsmr = scipy.sparse.linalg.lsmr(J.numpy(), b.numpy(), damp=np.sqrt(ridge), atol=1e-12, btol=1e-12)[0]
    found["SciPy lsmr"] = torch.from_numpy(by_lsmr)
    for name, solution in found.items():
        gap = float((solution - found["dense"]).norm() / max(float(found["dense"].norm()), 1e-12))
        assert gap <= 1e-6, (name, gap)


@pytest.mark.parametrize("method", ["dense", "kernel", "lsmr", "cg"])
@pytest.mark.parametrize("items", [4, 40])  # fewer rows than parameters, and more
def test_singular_systems_have_the_minimum_norm(method: str, items: int) -> None:
    """An item twice, and more unknowns than equations or fewer: NumPy's pseudo-inverse decides."""
    model, x = network(), noise(items, 4)
    x = torch.cat([x, x[:2]])
    y = noise(items, 3, seed=2)
    y = torch.cat([y, y[:2]])  # consistent where the rows repeat
    J, b = jacobian(model, x), (y - model(x)).detach().flatten()
    if method == "cg" and items == 40:
        pytest.skip("the kernel's own system has no solution there")
    expected = torch.linalg.pinv(J, rtol=1e-9) @ b
    linear = ns.linearize(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        report = linear.solve(Part(x, y), method=method, tol=1e-12)
    torch.testing.assert_close(flat(linear), expected, rtol=1e-5, atol=1e-6)
    if method in ("dense", "kernel"):
        assert report.rank == int(torch.linalg.matrix_rank(J, rtol=1e-9))
        assert report.cutoff is not None


def test_a_cut_off_means_the_same_on_both_direct_roads() -> None:
    model, x, y = network(), noise(7, 4), noise(7, 3, seed=2)
    J, b = jacobian(model, x), (y - model(x)).detach().flatten()
    values = torch.linalg.svdvals(J)
    cutoff = float((values[9] * values[10]).sqrt() / values[0])
    expected = torch.linalg.pinv(J, rtol=cutoff) @ b
    for method in ("dense", "kernel"):
        linear = ns.linearize(model)
        report = linear.solve(Part(x, y), method=method, cutoff=cutoff)
        assert report.rank == 10
        assert report.cutoff == pytest.approx(cutoff)
        torch.testing.assert_close(flat(linear), expected, rtol=1e-6, atol=1e-8)


def test_coordinates_say_what_the_ridge_pulls_on() -> None:
    model, x, y = network(), noise(7, 4), noise(7, 3, seed=2)
    J = jacobian(model, x)
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    b = (y - model(x)).detach().flatten() + J @ start
    expected = torch.linalg.solve(J.T @ J + 0.3 * torch.eye(len(start), dtype=torch.float64), J.T @ b)
    for method in ROADS:
        linear = ns.linearize(model, coordinates="w")
        report = linear.solve(Part(x, y), alpha=0.3, method=method, tol=1e-12)
        torch.testing.assert_close(flat(linear), expected, rtol=1e-8, atol=1e-9)
        assert report.loss == pytest.approx(float((linear(x) - y).detach().square().mean()), rel=1e-8)


def test_labels_become_one_hot_and_no_offset_counts_from_zero() -> None:
    model, x = network(), noise(8, 4)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    one_hot = nn.functional.one_hot(y, 3).double()
    found = []
    for targets in (y, one_hot):
        linear = ns.linearize(model, offset=False)
        report = linear.solve(Part(x, targets), alpha=0.1)
        found.append(flat(linear))
        assert report.loss == pytest.approx(float((linear(x) - one_hot).detach().square().mean()))
    assert torch.equal(*found)
    J = jacobian(model, x)
    expected = torch.linalg.solve(J.T @ J + 0.1 * torch.eye(J.shape[1], dtype=torch.float64), J.T @ one_hot.flatten())
    torch.testing.assert_close(found[0], expected, rtol=1e-8, atol=1e-10)


def test_a_single_precision_network_is_solved_in_double() -> None:
    model, x, y = network(), noise(7, 4), noise(7, 3, seed=2)
    double, single = ns.linearize(model), ns.linearize(model.float())
    double.double()
    wanted = double.solve(Part(x.float().double(), y), alpha=0.1)
    report = single.solve(Part(x.float(), y.float()), alpha=0.1)
    assert all(p.dtype == torch.float32 for p in single.parameters())
    torch.testing.assert_close(flat(single).double(), flat(double), rtol=1e-4, atol=1e-5)
    assert report.loss == pytest.approx(wanted.loss, rel=1e-4)


def test_a_stored_kernel_serves_both_roads(tmp_path: Path) -> None:
    model, x, y = network(), noise(7, 4), noise(7, 3, seed=2)
    found = []
    for method in ("kernel", "cg"):
        linear = ns.linearize(model)
        linear.solve(Part(x, y), alpha=0.5, method=method, tol=1e-12, store=tmp_path / "kernel")
        found.append(flat(linear))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)
    assert (tmp_path / "kernel").exists()


def test_what_does_not_fit_is_refused_with_its_bytes() -> None:
    model, part = network(), Part(noise(7, 4), noise(7, 3, seed=2))
    linear = ns.linearize(model)
    for method in ("dense", "kernel"):
        with pytest.raises(MemoryBudgetError, match=r"\d+ bytes"):
            linear.solve(part, method=method, memory=5000)
    assert linear.solve(part, alpha=1.0, memory=5000).method == "lsmr"
    assert linear.solve(part, alpha=1.0).method == "dense"
    with pytest.raises(MemoryBudgetError):
        linear.solve(part, method="lsmr", memory=100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "newton"}, "expected one of"),
        ({"alpha": -1.0}, "≥ 0"),
        ({"cutoff": 2.0}, "got cutoff=2.0; expected a finite number ≥ 0 and < 1"),
        ({"cutoff": 0.1, "method": "lsmr"}, "sees no singular values"),
        ({"store": "there", "method": "dense"}, "needs no kernel"),
        ({"tol": 0.0}, "tol"),
        ({"dtype": torch.int64}, "floating-point"),
        ({"weights": torch.zeros(7)}, "some above 0"),
        ({"weights": torch.ones(3)}, "one per item"),
    ],
)
def test_wrong_use_says_what_was_expected(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ns.linearize(network()).solve(Part(noise(7, 4), noise(7, 3)), **options)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.arange(7), "renumber|expected labels"),
        (torch.zeros(7, 2, dtype=torch.float64), "3 outputs"),
        (torch.zeros(7, 3, dtype=torch.int64), "class numbers of shape"),
    ],
)
def test_wrong_targets_say_what_was_expected(y: Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ns.linearize(network()).solve(Part(noise(7, 4), y))


def test_blocks_shrink_where_the_device_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    model, part = network(), Part(noise(20, 4), noise(20, 3, seed=2))
    whole = ns.linearize(model)
    whole.solve(part, alpha=0.5, method="lsmr")
    for name in ("jvp", "vjp"):
        plain = getattr(Jacobian, name)

        def small(self: Jacobian, value: Any, plain: Any = plain) -> Any:
            if self.block > 8:
                raise torch.OutOfMemoryError("too many samples")
            return plain(self, value)

        monkeypatch.setattr(Jacobian, name, small)
    pieces = ns.linearize(model)
    pieces.solve(part, alpha=0.5, method="lsmr")
    torch.testing.assert_close(flat(pieces), flat(whole), rtol=1e-9, atol=1e-9)


def test_too_few_iterations_are_reported() -> None:
    linear = ns.linearize(network())
    with pytest.warns(NumericalWarning, match="did not reach"):
        report = linear.solve(Part(noise(20, 4), noise(20, 3, seed=2)), method="lsmr", max_iter=2)
    assert not report.converged
    assert report.iterations == 2


def descent_is_closed_form(model: nn.Module, x: Tensor, test: Tensor, y: Tensor, steps: tuple[int, ...]) -> None:
    """Outputs after gradient descent on the mean squared error are those of the closed form on the empirical NTK."""
    n, c = y.shape
    theta = ns.kernel("entk", model, x)
    across = ns.kernel("entk", model, test, x)
    lr = 0.9 * n * c / float(theta.eigvalsh(1)[-1])  # the mean over items and outputs: rate 2/(n c) λ, stable below 2
    closed = dynamics(theta, y.flatten(), loss="mean", step=lr)
    with torch.no_grad():
        start, start_test = model(x).flatten()[:, None], model(test).flatten()[:, None]
    linear = ns.linearize(model)
    rule = torch.optim.SGD(linear.parameters(), lr=lr)
    for step in range(1, max(steps) + 1):
        rule.zero_grad()
        (linear(x) - y).square().mean().backward()
        rule.step()
        if step in steps:
            with torch.no_grad():
                mine, mine_test = linear(x).flatten(), linear(test).flatten()
            known = closed.predict(time=step, start=start).mean[:, 0]
            known_test = closed.predict(across, time=step, start=start, start_test=start_test).mean[:, 0]
            for a, b in ((mine, known), (mine_test, known_test)):
                assert float((a - b).norm() / b.norm()) <= 1e-8, step


def test_descent_follows_the_closed_form() -> None:
    model = network(outputs=2)
    descent_is_closed_form(model, noise(5, 4), noise(3, 4, seed=4), noise(5, 2, seed=5), (1, 10, 50))


@pytest.mark.nightly
@pytest.mark.data
def test_descent_on_linear_lenet_follows_the_closed_form() -> None:
    split = ns.data.load("mnist")
    model = ns.models.build("lenet").double()
    x, test = split.train.x[:128].double(), split.test.x[:64].double()
    y = nn.functional.one_hot(split.train.y[:128], 10).double()
    descent_is_closed_form(model, x, test, y, (1, 10, 100, 1000))


@pytest.mark.guard
def test_large_systems_by_products_alone() -> None:
    """LeNet on 60 images, 600 rows of 61,706 unknowns: all roads that fit agree."""
    model, x = build("lenet")
    x = noise(60, 1, 28, 28)
    part = Part(x, noise(60, 10, seed=3))
    found = {}
    for method in ("kernel", "lsmr", "cg"):
        linear = ns.linearize(model)
        linear.solve(part, alpha=1.0, method=method, tol=1e-10)
        found[method] = flat(linear)
    for solution in found.values():
        assert float((solution - found["kernel"]).norm() / found["kernel"].norm()) <= 1e-6
