"""Wrong use is refused, and the message says what came, what was expected and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor, nn
from torch.nn import functional as F

import ntkscope as ns
from ntkscope.core import NtkscopeError, NumericalError, UsageError
from ntkscope.core.errors import MemoryBudgetError, UnknownName
from oracles.against import compare, smallest_budget
from strategies.networks import Net, noise, randomize, tokens


def mlp(*layers: nn.Module) -> nn.Sequential:
    return randomize(nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3)))


def network(run: Callable[..., Tensor], **parts: nn.Module) -> Any:
    return randomize(Net(run, head=nn.Linear(4, 3), **parts))


def refused(model: nn.Module, x: Any, *words: str, kind: type[Exception] = UsageError, **options: Any) -> str:
    """The message of the refusal, after each of `words` (regular expressions) was found in it."""
    with pytest.raises(kind) as caught:
        ns.kernel(options.pop("name", "trntk0"), model, x, **options).dense()
    assert isinstance(caught.value, NtkscopeError)
    message = str(caught.value)
    for word in words:
        assert re.search(word, message, re.IGNORECASE), f"{word!r} is not in: {message}"
    return message


X = noise(4, 4)


# -- modes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["entk", "trntk", "pntk", "proj-trntk", "ck", "em", "ptk"])
def test_batch_norm_in_training_mode(name: str) -> None:
    refused(mlp(nn.BatchNorm1d(6), nn.ReLU()).train(), X, r"BatchNorm", r"\b1\b", r"model\.eval\(\)", name=name)


def test_batch_norm_that_always_uses_the_batch() -> None:
    refused(mlp(nn.BatchNorm1d(6, track_running_stats=False)), X, r"batch")


def test_active_dropout() -> None:
    refused(mlp(nn.Dropout(0.5)).train(), X, r"dropout", r"model\.eval\(\)")


def test_dropout_inside_attention() -> None:
    attend = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
    model = network(lambda m, x: m.head(m.attend(x, x, x)[0].mean(1)), attend=attend).train()
    refused(model, noise(4, 3, 4), r"eval\(\)")


def test_dropout_inside_a_recurrent_layer() -> None:
    lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)
    refused(network(lambda m, x: m.head(m.lstm(x)[0][:, -1]), lstm=lstm).train(), noise(4, 3, 4), r"eval\(\)")


def test_dropout_called_as_a_function() -> None:
    refused(network(lambda m, x: m.head(F.dropout(x, 0.5, training=True))), X, r"random|determin|batch|same input")


def test_training_mode_itself_is_fine() -> None:
    model = mlp(nn.ReLU(), nn.Dropout(0.0)).train()
    compare("trntk0", model, X)
    assert model.training


def test_only_the_norm_in_training_mode_matters() -> None:
    model = mlp(nn.BatchNorm1d(6), nn.Dropout(0.5)).train()
    model[1].eval()
    model[2].eval()
    compare("trntk0", model, X)


# -- outputs -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("run", "shape"),
    [
        (lambda m, x: m.head(x)[:, 0], r"\(\d,\)"),
        (lambda m, x: m.head(x)[:, :, None], r"\(\d, 3, 1\)"),
        (lambda m, x: m.head(x).sum(), r"\(\)"),
        (lambda m, x: m.head(x).mean(0, keepdim=True), r"\(1, 3\)"),
    ],
)
def test_outputs_that_are_not_samples_by_classes(run: Callable[..., Tensor], shape: str) -> None:
    refused(network(run), X, shape, r"\(n, c\)")


@pytest.mark.parametrize(
    "run", [lambda m, x: (m.head(x), x), lambda m, x: {"scores": m.head(x)}, lambda m, x: [m.head(x)]]
)
def test_outputs_that_are_not_a_tensor(run: Callable[..., Any]) -> None:
    refused(network(run), X, r"tuple|dict|list", r"tensor|\(n, c\)")


def test_outputs_that_are_not_floats() -> None:
    refused(network(lambda m, x: m.head(x).argmax(1, keepdim=True)), X, r"int64|integer|float")


@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: m.head(x - x.mean(0)),
        lambda m, x: m.head(x / x.abs().max()),
        lambda m, x: m.head(x + x.roll(1, 0)),
        lambda m, x: m.head(x).softmax(0),
        lambda m, x: m.head(x.cumsum(0)),
    ],
    ids=["centred", "scaled", "neighbour", "softmax over samples", "cumulative"],
)
def test_outputs_that_depend_on_the_other_samples(run: Callable[..., Tensor]) -> None:
    refused(network(run), X, r"batch", r"sample")


@pytest.mark.parametrize("outputs", [[3], [0, 7], [-4]])
def test_outputs_out_of_range(outputs: list[int]) -> None:
    refused(mlp(nn.ReLU()), X, r"\b3\b", str(outputs[-1]), outputs=outputs)


def test_no_outputs() -> None:
    refused(mlp(nn.ReLU()), X, r"output", outputs=[])


# -- values --------------------------------------------------------------------------------------------------------
def test_activations_that_are_not_finite_name_the_layer() -> None:
    layers = {name: nn.Linear(4, 4) for name in ("lower", "middle", "upper")}
    model = network(lambda m, x: m.head(m.upper(m.middle(m.lower(x)))), **layers)
    with torch.no_grad():
        model.middle.weight[0, 0] = float("inf")
    message = refused(model, X, r"middle", r"finite|nan|inf", kind=NumericalError)
    assert "lower" not in message


def test_inputs_that_are_not_finite() -> None:
    x = X.clone()
    x[2, 1] = float("nan")
    refused(mlp(nn.ReLU()), x, r"input", r"finite|nan", kind=NtkscopeError)


def test_a_layer_that_overflows_names_itself() -> None:
    model = network(lambda m, x: m.head(m.grow(1e200 * x) * 1e200), grow=nn.Linear(4, 4))
    refused(model, X, r"head|output", r"finite|nan|inf", kind=NumericalError)


# -- inputs --------------------------------------------------------------------------------------------------------
def test_inputs_on_another_device() -> None:
    refused(mlp(nn.ReLU()), X.to("meta"), r"meta", r"cpu", r"device")


def test_integers_for_a_network_of_floats() -> None:
    refused(mlp(nn.ReLU()), tokens(4, 4), r"int64", r"float")


def test_bytes_for_a_convolution() -> None:
    model = randomize(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)))
    refused(model, torch.zeros(2, 1, 4, 4, dtype=torch.uint8), r"uint8", r"float")


def test_floats_for_an_embedding_name_the_type() -> None:
    model = randomize(nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(16, 3)))
    with pytest.raises((NtkscopeError, RuntimeError, TypeError), match=r"(?i)int|long"):
        ns.kernel("trntk0", model, X)


def test_no_samples() -> None:
    refused(mlp(nn.ReLU()), X[:0], r"empty|no (samples|inputs)|0 (samples|inputs)")


def test_inputs_of_different_lengths() -> None:
    model = network(lambda m, a, b: m.head(a + b))
    refused(model, (X, X[:3]), r"\b4\b", r"\b3\b")


# -- parameters ----------------------------------------------------------------------------------------------------
def test_zero_trainable_parameters() -> None:
    refused(mlp(nn.ReLU()).requires_grad_(False), X, r"requires_grad")


def test_no_parameters_at_all() -> None:
    refused(nn.Flatten(), X, r"parameter")


def test_a_pattern_no_parameter_matches() -> None:
    refused(mlp(nn.ReLU()), X, r"layer4\.\*", r"0\.weight", kind=NtkscopeError, params="layer4.*")


def test_a_pattern_that_only_matches_frozen_parameters() -> None:
    model = mlp(nn.ReLU())
    model[0].requires_grad_(False)
    refused(model, X, r"0\.\*", r"requires_grad|frozen|trainable", kind=NtkscopeError, params="0.*")


def test_a_predicate_that_chooses_nothing() -> None:
    refused(mlp(nn.ReLU()), X, r"parameter", kind=NtkscopeError, params=lambda name: False)


# -- names, layers, options ----------------------------------------------------------------------------------------
def test_a_kernel_name_nearly_right() -> None:
    refused(mlp(nn.ReLU()), X, r"trnkt", r"did you mean 'trntk", r"entk", kind=UnknownName, name="trnkt")


@pytest.mark.parametrize(("name", "option"), [("em", {"layers": ["9"]}), ("ptk", {"layer": "9"})])
def test_a_layer_that_is_not_there(name: str, option: dict[str, Any]) -> None:
    refused(mlp(nn.ReLU()), X, r"'9'", r"\b2\b", kind=NtkscopeError, name=name, **option)


def test_an_option_the_kernel_does_not_have() -> None:
    with pytest.raises((NtkscopeError, TypeError), match="layerz"):
        ns.kernel("trntk0", mlp(nn.ReLU()), X, layerz=["0"])


def test_an_unknown_projection() -> None:
    both = r"(?s)rademacher.*gaussian|gaussian.*rademacher"
    with pytest.raises((NtkscopeError, TypeCheckError), match=both):  # the tests' type checks may be quicker
        ns.kernel("proj-trntk", mlp(nn.ReLU()), X, kind="uniform")


def test_the_feature_form_between_two_sets() -> None:
    with pytest.raises(NtkscopeError, match="features"):
        ns.kernel("ptk", mlp(nn.ReLU()), X, X[:2], layer="0", form="features")


# -- memory --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["entk", "trntk", "trntk0", "pntk", "proj-trntk", "proj-pntk", "ptk"])
def test_an_impossible_budget_states_the_smallest_possible_one(name: str) -> None:
    model = mlp(nn.ReLU())
    extra: dict[str, Any] = (
        {"dim": 8, "normalize": False} if name.startswith("proj") else {"layer": "0"} if name == "ptk" else {}
    )
    smallest = smallest_budget(lambda memory: ns.kernel(name, model, X, memory=memory, **extra).dense())
    compare(name, model, X, memory=smallest, **extra)
    with pytest.raises(MemoryBudgetError):
        ns.kernel(name, model, X, memory=smallest // 2, **extra).dense()


@pytest.mark.parametrize("memory", ["2 apples", "", -1, "GiB"])
def test_a_budget_that_is_not_one(memory: Any) -> None:
    with pytest.raises(NtkscopeError, match=r"(?i)memory|GiB"):
        ns.kernel("trntk0", mlp(nn.ReLU()), X, memory=memory)


# -- models that seed themselves -----------------------------------------------------------------------------------
def _seeding(run: Callable[..., Tensor]) -> Any:
    return randomize(Net(run, a=nn.Linear(4, 6), b=nn.Linear(6, 3)))


def _mask(m: Any, x: Tensor) -> Tensor:
    torch.manual_seed(5)
    return m.b(torch.tanh(m.a(x)) * torch.randn(6, dtype=x.dtype) * F.dropout(torch.ones(6, dtype=x.dtype)))


@pytest.mark.parametrize("name", ["entk", "trntk0", "pntk"])
def test_a_model_that_seeds_itself_is_deterministic(name: str) -> None:
    model = _seeding(_mask)
    compare(name, model, X)
    before = torch.get_rng_state()
    assert "the global random state" in ns.kernel(name, model, X).certificate.changes
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("late", [False, True])
def test_chance_before_or_after_the_seed_is_refused(late: bool) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h = torch.tanh(m.a(x))
        h = h if late else F.dropout(h, 1e-9)  # which hardly ever shows
        torch.manual_seed(5)
        h = h * torch.randn(6, dtype=x.dtype)
        if late:
            torch.seed()
            h = F.dropout(h, 1e-9)
        return m.b(h)

    refused(_seeding(run), X, "deterministic")


# -- samples that mix beside a large constant ----------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, 1e6])
def test_a_constant_hides_no_mixing(offset: float, dtype: torch.dtype) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        outputs = m.b(torch.tanh(m.a(x)))
        return outputs + 3e-3 * m.mixed * outputs.mean(0) + offset

    model, x = _seeding(run).to(dtype), X.to(dtype)
    for name in ("trntk0", "ptk"):
        model.mixed = 1
        refused(model, x, "other samples", name=name)
        model.mixed = 0
        assert ns.kernel(name, model, x).dense().isfinite().all()
