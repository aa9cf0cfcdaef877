"""Index teachers: hidden directions, noise, moments of their links."""

from __future__ import annotations

import pytest
import torch

from contracts.dataset import DatasetContract, given, parts_of
from ntkscope.core import Split
from ntkscope_papers.wang_2023.index_teacher import LINKS, gaussian_moments, index_teacher


class TestSingleIndex(DatasetContract):
    """The paper's table 8 (ledger spectra-teacher, spectra-table8-setting)."""

    name = "index-teacher"
    loader = staticmethod(index_teacher)
    item_shape = (1000,)
    sizes = given(train=2000, test=2000)

    def check_defining_property(self, split: Split) -> None:
        beta = split.extras["directions"][0].double()
        assert abs(float(beta.norm()) - 1) < 1e-6
        for part in parts_of(split).values():
            x = part.x.double()
            star = (torch.nn.functional.softplus(x @ beta) - 0.806059) / 0.271515**0.5
            clean = star + 0.2 * (x.square().sum(dim=1) / 1000 - 1)
            torch.testing.assert_close(part.extras["clean_y"].double(), clean, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(part.y, part.extras["clean_y"] + part.extras["noise"])
        # unit-variance teacher: 2,000 draws give the variance to 1.5 sqrt(2/2000) = 5 % (softplus is skewed): 4 sd
        assert abs(float(split.test.y.var()) - 1) < 0.2
        assert abs(float(split.test.y.mean())) < 0.1
        assert torch.equal(split.test.y, split.test.extras["clean_y"])  # noise-free, as the table implies
        assert abs(float(split.train.extras["noise"].std()) - 0.3) < 5 * 0.3 / (2 * 2000) ** 0.5


class TestMultipleIndex(DatasetContract):
    name = "index-teacher"
    loader = staticmethod(index_teacher)
    options = given(directions=5, dimension=50, link="tanh", train=300, test=300)
    item_shape = (50,)

    def check_defining_property(self, split: Split) -> None:
        beta = split.extras["directions"].double()
        torch.testing.assert_close(beta @ beta.T, torch.eye(5, dtype=torch.float64), atol=1e-6, rtol=0)
        x = split.test.x.double()
        clean = (torch.tanh(x @ beta.T) / 0.394294**0.5).mean(dim=1)  # no quadratic term with several directions
        torch.testing.assert_close(split.test.extras["clean_y"].double(), clean, atol=1e-5, rtol=1e-5)


def test_literal_quadratic_term_shifts_the_mean_by_tau() -> None:
    centred, literal = (index_teacher(centred=c, dimension=200, dtype="float64") for c in (True, False))
    torch.testing.assert_close(literal.train.y - centred.train.y, torch.full((2000,), 0.2, dtype=torch.float64))
    none = index_teacher(tau=0, dimension=200, dtype="float64")
    assert float((none.train.y - centred.train.y).std()) < 3 * (2 * 0.2**2 / 200) ** 0.5


def test_changing_the_noise_leaves_inputs_and_teacher_alone() -> None:
    a, b = (index_teacher(noise=noise, dimension=20, train=50, test=10) for noise in (0.0, 1.0))
    assert torch.equal(a.train.x, b.train.x)
    assert torch.equal(a.extras["directions"], b.extras["directions"])
    assert torch.equal(a.train.y, b.train.extras["clean_y"])


@pytest.mark.parametrize(
    ("link", "mean", "variance"), [("softplus", 0.806059, 0.271515), ("tanh", 0.0, 0.394294), ("quadratic", 1.0, 2.0)]
)
def test_link_moments(link: str, mean: float, variance: float) -> None:
    """Ledger spectra-activation-constants."""
    got_mean, got_std = gaussian_moments(LINKS[link])
    assert abs(got_mean - mean) < 1e-6
    assert abs(got_std**2 - variance) < 1e-6
