"""Feature matrices of every site kind against input gradients by plain autograd, and what the door refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import ntkscope as ns
from ntkscope.core import NumericalError, UsageError
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.tangent.matrices import stream as feature_stream
from oracles.against import smallest_budget
from oracles.feature_matrices import expected
from strategies.architectures import Architecture, architectures
from strategies.networks import Net, randomize


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-10) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).norm()) <= tolerance * max(float(theirs.norm()), 1e-30) + 1e-25


def compare(model: nn.Module, x: Any, **options: Any) -> Any:
    """`ns.feature_matrices`, after every layer that the oracle knows was found to be what it says."""
    fm = ns.feature_matrices(model, x, **options)
    for name, oracle in expected(model, x, options.get("outputs")).items():
        parameter = f"{name}.weight".removeprefix("weight.")
        if parameter in fm.left_out or name not in fm:
            continue
        layer = fm[name]
        close(layer.ptk, oracle.ptk)
        close(layer.agop, oracle.agop)
        close(layer.nfm, oracle.nfm)
        if oracle.ptk.any() and oracle.nfm.any():
            F_, G = oracle.nfm, oracle.agop
            assert layer.correlation() == pytest.approx(float((F_ * G).sum() / (F_.norm() * G.norm())), abs=1e-9)
    return fm


def attempted(architecture: Architecture, **options: Any) -> Any:
    """The comparison, unless the network drawn has nothing to look at."""
    assume(len(architecture.x) > 1)
    try:
        return compare(architecture.model, architecture.x, **options)
    except NumericalError as error:
        assume("all gradients are zero" not in str(error))
        raise
    except UsageError as error:
        assume("no affine layer" not in str(error) and "do not depend on the chosen" not in str(error))
        raise


@settings(max_examples=12, deadline=None)
@given(architecture=architectures())
def test_random_networks(architecture: Architecture) -> None:
    attempted(architecture)


@pytest.mark.guard
@settings(max_examples=40, deadline=None)
@given(architecture=architectures())
def test_random_networks_in_the_smallest_memory(architecture: Architecture) -> None:
    assume(len(architecture.x) > 1)
    try:
        smallest = smallest_budget(
            lambda memory: ns.feature_matrices(architecture.model, architecture.x, memory=memory)
        )
    except UsageError:
        assume(False)
    attempted(architecture, memory=smallest)


@settings(max_examples=10, deadline=None)
@given(
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4]),
    dims=st.sampled_from([1, 2]),
    mode=st.sampled_from(["zeros", "circular"]),
    small=st.booleans(),
)
def test_every_option_of_a_convolution(
    stride: int, padding: int, dilation: int, groups: int, dims: int, mode: str, small: bool
) -> None:
    conv: Any = nn.Conv1d if dims == 1 else nn.Conv2d
    body = conv(4, 8, 3, stride=stride, padding=padding, dilation=dilation, groups=groups, padding_mode=mode)
    x = torch.randn(3, 4, *[9] * dims, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    size = body.double()(x)[0].numel()
    model = randomize(nn.Sequential(body, nn.Tanh(), nn.Flatten(), nn.Linear(size, 3)))
    memory: Any = "2GiB"
    if small:
        memory = smallest_budget(lambda memory: ns.feature_matrices(model, x, memory=memory))
    fm = compare(model, x, memory=memory)
    assert fm["0"].weight.shape == (8, 4 * 3**dims)
    assert set(fm) - {"input"} == {"0", "3"}
    assert small or "input" in fm


def test_a_packed_attention_has_its_projections() -> None:
    """Beside one head of attention with its projections apart."""
    packed = randomize(nn.MultiheadAttention(4, 1, batch_first=True))
    parts = {name: nn.Linear(4, 4).double() for name in ("query", "key", "value", "out_proj")}
    weights = [*packed.in_proj_weight.detach().chunk(3), packed.out_proj.weight]
    for layer, weight, bias in zip(parts.values(), weights, [*packed.in_proj_bias.chunk(3), packed.out_proj.bias]):
        layer.load_state_dict({"weight": weight, "bias": bias})

    def apart(m: Any, x: Tensor) -> Tensor:
        scores = m.query(x) @ m.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        return m.out_proj(scores.softmax(-1) @ m.value(x)).mean(1)[:, :3]

    x = torch.randn(4, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = Net(lambda m, x: m.attend(x, x, x, need_weights=False)[0].mean(1)[:, :3], attend=packed)
    found, oracle = ns.feature_matrices(whole, x), expected(Net(apart, **parts), x)
    for name in parts:
        close(found[f"attend.{name}"].agop, oracle[name].agop)
        close(found[f"attend.{name}"].nfm, oracle[name].nfm)


@pytest.mark.parametrize("bias", [False, True])
def test_the_scale_of_the_ntk_parametrisation_is_in_the_weights(bias: bool) -> None:
    """Its square is in NFM and AGOP; AGOP is by the layer's own input, as that of the first layer shows."""
    model = ns.models.build(
        "mlp", in_features=5, classes=2, widths=[6, 4], ntk=True, sigma_w=1.7, sigma_b=0.3, bias=bias
    )
    model = model.double()
    x = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fm = compare(model, x)
    close(fm["layer1"].agop, fm["input"].agop)
    close(fm["layer1"].weight, 1.7 / 5**0.5 * model.layer1.weight.detach())
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        scaled.layer1.weight *= 3
        scaled.layer1.sigma_w /= 3
    close(ns.feature_matrices(scaled, x)["layer1"].nfm, fm["layer1"].nfm)


