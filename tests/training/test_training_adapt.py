"""Adaptation: each method trains what it says and nothing else, and the result is a network like the one given."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import Part, UsageError
from ntkscope.training import adapt, adaptation, evaluate
from ntkscope.training.transfer.adapt import Adaptation
from ntkscope.training.transfer.heads import find_head, head_inputs
from ntkscope.training.transfer.lora import adapter_targets
from ntkscope.training.transfer.redraw import redraw_network


class Small(nn.Module):
    """Convolution, batch norm, dropout, two linear layers; the head is registered first and used last."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(6, classes)
        self.first = nn.Conv1d(1, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(4 * 6, 6)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.first(x[:, None])).relu().flatten(1)
        return self.head(self.drop(self.second(z)).tanh())


def network(seed: int = 0, classes: int = 3) -> Small:
    torch.manual_seed(seed)
    return Small(classes)


def items(n: int = 40, classes: int = 2, seed: int = 1) -> Part:
    """Classes told by the sign of the first pixels."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.randn(n, 8, generator=draw)
    x[:, :4] += 2.0 * (y[:, None] - (classes - 1) / 2)
    return Part(x, y)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if before[name].shape != after[name].shape or not before[name].equal(after[name])}


METHODS = ["linear-probe", "random-features", "fine-tune", "lora"]


def needs_peft(method: str) -> None:
    if method == "lora":
        pytest.importorskip("peft")


@pytest.mark.parametrize("method", METHODS)
def test_the_given_network_stays_as_it_is_and_the_result_is_alike(method: str) -> None:
    needs_peft(method)
    model, part = network(), items()
    before, mode = state(model), model.training
    random = torch.get_rng_state()
    made = adapt(model, part, method=method, classes=2, epochs=2, lr=1e-2)
    assert torch.equal(torch.get_rng_state(), random)
    assert not changed(before, state(model))
    assert model.training is mode
    assert all(p.requires_grad for p in model.parameters())
    assert type(made) is Small
    assert not made.training
    assert list(made.state_dict()) == list(model.state_dict())
    assert {name: type(m) for name, m in made.named_modules()} == {name: type(m) for name, m in model.named_modules()}
    assert all(p.requires_grad and p.grad is None for p in made.parameters())
    assert made(part.x).shape == (40, 2)


@pytest.mark.parametrize(
    ("method", "moved"),
    [
        ("linear-probe", {"head.weight", "head.bias"}),
        ("lora", {"head.weight", "head.bias", "second.weight"}),
    ],
)
def test_nothing_else_is_trained(method: str, moved: set[str]) -> None:
    needs_peft(method)
    model = network()
    made = adapt(model, items(), method=method, classes=2, epochs=2, lr=1e-2)
    found = changed(state(model), state(made))
    assert {name for name in found if not name.startswith("norm.")} == moved
    if method == "linear-probe":
        assert found == moved, "features are those of evaluation mode: running statistics stay"


def test_fine_tuning_trains_everything() -> None:
    model = network()
    made = adapt(model, items(), method="fine-tune", classes=2, epochs=2, lr=1e-2)
    assert changed(state(model), state(made)) == set(model.state_dict())
    frozen = network()
    frozen.first.requires_grad_(False)
    made = adapt(frozen, items(), method="fine-tune", classes=2, epochs=1, lr=1e-2)
    assert {"first.weight", "first.bias"}.isdisjoint(changed(state(frozen), state(made)))


def test_the_probe_is_a_logistic_regression_on_what_the_head_is_given() -> None:
    """The same numbers as a plain loop over standardised features in double precision; the scaling is in the head."""
    model, part = network().double().eval(), items(24)
    part = Part(part.x.double(), part.y)
    with torch.no_grad():
        z = model.second(model.norm(model.first(part.x[:, None])).relu().flatten(1)).tanh()
        scaled = (z - z.mean(0)) / z.std(0, correction=0)
        start = adapt(model, part, classes=2, epochs=0, standardize=False).head
    probe = nn.Linear(6, 2).double()
    probe.load_state_dict(start.state_dict())
    optimizer = torch.optim.Adam(probe.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(probe(scaled), part.y).backward()
        optimizer.step()
    made = adapt(model, part, classes=2, epochs=30, batch_size=None, lr=1e-2)
    torch.testing.assert_close(made(part.x), probe(scaled), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(head_inputs(model, "head", part.x, batch_size=7), z)


def test_a_constant_feature_does_no_harm() -> None:
    model, part = network(), items()
    with torch.no_grad():
        model.second.weight[0] = 0.0
    made = adapt(model, part, classes=2, epochs=40, lr=3e-2)
    assert bool(torch.isfinite(made(part.x)).all())
    assert evaluate(made, part)["accuracy"] > 0.8


def test_a_head_without_bias_stays_without() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2, bias=False)).double()
    part = items()
    part = Part(part.x.double(), part.y)
    made = adapt(body, part, epochs=100, lr=3e-2)
    assert list(made.state_dict()) == list(body.state_dict())
    assert evaluate(made, part)["accuracy"] > 0.7


def test_random_features_keep_nothing_of_the_training() -> None:
    part = items()
    one, two = (adapt(network(s), part, method="random-features", classes=2, epochs=2, seed=5) for s in (0, 1))
    assert not changed(state(one), state(two)), "two networks of one shape, one seed"
    other = adapt(network(0), part, method="random-features", classes=2, epochs=2, seed=6)
    assert "second.weight" in changed(state(one), state(other))


@pytest.mark.parametrize("seed", range(3))
def test_redrawn_weights_are_truncated_normal(seed: int) -> None:
    model = nn.Sequential(nn.Embedding(50, 40, padding_idx=0), nn.Linear(200, 100), nn.LayerNorm(3), nn.BatchNorm1d(2))
    model[3].running_mean.fill_(7.0)
    redraw_network(model, seed, std=0.02)
    weights = model[1].weight
    assert float(weights.detach().abs().max()) <= 0.04
    assert float(weights.detach().std()) == pytest.approx(0.02 * 0.8796, rel=0.03)  # of a normal cut at two deviations
    assert not bool(model[0].weight[0].any())
    assert not bool(model[1].bias.any())
    assert bool((model[2].weight == 1).all())
    assert not bool(model[3].running_mean.any())
    own = redraw_network(copy.deepcopy(model), seed, std=None)
    assert float(own[1].weight.detach().abs().max()) > 0.04


def test_the_epoch_is_chosen_on_the_validation_part() -> None:
    """Validation labels are the reverse of the training labels: the first epoch is the best, and its weights are returned."""
    part = items()
    reversed_labels = Part(part.x, 1 - part.y)
    found = adaptation(network(), part, classes=2, validation=reversed_labels, epochs=6, lr=3e-2, standardize=False)
    assert isinstance(found, Adaptation)
    assert len(found.validation) == 6
    accuracies = [row["accuracy"] for row in found.validation]
    best = max(range(6), key=lambda i: (accuracies[i], -found.validation[i]["loss"], -i))
    assert found.epoch == best + 1 == found.validation[best]["epoch"]
    assert evaluate(found.model, reversed_labels)["accuracy"] == accuracies[best] > min(accuracies)
    short = adapt(network(), part, classes=2, epochs=found.epoch, lr=3e-2, standardize=False)
    torch.testing.assert_close(found.model(part.x), short(part.x))


def test_a_seed_gives_one_result() -> None:
    part = items()
    one, two, other = (adapt(network(), part, method="fine-tune", classes=2, epochs=1, seed=s) for s in (0, 0, 1))
    assert not changed(state(one), state(two))
    assert changed(state(one), state(other))


def test_adapters_are_merged_into_the_matrices_they_stood_beside() -> None:
    """The change of a layer has the rank of its adapters, and the merged network has a tangent kernel."""
    pytest.importorskip("peft")
    model, part = network().double(), items(16)
    part = Part(part.x.double(), part.y)
    made = adapt(model, part, method="lora", classes=2, rank=2, epochs=3, lr=1e-2)
    change = made.second.weight - model.second.weight
    values = torch.linalg.svdvals(change.detach())
    assert values[1] > 1e-6 * values[0]
    assert values[2] < 1e-10 * values[0]
    kernel = ns.kernel("trntk0", made, part.x)
    rows = []
    for x in part.x:
        both = []
        for k in range(2):
            grads = torch.autograd.grad(made(x[None])[0, k], list(made.parameters()))
            both.append(torch.cat([g.flatten() for g in grads]))
        rows.append(torch.cat(both))
    J = torch.stack(rows)
    torch.testing.assert_close(kernel.dense().double(), J @ J.T, rtol=1e-9, atol=1e-9)


def text_network() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    config = transformers.BertConfig(attn_implementation="eager", **sizes)
    torch.manual_seed(0)
    return ns.models.build("text", encoder=transformers.BertModel(config).eval(), classes=2)


def test_adapters_go_to_attention_where_there_is_some() -> None:
    model = text_network()
    names = adapter_targets(model, "readout")
    assert [name.rpartition(".")[2] for name in names] == ["query", "key", "value"]
    assert adapter_targets(model, "readout", ["pooler.dense"]) == ["encoder.pooler.dense"]
    with pytest.raises(UsageError, match="nothing"):
        adapter_targets(model, "readout", ["nothing"])


@pytest.mark.parametrize("method", METHODS)
def test_an_encoder_of_texts_is_adapted_and_has_a_kernel(method: str) -> None:
    needs_peft(method)
    model = text_network()
    draw = torch.Generator().manual_seed(0)
    x = {
        "input_ids": torch.randint(1, 9, (12, 5), generator=draw),
        "attention_mask": torch.ones(12, 5, dtype=torch.long),
    }
    part = Part(x, torch.arange(12) % 2)
    made = adapt(model, part, method=method, epochs=1, lr=1e-3)
    assert ns.kernel("trntk", made, x).shape == (12, 12)
    assert ns.kernel("ck", made, x).shape == (12, 12)


class Softmaxed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).softmax(1)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.body(x))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "prompting"}, "unknown adaptation method"),
        ({"model": Softmaxed()}, "not the result of any"),
        ({"model": Twice()}, "called 2 times"),
        ({"model": Tied()}, "also first.weight and head.weight"),
        ({"head": "second"}, "not the result of its layer 'second'"),
        ({"head": "norm"}, "no nn.Linear"),
        ({"classes": 1}, "labels from 0 to 1|outputs"),
        ({"part": items(classes=4)}, "labels from 0 to 3"),
        ({"part": "tweets"}, "expected a Part"),
        ({"part": Part(torch.empty(0, 8), torch.empty(0, dtype=torch.long))}, "empty part"),
        ({"validation": Part(torch.empty(0, 8), torch.empty(0, dtype=torch.long))}, "empty validation"),
        ({"validation": items(), "epochs": 0}, "at least 1"),
        ({"snapshots": 3}, "sets itself"),
        ({"augment": lambda x, g: x}, "trained on features"),
        ({"rate": 0.1}, "not a training setting"),
        ({"std": 0.0, "method": "random-features"}, "positive standard deviation"),
        ({"targets": "query", "method": "lora"}, "one text"),
        ({"model": nn.Identity()}, "no parameters"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    options = {"model": network(), "part": items(), **change}
    with pytest.raises(ns.NtkscopeError, match=message):
        adapt(options.pop("model"), options.pop("part"), **options)


def test_a_network_that_is_its_head() -> None:
    part = items()
    made = adapt(nn.Linear(8, 2), part, epochs=20, lr=1e-1)
    assert find_head(made, part.x) == ""
    assert evaluate(made, part)["accuracy"] > 0.9


def test_without_peft_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    real = importlib.import_module

    def absent(name: str, *rest: Any) -> Any:
        if name == "peft":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UsageError, match=r"ntkscope\[lora\]"):
        adapt(network(), items(), method="lora", classes=2)
