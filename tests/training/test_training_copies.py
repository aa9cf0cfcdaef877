"""What is trained or loaded into a copy is the copy alone, for models whose functions hold parameters too."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import Part, UsageError
from ntkscope.tangent.kernel.store_source import Recipe
from ntkscope.xray.network import initial_network

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
PART = Part(X, (X[:, 0] > 0).long())
OPTIONS = {"optimizer": "sgd", "lr": 0.5, "loss": "cross_entropy", "steps": 5, "batch_size": None}
SCALE: list[nn.Parameter] = []


def scaled(seed: int = 0, by: str = "parameter") -> nn.Module:
    """A network whose first layer is multiplied, in a hook, by a parameter of the network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    model.scale = nn.Parameter(torch.full((6,), 1.5))
    scale = model.scale
    SCALE[:] = [scale]
    hooks = {
        "parameter": lambda module, x, out: out * scale,
        "attribute": lambda module, x, out: out * model.scale,
        "global": lambda module, x, out: out * SCALE[0],
    }
    model[0].register_forward_hook(hooks[by])
    return model


def moved(model: nn.Module, x: Tensor) -> bool:
    """Whether the outputs follow the network's own parameter."""
    before = model(x)
    scale = model.get_parameter("scale")
    with torch.no_grad():
        scale.mul_(2)
        after = model(x)
        scale.div_(2)
    return not torch.equal(before, after)


@pytest.mark.parametrize("by", ["parameter", "attribute"])
class TestHooksOverAParameter:
    def test_fine_tuning_trains_the_copy_s(self, by: str) -> None:
        model = scaled(by=by)
        state = copy.deepcopy(model.state_dict())
        made = ns.training.adapt(model, PART, method="fine-tune", head="2", lr=0.5, epochs=3)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert not torch.equal(made.scale, model.scale)
        outputs = made(X)
        with torch.no_grad():
            model.scale.fill_(100.0)
        assert torch.equal(made(X), outputs)
        assert moved(made, X)

    def test_initial_networks(self, by: str) -> None:
        model, start = scaled(1, by), scaled(2, by)
        with torch.no_grad():
            start.scale.fill_(0.25)
        expected = start(X)
        for initial in (start, start.state_dict()):
            made = initial_network(model, initial, X)
            assert made is not None
            torch.testing.assert_close(made(X), expected)

    def test_models_that_travel(self, by: str) -> None:
        class Plain(Recipe):
            def make(self, sample: object, fallback: object) -> None:  # type: ignore[override]
                raise NotImplementedError

        recipe = Plain(scaled(by=by), None, None).travelling(torch.device("meta"))
        assert moved(recipe.model, X)


class TestEnsembles:
    def test_a_hook_over_the_network_is_each_member_s(self) -> None:
        def build(seed: int) -> nn.Module:
            return scaled(seed, "attribute")

        found = ns.training.fit_ensemble(build, PART, seeds=[1, 2], **OPTIONS)
        for i, seed in enumerate((1, 2)):
            alone = build(seed)
            ns.training.fit(alone, PART, seed=seed, measure=False, **OPTIONS).final()
            member = found.member(i)
            torch.testing.assert_close(member.scale, alone.scale)
            torch.testing.assert_close(member(X), alone(X))
            torch.testing.assert_close(found(X)[i], alone(X))
            assert moved(member, X)

    def test_a_hook_that_holds_on_to_one_network_is_refused(self) -> None:
        with pytest.raises(UsageError, match="hold on to one network's parameters"):
            ns.training.fit_ensemble(scaled, PART, seeds=[1, 2], **OPTIONS)


def test_what_a_copy_would_share_is_refused_by_its_name() -> None:
    model = scaled(by="global")
    with pytest.raises(UsageError, match=r"would still use scale of the model itself .* that copy is trained"):
        ns.training.adapt(model, PART, method="fine-tune", head="2", lr=0.5, epochs=1)
    with pytest.raises(UsageError, match="the initial weights are loaded into that copy"):
        initial_network(model, model.state_dict(), X)
