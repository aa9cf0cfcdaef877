"""Wrong use is refused, and the message says what came, what was expected and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor, nn
from torch.nn import functional as F

import ntkscope as ns
from ntkscope.core import NtkscopeError
from ntkscope.core.errors import MemoryBudgetError
from oracles.against import compare, smallest_budget
from strategies.networks import Net, noise, randomize, tokens


def mlp(*layers: nn.Module) -> nn.Sequential:
    return randomize(nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3)))


def network(run: Callable[..., Any], **parts: nn.Module) -> Any:
    return randomize(Net(run, head=nn.Linear(4, 3), **parts))


def refused(model: nn.Module, x: Any, *words: str, **options: Any) -> None:
    """Each of `words` (regular expressions) is found in the message."""
    with pytest.raises(NtkscopeError) as caught:
        ns.kernel(options.pop("name", "trntk0"), model, x, options.pop("x2", None), **options).dense()
    for word in words:
        assert re.search(word, str(caught.value), re.IGNORECASE), f"{word!r} is not in: {caught.value}"


X = noise(4, 4)


def embedded() -> Any:
    return randomize(nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(16, 3)))


def attentive() -> Any:
    attend = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
    return network(lambda m, x: m.head(m.attend(x, x, x)[0].mean(1)), attend=attend).train()


def recurrent() -> Any:
    lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)
    return network(lambda m, x: m.head(m.lstm(x)[0][:, -1]), lstm=lstm).train()


def frozen_below() -> Any:
    model = mlp(nn.ReLU())
    model[0].requires_grad_(False)
    return model


def infinite_in_the_middle() -> Any:
    layers = {name: nn.Linear(4, 4) for name in ("lower", "middle", "upper")}
    model = network(lambda m, x: m.head(m.upper(m.middle(m.lower(x)))), **layers)
    with torch.no_grad():
        model.middle.weight[0, 0] = float("inf")
    return model


WRONG: dict[str, tuple[Any, Any, Sequence[str], dict[str, Any]]] = {
    # modes
    "batch norm that always uses the batch": (mlp(nn.BatchNorm1d(6, track_running_stats=False)), X, ["batch"], {}),
    "active dropout": (mlp(nn.Dropout(0.5)).train(), X, ["dropout", r"model\.eval\(\)"], {}),
    "dropout inside attention": (attentive(), noise(4, 3, 4), [r"eval\(\)"], {}),
    "dropout inside a recurrent layer": (recurrent(), noise(4, 3, 4), [r"eval\(\)"], {}),
    "dropout as a function": (
        network(lambda m, x: m.head(F.dropout(x, 0.5, training=True))), X, ["random|determin|batch|same input"], {},
    ),
    # outputs
    "one axis": (network(lambda m, x: m.head(x)[:, 0]), X, [r"\(\d,\)", r"\(n, c\)"], {}),
    "three axes": (network(lambda m, x: m.head(x)[:, :, None]), X, [r"\(\d, 3, 1\)", r"\(n, c\)"], {}),
    "a number": (network(lambda m, x: m.head(x).sum()), X, [r"\(\)", r"\(n, c\)"], {}),
    "one row": (network(lambda m, x: m.head(x).mean(0, keepdim=True)), X, [r"\(1, 3\)", r"\(n, c\)"], {}),
    "a tuple": (network(lambda m, x: (m.head(x), x)), X, ["tuple", r"tensor|\(n, c\)"], {}),
    "a dictionary": (network(lambda m, x: {"scores": m.head(x)}), X, ["dict", r"tensor|\(n, c\)"], {}),
    "a list": (network(lambda m, x: [m.head(x)]), X, ["list", r"tensor|\(n, c\)"], {}),
    "integers": (network(lambda m, x: m.head(x).argmax(1, keepdim=True)), X, ["int64|integer|float"], {}),
    "centred": (network(lambda m, x: m.head(x - x.mean(0))), X, ["batch", "sample"], {}),
    "scaled": (network(lambda m, x: m.head(x / x.abs().max())), X, ["batch", "sample"], {}),
    "with the neighbour": (network(lambda m, x: m.head(x + x.roll(1, 0))), X, ["batch", "sample"], {}),
    "softmax over samples": (network(lambda m, x: m.head(x).softmax(0)), X, ["batch", "sample"], {}),
    "cumulative": (network(lambda m, x: m.head(x.cumsum(0))), X, ["batch", "sample"], {}),
    "an output too many": (mlp(nn.ReLU()), X, [r"\b3\b", "7"], {"outputs": [0, 7]}),
    "a negative output": (mlp(nn.ReLU()), X, [r"\b3\b", "-4"], {"outputs": [-4]}),
    "no outputs": (mlp(nn.ReLU()), X, ["output"], {"outputs": []}),
    # values
    "an infinite weight": (infinite_in_the_middle(), X, ["^((?!lower).)*middle((?!lower).)*$", "finite|nan|inf"], {}),
    "an input that is not finite": (mlp(nn.ReLU()), X.clone().fill_diagonal_(torch.nan), ["input", "finite|nan"], {}),
    "a layer that overflows": (
        network(lambda m, x: m.head(m.grow(1e200 * x) * 1e200), grow=nn.Linear(4, 4)), X,
        ["head|output", "finite|nan|inf"], {},
    ),
    # inputs
    "another device": (mlp(nn.ReLU()), X.to("meta"), ["meta", "cpu", "device"], {}),
    "integers for a network of floats": (mlp(nn.ReLU()), tokens(4, 4), ["int64", "float"], {}),
    "bytes for a convolution": (
        randomize(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))),
        torch.zeros(2, 1, 4, 4, dtype=torch.uint8), ["uint8", "float"], {},
    ),
    "floats for an embedding": (embedded(), X, ["int|long"], {}),
    "no samples": (mlp(nn.ReLU()), X[:0], [r"empty|no (samples|inputs)|0 (samples|inputs)"], {}),
    "inputs of different lengths": (network(lambda m, a, b: m.head(a + b)), (X, X[:3]), [r"\b4\b", r"\b3\b"], {}),
    # parameters
    "all frozen": (mlp(nn.ReLU()).requires_grad_(False), X, ["requires_grad"], {}),
    "no parameters": (nn.Flatten(), X, ["parameter"], {}),
    "a pattern that matches none": (mlp(nn.ReLU()), X, [r"layer4\.\*", r"0\.weight"], {"params": "layer4.*"}),
    "a pattern of frozen ones": (frozen_below(), X, [r"0\.\*", "requires_grad|frozen|trainable"], {"params": "0.*"}),
    "a predicate that chooses none": (mlp(nn.ReLU()), X, ["parameter"], {"params": lambda name: False}),
    # names, layers, options
    "a word of the field": (
        mlp(nn.ReLU()),
        X,
        [r"did you mean 'entk' \(empirical NTK\) or 'trntk0' \(trace NTK\)\? known"],
        {"name": "NTK"},
    ),
    "its infinite counterpart": (mlp(nn.ReLU()), X, ["did you mean 'ck'"], {"name": "nngp"}),
    "a longer word": (mlp(nn.ReLU()), X, ["did you mean 'pntk'"], {"name": "pseudo_ntk"}),
    "a name nearly right": (mlp(nn.ReLU()), X, ["trnkt", "did you mean 'trntk", "entk"], {"name": "trnkt"}),
    "a layer of em": (mlp(nn.ReLU()), X, ["'9'", r"\b2\b"], {"name": "em", "layers": ["9"]}),
    "a layer of ptk": (mlp(nn.ReLU()), X, ["'9'", r"\b2\b"], {"name": "ptk", "layer": "9"}),
    "an option the kernel does not have": (mlp(nn.ReLU()), X, ["layerz"], {"layerz": ["0"]}),
    "features between two sets": (
        mlp(nn.ReLU()), X, ["features"], {"name": "ptk", "x2": X[:2], "layer": "0", "form": "features"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_refused_with_words(case: str) -> None:
    model, x, words, options = WRONG[case]
    refused(model, x, *words, **options)


@pytest.mark.parametrize("name", ["entk", "trntk", "pntk", "proj-trntk", "ck", "em", "ptk"])
def test_batch_norm_in_training_mode(name: str) -> None:
    refused(mlp(nn.BatchNorm1d(6), nn.ReLU()).train(), X, r"BatchNorm", r"\b1\b", r"model\.eval\(\)", name=name)


def test_training_mode_itself_is_fine() -> None:
    model = mlp(nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Dropout(0.0)).train()
    model[1].eval()
    model[3].eval()
    compare("trntk0", model, X)
    assert model.training


def test_an_unknown_projection() -> None:
    both = r"(?s)rademacher.*gaussian|gaussian.*rademacher"
    with pytest.raises((NtkscopeError, TypeCheckError), match=both):  # the tests' type checks may be quicker
        ns.kernel("proj-trntk", mlp(nn.ReLU()), X, kind="uniform")


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