class Tied(nn.Module):
    """Encodes, encodes again, decodes with the transpose, and reads out with the encoder under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.encode(torch.tanh(self.encode(x))))
        h = F.linear(torch.tanh(h), self.encode.weight.t())
        return self.again(h)[:, :2]


def test_tied_and_repeated_weights_are_one_layer() -> None:
    model = randomize(Tied())
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fm = ns.feature_matrices(model, x)
    oracle = expected(model, x)
    assert fm["again"] is fm["encode"]
    close(fm["encode"].ptk, oracle["encode"].ptk + oracle["again"].ptk)
    close(fm["encode"].agop, oracle["encode"].agop + oracle["again"].agop)
    assert fm["encode"].positions == 3
    backwards = fm["encode (transposed)"]
    close(backwards.weight, model.encode.weight.detach().T)
    total = torch.zeros(4, 4, dtype=torch.float64)
    for one in x.split(1):
        h = torch.tanh(torch.tanh(model.encode(torch.tanh(model.encode(one))))).detach().requires_grad_()
        y = model.again(F.linear(h, model.encode.weight.t()))
        for c in range(2):
            (g,) = torch.autograd.grad(y[0, c], h, retain_graph=True)
            total += g.T @ g / 5
    close(backwards.agop, total)


def test_a_tied_embedding_is_a_readout() -> None:
    """The table is read by index and by a product: the product is a layer, and the check accounts for both."""
    table, head = nn.Embedding(7, 4), nn.Linear(4, 7)
    head.weight = table.weight
    model = randomize(nn.Sequential(table, Mean(), nn.Linear(4, 4), nn.Tanh(), head))
    x = torch.randint(7, (6, 3), generator=torch.Generator().manual_seed(0))
    fm = compare(model, x)
    assert {"0", "2"} == set(fm)
    assert fm["4"] is fm["0"]
    assert "token ids" in fm.left_out["input"]
    assert fm.certificate.checked == 1


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def network() -> tuple[nn.Sequential, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3))
        return model, torch.randn(40, 1, 6, 6)


def test_float32_is_near_and_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network()
    whole = ns.feature_matrices(model, x)
    exact = ns.feature_matrices(model, x, dtype=torch.float64)
    monkeypatch.setattr("ntkscope.tangent.matrices.run.CPU_BLOCK", 7)
    monkeypatch.setattr(feature_stream, "PANEL", 3)
    cut = ns.feature_matrices(model, x, progress=False)
    assert cut.certificate.blocks == cut.certificate.checked == 6
    for name in whole:
        assert whole[name].ptk.dtype == torch.float64
        close(whole[name].ptk, exact[name].ptk, 1e-5)
        close(cut[name].ptk, exact[name].ptk, 1e-5)
        assert torch.equal(cut[name].ptk, cut[name].ptk.T)
    assert [p.grad for p in model.parameters()] == [None] * 6


def test_chosen_layers_and_outputs() -> None:
    model, x = network()
    fm = ns.feature_matrices(model, x, layers=["3", "input"], outputs=[2])
    assert list(fm) == ["input", "3"]
    full = ns.feature_matrices(model, x, outputs=2)
    close(fm["3"].ptk, full["3"].ptk, 1e-6)
    parts = [ns.feature_matrices(model, x, outputs=[c], layers="0")["0"].ptk for c in range(3)]
    close(sum(parts), ns.feature_matrices(model, x)["0"].ptk, 1e-5)
    assert list(ns.feature_matrices(model, x, layers="input")) == ["input"]
    assert fm["3"].correlation() == pytest.approx(
        ns.measures.feature_ansatz.nfa_correlation(fm["3"].weight, fm["3"].ptk)
    )


def test_frozen_weights_and_inference() -> None:
    model, x = network()
    fm = ns.feature_matrices(model, x)
    model.requires_grad_(False)
    with torch.no_grad():
        frozen = ns.feature_matrices(model, x)
    assert all(torch.equal(frozen[name].ptk, fm[name].ptk) for name in fm)
    assert not any(p.requires_grad for p in model.parameters())


def test_a_sketch_has_the_error_it_says() -> None:
    """Of many seeds, the mean is the exact K within four standard errors, and so is the size of single errors."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 30)).double()
        x = torch.randn(25, 4, dtype=torch.float64)
    exact = ns.feature_matrices(model, x)["0"].ptk
    kernels, errors = [], []
    for seed in range(30):
        layer = ns.feature_matrices(model, x, outputs=ns.OutputSketch(3, seed), certify=False, layers="0")["0"]
        kernels.append(layer.ptk)
        errors.append(layer.standard_error)
    spread = torch.stack(kernels).std(0)
    assert bool(((torch.stack(kernels).mean(0) - exact).abs() < 4 * spread / 30**0.5).all())
    said = torch.stack(errors).square().mean(0).sqrt()
    assert bool((said / spread > 0.55).all())
    assert bool((said / spread < 1.8).all())
    few = ns.feature_matrices(model, x, outputs="sketch", layers="0")
    assert few.certificate.checked
    assert ns.feature_matrices(model, x, outputs=ns.OutputSketch(30), layers="0")["0"].standard_error is None


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 99), convolutional=st.booleans())
def test_centred_forms(seed: int, convolutional: bool) -> None:
    """`K̄` is of the difference of tangents at the same inputs."""
    shape: tuple[int, ...] = (2, 4, 4) if convolutional else (4,)
    first: nn.Module = nn.Conv2d(2, 3, 2) if convolutional else nn.Linear(4, 27)
    model = randomize(nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.Linear(27, 4), nn.Tanh(), nn.Linear(4, 2)), seed)
    initial = randomize(copy.deepcopy(model), seed + 100)
    x = torch.randn(5, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    fm = ns.feature_matrices(model, x, initial=initial)
    total = torch.zeros_like(fm["0"].ptk)
    for one in x.split(1):
        tangents = []
        for network in (model, initial):
            h = network[0](one).detach().requires_grad_()
            y = network[1:](h)
            tangents.append([torch.autograd.grad(y[0, c], h, retain_graph=True)[0] for c in range(2)])
        for b, b0 in zip(*tangents):
            rows = (b - b0).reshape(1, len(total), -1)[0].T
            total += rows.T @ rows / 5
    close(fm["0"].centred_ptk, total)
    close(fm["0"].ptk, ns.feature_matrices(model, x)["0"].ptk)
    W, W0 = fm["0"].weight, fm["0"].initial_weight
    close(W0, initial[0].weight.detach().flatten(1))
    for centring in (None, "weights", "both", "tangents"):
        own = ns.measures.feature_ansatz.nfa_correlation(W, fm["0"].ptk, W0=W0, Kc=total, centring=centring)
        assert fm["0"].correlation(centring) == pytest.approx(own, abs=1e-10)
    control = fm["0"].control(5, centring="weights")
    assert control.observed == fm["0"].correlation("weights")
    again = ns.feature_matrices(model, x, initial=initial.state_dict())
    assert torch.equal(again["0"].centred_ptk, fm["0"].centred_ptk)


def test_what_has_no_rule_is_named() -> None:
    parts = {"form": nn.Bilinear(4, 4, 4), "head": nn.Linear(4, 2)}
    model = randomize(Net(lambda m, x: m.head(torch.tanh(m.form(x, x))), **parts))
    x = torch.randn(4, 4, dtype=torch.float64)
    found = compare(model, x)
    assert set(found) == {"input", "head"}
    assert "no rule" in found.left_out["form.weight"]
    assert "left out: form.weight" in repr(found)
    with pytest.raises(UsageError, match=r"no affine layer of this network.*form.weight \(no rule"):
        ns.feature_matrices(model, x, layers="form")


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary: cotangents that are not autograd's end in an error, not in a K."""
    model, x = network()
    pull = feature_stream.Block.pull

    def wrong(self: Any, *args: Any) -> Any:
        found, gradient = pull(self, *args)
        if self.weighted:
            first = next(iter(self.weighted))
            self.weighted[first] = self.weighted[first] * 1.01
        return found, gradient

    monkeypatch.setattr(feature_stream.Block, "pull", wrong)
    fm_or_error: Any
    try:
        fm_or_error = ns.feature_matrices(model, x)
    except UsageError as error:
        fm_or_error = error
    assert isinstance(fm_or_error, UsageError) or "was not what autograd gives" in str(fm_or_error.left_out)


def dead() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.constant_(model[0].bias, -100.0)
    return model


def text() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(5, 4), Mean(), nn.Linear(4, 2))


