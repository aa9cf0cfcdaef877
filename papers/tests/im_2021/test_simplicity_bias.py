"""Simplicity bias: the contract, parities, shares of samples, low degrees against all digits."""

from __future__ import annotations

import math

import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope import infinite
from ntkscope.infinite import Erf, Relu
from ntkscope_papers.im_2021 import cube
from ntkscope_papers.im_2021.simplicity_bias import ERF, RELU, network


@pytest.mark.guard
class TestSimplicityBias(ExperimentContract):
    name = "simplicity-bias"
    tiny = given(corners=3, dimensions=(3, 9), draws=200, keep=(1,), width=16, outputs=4, networks=4, deep=3)
    identities = ("ntkreview-576-5",)


@pytest.mark.parametrize(("reading", "row"), list(RELU.items()))
def test_the_ledgers_shares_of_degree_0(reading: str, row: tuple[float, int, dict[str, float]]) -> None:
    for short, kind in (("CK", "nngp"), ("NTK", "ntk")):
        share = cube.low_degrees(network(f"relu {reading}"), 128, 0)[kind][0].item()
        assert share == pytest.approx(row[2][short], abs=1e-3)


@pytest.mark.parametrize(("setting", "row"), list(ERF.items()))
def test_the_ledgers_shares_of_degree_1(setting: str, row: tuple[float, int, dict[str, float]]) -> None:
    found = cube.low_degrees(network(f"erf {setting}"), 128, 2)
    for short, value in row[2].items():
        share = found["nngp" if short == "CK" else "ntk"]
        assert share[1].item() == pytest.approx(value, abs=1e-3)
        assert abs(share[2].item()) < 1e-10


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_low_degrees_are_those_of_all_digits(kind: str) -> None:
    net = cube.fully_connected(Relu(), 4, 2.0, 0.5)
    exact = infinite.boolean_cube(net, 40, kind).fractional_variance[:7]
    torch.testing.assert_close(cube.low_degrees(net, 40, 6)[kind], exact, rtol=0, atol=1e-11)  # rounding · √C(40, 6)


def test_a_kernel_that_is_not_of_the_inner_product_is_told_apart() -> None:
    K = infinite.kernel(network("relu var2 one hidden"), cube.corners(4)).dense()
    good = cube.by_parity(K, 4)
    assert max(good["residual"], good["spread"]) < 1e-14
    assert good["multiplicity"] == [1, 4, 6, 4, 1]
    other = K.clone()
    other[0, 0] += 1
    assert cube.by_parity(other, 4)["residual"] > 1e-3
    stretched = infinite.kernel(network("relu var2 one hidden"), cube.corners(4) * torch.tensor([1.0, 2, 1, 1])).dense()
    assert cube.by_parity(stretched, 4)["spread"] > 1e-3


def test_shares_of_functions_by_degree() -> None:
    x = cube.corners(3)
    f = torch.stack([torch.ones(8, dtype=torch.float64), 2 * x[:, 1], x[:, 0] * x[:, 2] + x.prod(1)])
    expected = torch.tensor([[1.0, 0, 0, 0], [0, 4, 0, 0], [0, 0, 1, 1]], dtype=torch.float64)
    torch.testing.assert_close(cube.degree_shares(f, 3), expected)


def test_covariance_errors_see_a_wrong_covariance() -> None:
    K = infinite.kernel(cube.fully_connected(Erf(), 1, 1.0, 0.0), cube.corners(3), kind="nngp").dense()
    drawn = infinite.sample(K, 4000, seed=0)
    assert cube.covariance_errors(drawn, K) < 5
    assert cube.covariance_errors(1.1 * drawn, K) > 8  # 21 % of a variance whose standard error is √(2/4000) = 2.2 %


def test_truncation_is_the_share_left_out() -> None:
    found = cube.truncation(torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)), [1, 2], 5000, 0)
    assert found["1"]["expected"] == pytest.approx(0.5)
    assert found["2"]["expected"] == pytest.approx(1 / 6)
    for one in found.values():
        assert abs(one["share"] - one["expected"]) < 5 * one["sem"] < 0.1


def test_a_ratio_has_the_standard_error_of_repetition() -> None:
    draw = torch.Generator().manual_seed(0)
    again, said = [], []
    for _ in range(200):
        a, b = torch.rand(100, generator=draw), torch.rand(100, generator=draw)
        one = cube.ratio(a, a + b)
        again.append(one["share"])
        said.append(one["sem"])
    spread = float(torch.tensor(again).std())
    assert spread == pytest.approx(sum(said) / len(said), rel=4 / math.sqrt(2 * 200))
