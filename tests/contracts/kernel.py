"""What every kernel must do: a new kernel's test class inherits `KernelContract` and says its name and its oracle.

class TestMine(KernelContract):
    name = "mine"

    def expected(self, model, x1, x2=None, **selection):
        return ...  # float64, as simply as it can be written
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ntkscope as ns
from ntkscope.core import NtkscopeError, UsageError
from ntkscope.kernels.costs import Rates
from ntkscope.linalg import DenseGram
from oracles import against
from oracles.closeness import assert_kernel_close
from oracles.unchanged import assert_unchanged, state
from strategies.networks import Case, Net, noise, randomize, tokens

RATES = Rates(0.1, 1e-3, 1e-5, 1e-4, 1e-10, 1e-10, 1e-8, 10_000, 10)
EXACT = 1e-10  # what float64 leaves, against the naive computation
SINGLE = 1e-5  # what float32 leaves
SAME = 1e-12  # only the order of additions differs


def perceptron() -> Case:
    layers = [nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)]
    return randomize(nn.Sequential(*layers)), noise(5, 5)


def convolutional() -> Case:
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2, groups=2)]
    return randomize(nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(16, 3, bias=False))), noise(5, 2, 6, 6)


def tied() -> Case:
    """Token ids, a layer called twice, a bare parameter, an embedding that is the readout too."""

    def run(m: Any, ids: Tensor) -> Tensor:
        h = m.embed(ids) * m.scale
        return m.head(torch.tanh(m.mix(torch.tanh(m.mix(h)))).mean(1))

    embed, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = embed.weight
    model = Net(run, embed=embed, mix=nn.Linear(4, 4), head=head, scale=nn.Parameter(torch.ones(4)))
    return randomize(model), tokens(5, 3)


CASES: list[Callable[[], Case]] = [perceptron, convolutional, tied]
everywhere = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


def seeded(case: Callable[[], Case]) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return case()


class KernelContract:
    """Subclasses give `name`; `expected` where the oracle does not know the kernel; flags where a law does not hold."""

    name: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    symmetric: ClassVar[bool] = True
    positive: ClassVar[bool] = True  # semi-definite
    takes_outputs: ClassVar[bool] = True
    takes_params: ClassVar[bool] = True
    takes_store: ClassVar[bool] = True

    # -- for subclasses --------------------------------------------------------------------------------------------
    def options_for(self, model: nn.Module) -> dict[str, Any]:
        return {**against.options_for(self.name, model), **self.options}

    def expected(self, model: nn.Module, x1: Any, x2: Any = None, **selection: Any) -> Tensor:
        return against.expected(self.name, model, x1, x2, **self.options_for(model), **selection)

    def compute(self, model: nn.Module, x1: Any, x2: Any = None, **selection: Any) -> Any:
        return ns.kernel(self.name, model, x1, x2, **self.options_for(model), **selection)

    # -- laws ------------------------------------------------------------------------------------------------------
    def test_it_is_registered(self) -> None:
        assert self.name in ns.KERNELS

    def test_what_it_declares_is_true(self) -> None:
        """Of its traits: what it costs grows, features give every part in one pass, and cosines are those of its kernel."""
        traits = ns.KERNELS.traits(self.name)
        costs = [traits.cost(n, n // 4, RATES) for n in (100, 400, 1600)]
        assert 0 < costs[0] < costs[1] < costs[2]
        model, x = seeded(perceptron)
        whole = self.compute(model, x)
        assert traits.per_output == (whole.outputs > 1)
        if traits.features:
            assert not isinstance(whole, DenseGram)
            assert_kernel_close(whole[3:, :3].dense(), self.compute(model, x[3:], x[:3]).dense(), SAME)
        if traits.normalizes is not None:
            base = ns.kernel(traits.normalizes, model, x, **self.options_for(model))
            assert_kernel_close(whole.dense(), base.normalized().dense(), SAME)
        assert ns.kernel(self.name, model, x, **{**self.options_for(model), **traits.quick}).shape == whole.shape

    @everywhere
    def test_it_is_what_the_oracle_says(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        assert_kernel_close(self.compute(model, x).dense(), self.expected(model, x), EXACT)

    @everywhere
    def test_it_is_what_the_oracle_says_between_two_sets(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        gram = self.compute(model, x[:3], x[2:])
        assert_kernel_close(gram.dense(), self.expected(model, x[:3], x[2:]), EXACT)
        assert not gram.symmetric

    @everywhere
    def test_single_precision(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        model = model.float()
        x = x.float() if x.is_floating_point() else x
        assert_kernel_close(self.compute(model, x).dense(), self.expected(model, x), SINGLE)

    def test_double_precision_on_request(self) -> None:
        model, x = seeded(perceptron)
        model, x = model.float(), x.float()
        gram = self.compute(model, x, dtype=torch.float64)
        assert gram.dtype == torch.float64
        assert_kernel_close(gram.dense(), self.expected(model, x), EXACT)
        assert next(model.parameters()).dtype == torch.float32

    @everywhere
    def test_symmetry_and_positivity(self, case: Callable[[], Case]) -> None:
        if not self.symmetric:
            pytest.skip(f"{self.name} is not symmetric")
        model, x = seeded(case)
        gram = self.compute(model, x)
        k = gram.dense()
        assert gram.symmetric
        if not torch.equal(k, k.T):
            raise AssertionError(f"not symmetric to the last bit: off by {float((k - k.T).abs().max()):.1e}")
        if self.positive:
            eigenvalues = torch.linalg.eigvalsh(k.double())
            assert float(eigenvalues[0]) >= -1e-12 * float(eigenvalues[-1])  # rounding of the largest one

    @everywhere
    def test_exchanging_the_sets_transposes(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        forward, backward = self.compute(model, x[:3], x[3:]).dense(), self.compute(model, x[3:], x[:3]).dense()
        assert_kernel_close(forward, backward.T, SAME)

    @everywhere
    def test_a_part_of_the_inputs_is_a_part_of_the_kernel(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        whole = self.compute(model, x)
        c = whole.shape[0] // len(x)
        index = [4, 0, 2]
        rows = [i * c + k for i in index for k in range(c)]
        assert_kernel_close(self.compute(model, x[index]).dense(), whole.dense()[rows][:, rows], SAME)

    @everywhere
    def test_any_memory(self, case: Callable[[], Case]) -> None:
        """From the smallest budget that the refusal of a single byte names, to more than is needed."""
        model, x = seeded(case)
        expected = self.compute(model, x).dense()
        smallest = against.smallest_budget(partial(self.compute, model, x))
        for memory in (smallest, 4 * smallest, "64MiB"):
            assert_kernel_close(self.compute(model, x, memory=memory).dense(), expected, SAME)

    def test_products_diagonal_and_shape_agree_with_the_entries(self) -> None:
        model, x = seeded(perceptron)
        gram = self.compute(model, x)
        k = gram.dense()
        v = noise(k.shape[1], 2)
        assert gram.shape == tuple(k.shape) == (len(x) * gram.outputs,) * 2
        assert_kernel_close(gram @ v, k @ v, SAME)
        if self.symmetric:
            assert_kernel_close(gram.diagonal(), k.diagonal(), SAME)

    def test_a_store_keeps_it_or_is_refused(self, tmp_path: Path) -> None:
        model, x = seeded(perceptron)
        if not self.takes_store:
            with pytest.raises(UsageError, match="got store= with"):
                self.compute(model, x, store=tmp_path / "kernel")
            assert not (tmp_path / "kernel").exists()
            return
        gram = self.compute(model, x, store=tmp_path / "kernel")
        assert (tmp_path / "kernel" / "zarr.json").exists(), (
            "store= was ignored; refuse it, or see docs/howto/add-a-kernel.md"
        )
        assert_kernel_close(gram.dense(), self.compute(model, x).dense(), SAME)

    def test_its_repr_says_its_name_and_shape(self) -> None:
        model, x = seeded(perceptron)
        gram = self.compute(model, x)
        assert gram.name == self.name
        assert self.name in repr(gram)
        assert str(gram.shape[0]) in repr(gram)

    @everywhere
    def test_datasets_and_loaders_are_their_inputs(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        expected = self.compute(model, x).dense()
        labelled = TensorDataset(x, torch.arange(len(x)))
        for given in (labelled, DataLoader(labelled, batch_size=2)):
            assert_kernel_close(self.compute(model, given).dense(), expected, SAME)

    def test_chosen_outputs(self) -> None:
        if not self.takes_outputs:
            pytest.skip(f"{self.name} has no outputs")
        model, x = seeded(perceptron)
        for outputs in ([1], [2, 0]):
            gram = self.compute(model, x, outputs=outputs)
            assert_kernel_close(gram.dense(), self.expected(model, x, outputs=outputs), EXACT)

    @pytest.mark.parametrize(
        "params",
        ["3.*", ["0.weight", "5.*"], "last", lambda name: name.endswith("bias")],
        ids=["glob", "list", "last", "predicate"],
    )
    def test_chosen_parameters(self, params: Any) -> None:
        if not self.takes_params:
            pytest.skip(f"{self.name} has no parameters")
        model, x = seeded(perceptron)
        assert_kernel_close(
            self.compute(model, x, params=params).dense(), self.expected(model, x, params=params), EXACT
        )

    @everywhere
    def test_the_model_stays_as_it_was(self, case: Callable[[], Case]) -> None:
        model, x = seeded(case)
        before = state(model)
        self.compute(model, x).dense()
        assert_unchanged(model, before)

    def test_training_mode_of_a_norm_is_refused(self) -> None:
        model, x = seeded(convolutional)
        with pytest.raises(NtkscopeError, match=r"eval\(\)"):
            self.compute(model.train(), x).dense()

    def test_an_option_it_does_not_know_is_refused(self) -> None:
        model, x = seeded(perceptron)
        with pytest.raises((NtkscopeError, TypeError), match="no_such_option"):
            self.compute(model, x, no_such_option=1)