ONES = torch.ones(3, 4)
fm = ns.feature_matrices
WRONG: dict[str, tuple[type[Exception], Callable[[nn.Sequential, Tensor], Any]]] = {
    "got one sample; expected at least two": (UsageError, lambda m, x: fm(m, x[:1])),
    r"got the layer 'conv9'.*there are: input, 0, 3, 5": (UsageError, lambda m, x: fm(m, x, layers="conv9")),
    "there are: input, 0, 3, 5": (KeyError, lambda m, x: fm(m, x)["conv9"]),
    "is the network's input, which has no weights": (UsageError, lambda m, x: fm(m, x)["input"].correlation()),
    "pass initial= as well": (UsageError, lambda m, x: fm(m, x)["3"].correlation("weights")),
    "the trained network itself": (UsageError, lambda m, x: fm(m, x, initial=m)),
    "weights that are the trained ones": (UsageError, lambda m, x: fm(m, x, initial=copy.deepcopy(m))),
    "does not fit": (UsageError, lambda m, x: fm(m, x, initial={"0.weight": torch.ones(1)})),
    "does not fit the trained one": (
        UsageError, lambda m, x: fm(m, x, initial=nn.Sequential(nn.Flatten(), nn.Linear(36, 3))),
    ),
    "NaN or infinity in 1 samples": (
        NumericalError, lambda m, x: fm(m, x.index_fill(0, torch.tensor([3]), torch.nan)),
    ),
    r"model.eval\(\)": (UsageError, lambda m, x: fm(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), ONES)),
    "no affine layer": (UsageError, lambda m, x: fm(nn.LayerNorm(4), ONES)),
    "token ids": (UsageError, lambda m, x: fm(text(), ONES.long(), layers="input")),
    "its K is zero": (NumericalError, lambda m, x: fm(dead(), ONES)["0"].correlation()),
    "all gradients are zero": (NumericalError, lambda m, x: fm(dead(), ONES, layers=["0", "input"])),
    "smallest budget that works": (MemoryBudgetError, lambda m, x: fm(m, x, memory=1000)),
    "got outputs='all'": (UsageError, lambda m, x: fm(m, x, outputs="all")),
    "got outputs": (UsageError, lambda m, x: fm(m, x, outputs=[7])),
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG)
def test_bad_input(words: str) -> None:
    kind, call = WRONG[words]
    with pytest.raises(kind, match=words):
        call(*network())


def test_an_input_too_large_for_the_memory_is_left_out() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(600, 2))
    fm = ns.feature_matrices(model, torch.randn(4, 600), memory="8MiB")
    assert list(fm) == ["1"]
    assert "name it in layers=" in fm.left_out["input"]


@pytest.mark.parametrize("scale", [1e-25, 1e-20, 1e20])
def test_gradients_whose_squares_float32_does_not_hold_are_not_lost(scale: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    x = torch.randn(9, 4)
    plain = ns.feature_matrices(model, x)
    with torch.no_grad():
        model[2].weight.mul_(scale)
    found = ns.feature_matrices(model, x)
    for name in ("input", "0"):
        assert torch.allclose(found[name].ptk / scale**2, plain[name].ptk, rtol=1e-4, atol=1e-6)
