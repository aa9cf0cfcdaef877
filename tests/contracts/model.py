"""The suite every architecture inherits: name it, say what it takes and gives, and these tests hold it to the contract.

    class TestLeNet(ModelContract):
        name = "lenet"
        options = given(width=0.5)
        item_shape = (1, 28, 28)
        classes = 10
        parameters = 15_738

Hook: `inputs(n)` where an input is not one float tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import ntkscope.models
from ntkscope.core import UsageError, generator


def given(**items: Any) -> Mapping[str, Any]:
    """A read-only mapping, fit for a class attribute."""
    return MappingProxyType(items)


def assert_samples_independent(model: nn.Module, x: Tensor) -> None:
    """Each output of a batch is what the network gives for that input alone; float64, so only roundoff remains."""
    together = model(x)
    alone = torch.cat([model(x[i : i + 1]) for i in range(len(x))])
    assert_close(together, alone, rtol=1e-10, atol=1e-10)


class ModelContract:
    """Subclass and set what is known of the architecture; keep `options` small enough for a second on one core."""

    name: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = given()
    item_shape: ClassVar[tuple[int, ...]]  # one input
    classes: ClassVar[int]  # outputs under `options`
    parameters: ClassVar[int]  # trainable numbers under `options`

    def build(self, **changes: Any) -> nn.Module:
        return ntkscope.models.build(self.name, **{**self.options, **changes})

    def inputs(self, n: int) -> Tensor:
        return torch.randn(n, *self.item_shape, generator=generator(0, "model contract"), dtype=torch.float64)

    def test_counts_its_parameters(self) -> None:
        assert sum(p.numel() for p in self.build().parameters()) == self.parameters

    def test_gives_one_row_of_outputs_an_input(self) -> None:
        output = self.build().double().eval()(self.inputs(3))
        assert output.shape == (3, self.classes)
        assert output.isfinite().all()

    def test_trains_on_a_batch(self) -> None:
        model = self.build().double().train()
        model(self.inputs(3)).square().sum().backward()
        silent = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert silent == []

    def test_evaluates_each_sample_alone(self) -> None:
        assert_samples_independent(self.build().double().eval(), self.inputs(3))

    def test_same_seed_same_weights(self) -> None:
        torch.manual_seed(1)
        first = self.build(seed=3)
        torch.manual_seed(2)  # what others drew must not matter
        state = torch.get_rng_state()
        second, other = self.build(seed=3).state_dict(), self.build(seed=4).state_dict()
        assert torch.equal(state, torch.get_rng_state())  # … nor must building disturb what others will draw
        assert all(torch.equal(value, second[key]) for key, value in first.state_dict().items())
        assert any(not torch.equal(value, other[key]) for key, value in first.state_dict().items())

    def test_seed_none_draws_from_the_global_generator(self) -> None:
        torch.manual_seed(1)
        first = self.build(seed=None).state_dict()
        second = self.build(seed=None).state_dict()
        assert any(not torch.equal(value, second[key]) for key, value in first.items())

    def test_weights_survive_the_disk(self, tmp_path: Path) -> None:
        model, path = self.build(seed=1).eval(), tmp_path / "weights.safetensors"
        ntkscope.models.save_weights(model, path)
        loaded = ntkscope.models.load_weights(self.build(seed=2), path).eval()
        assert torch.equal(model.double()(self.inputs(2)), loaded.double()(self.inputs(2)))

    def test_per_sample_gradients_through_torch_func(self) -> None:
        """Kernels differentiate a network sample by sample: `vmap(grad)` must see what autograd sees."""
        model, x = self.build().double().eval(), self.inputs(2)
        params = {key: value.detach() for key, value in model.named_parameters()}
        buffers = dict(model.named_buffers())

        def first_output(params: dict[str, Tensor], item: Tensor) -> Tensor:
            return torch.func.functional_call(model, (params, buffers), (item[None],))[0, 0]

        fast = torch.func.vmap(torch.func.grad(first_output), (None, 0))(params, x)
        for i in range(2):
            slow = torch.autograd.grad(model(x[i : i + 1])[0, 0], list(model.parameters()))
            for (key, _), gradient in zip(model.named_parameters(), slow):
                assert_close(fast[key][i], gradient, rtol=1e-9, atol=1e-12)

    def test_unknown_option_is_named_with_those_that_exist(self) -> None:
        with pytest.raises(UsageError, match=rf"{self.name} has no option 'no_such'; it takes: .*seed=0"):
            self.build(no_such=1)
