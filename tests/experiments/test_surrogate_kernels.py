"""Six kernels side by side: the contract, and the pairs they are made of."""

from __future__ import annotations

import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope.core import UsageError
from ntkscope.experiments._kernel_pairs import SIX, kernel_pairs


@pytest.mark.nightly
class TestSurrogateKernels(ExperimentContract):
    name = "surrogate-kernels"
    tiny = given(
        train_items=120,
        test_items=40,
        epochs=2,
        exact_points=40,
        feature_points=50,
        embedding_points=50,
        dim=64,
        inspected=5,
        seeds=1,
        sgd_seeds=1,
        sgd_points=40,
        compared_points=30,
    )


@pytest.mark.parametrize("name", SIX)
def test_a_pair_is_one_kernel_on_train_and_test(name: str) -> None:
    """The same inputs on both sides give the same numbers, up to rounding: normalisation is that of each point alone."""
    model = ns.models.build("small_cnn", image_size=8, classes=3, channels=(4, 4)).double().eval()
    x = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (pair,) = kernel_pairs([name], model, x, x[2:5], dim=50)
    torch.testing.assert_close(pair.test.dense(), pair.train.dense()[2:5], rtol=1e-10, atol=1e-12)
    assert float(pair.train.diagonal().mean()) == pytest.approx(1, abs=1e-12)
    if name in ("trntk", "proj-trntk", "proj-pntk"):
        torch.testing.assert_close(pair.train.diagonal(), torch.ones(7, dtype=torch.float64))


def test_trace_kernels_share_one_run() -> None:
    model, x = torch.nn.Linear(3, 2).eval(), torch.eye(3)
    both = {pair.name: pair for pair in kernel_pairs(["trntk0", "trntk"], model, x, x)}
    assert both["trntk"].seconds == both["trntk0"].seconds
    scaled = both["trntk0"].train.dense() * both["trntk0"].scale
    torch.testing.assert_close(scaled, ns.kernel("trntk0", model, x).dense())


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(UsageError, match=r"got the kernels entk; expected some of trntk"):
        next(kernel_pairs(["entk"], torch.nn.Linear(1, 1), torch.ones(1, 1), torch.ones(1, 1)))
