"""`ns.Tangent`: probed once, right for whatever the caller does to the model in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import NtkscopeError, UsageError
from oracles.against import NAMES, expected
from oracles.autograd import jacobian
from oracles.closeness import assert_kernel_close
from strategies.networks import Net, noise, parameter, randomize, tokens

OPTIONS: dict[str, dict[str, Any]] = {
    "proj-trntk": {"dim": 16},
    "proj-pntk": {"dim": 16, "normalize": False},
    "em": {"layers": ["0", "2"]},
    "ptk": {"layer": "0"},
}
X, Y = noise(5, 4), noise(4, 4, seed=2)


def mlp() -> nn.Sequential:
    return randomize(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))


def holds(tangent: ns.Tangent, x: Any, name: str = "trntk0", tolerance: float = 1e-10) -> None:
    """What a kept engine gives is what the oracle says of the model as it is now."""
    assert_kernel_close(tangent.kernel(name, x).dense(), expected(name, tangent.model, x), tolerance)


@pytest.mark.guard
# -- the same numbers, probed once ---------------------------------------------------------------------------------
def test_all_kernels_from_one_probe(probes: list[int]) -> None:
    tangent = ns.Tangent(mlp())
    for name in NAMES:
        options = OPTIONS.get(name, {})
        for other in (None, Y):
            kept = tangent.kernel(name, X, other, **options)
            assert torch.equal(kept.dense(), ns.kernel(name, mlp(), X, other, **options).dense()), name
    fresh = 2 * len([name for name in NAMES if name not in ("ck", "em", "ptk")])
    assert len(probes) == 1 + fresh


def test_a_sample_is_probed_at_construction(probes: list[int]) -> None:
    tangent = ns.Tangent(mlp(), Y)
    assert probes == [4]
    holds(tangent, X)
    holds(tangent, X, "entk")
    tangent.features(X)
    tangent.vjp(X, torch.ones(5, 3, dtype=torch.float64))
    assert probes == [4]


def test_choices_are_kept(probes: list[int]) -> None:
    tangent = ns.Tangent(mlp(), outputs=[0, 2], params="2.*", certify=False)
    for _ in range(2):
        gram = tangent.kernel("entk", X)
        assert_kernel_close(gram.dense(), expected("entk", mlp(), X, outputs=[0, 2], params="2.*"))
        assert gram.certificate.checked == 0
    assert len(probes) == 1


# -- weights that change in place ----------------------------------------------------------------------------------
def stepped(model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model(X.to(next(model.parameters()).dtype)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def copied(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p * 0.7 + 0.1)


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("change", [copied, pytest.param(stepped, marks=pytest.mark.guard)])
def test_weights_are_followed(
    change: Callable[[nn.Module], None], dtype: torch.dtype | None, probes: list[int]
) -> None:
    """In the model's own dtype (float64), and converted from float32."""
    model = mlp() if dtype is None else mlp().float()
    x = X if dtype is None else X.float()
    tangent = ns.Tangent(model, dtype=dtype)
    holds(tangent, x)
    before = tangent.kernel("trntk0", x).dense()
    for _ in range(2):
        change(model)
        for name in ("trntk0", "ck"):
            holds(tangent, x, name)
        assert not torch.allclose(tangent.kernel("trntk0", x).dense(), before, rtol=1e-3)
        exact = jacobian(model, x)
        for name, value in tangent.features(x).items():
            torch.testing.assert_close(value, exact[name], rtol=1e-9, atol=1e-10)
    assert len(probes) == 1


def test_frozen_and_thawed_parameters_are_followed() -> None:
    model = mlp()
    tangent = ns.Tangent(model)
    assert len(tangent.features(X)) == 4
    model[0].requires_grad_(False)
    assert set(tangent.features(X)) == {"2.weight", "2.bias"}
    holds(tangent, X)
    model[0].requires_grad_(True)
    assert len(tangent.features(X)) == 4
    holds(tangent, X)
    model.requires_grad_(False)
    with pytest.raises(UsageError, match="no trainable parameter"):
        tangent.kernel("trntk0", X)


# -- other inputs --------------------------------------------------------------------------------------------------
def attentive() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.embed(x)
        return m.head(m.norm(h + m.attend(h, h, h, need_weights=False)[0]).sum(1))

    attend = nn.MultiheadAttention(4, 2, batch_first=True)
    return Net(run, embed=nn.Embedding(9, 4), attend=attend, norm=nn.LayerNorm(4), head=nn.Linear(4, 2))


def convolutional() -> nn.Module:
    layers = [nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3, 2))


def folded() -> nn.Module:
    """With t = n the samples could sit on either axis; a kept layout must not be believed."""
    return Net(lambda m, x: m.head(m.a(x.transpose(0, 1)).tanh().sum(0)), a=nn.Linear(4, 3), head=nn.Linear(3, 2))


SIZES: dict[str, tuple[Callable[[], nn.Module], list[Tensor]]] = {
    "longer sequences": (attentive, [tokens(n, t, vocabulary=9) for t in (3, 7, 1, 4) for n in (5, 2)]),
    "other images": (convolutional, [noise(4, 2, size, size) for size in (6, 9, 5, 12)]),
    "samples on another axis": (
        folded, [noise(n, t, 4) for n, t in ((5, 3), (3, 3), (2, 6), (6, 2), (1, 4), (4, 1))],
    ),
}  # fmt: skip


@pytest.mark.guard
@pytest.mark.parametrize("name", SIZES)
def test_inputs_of_other_sizes(name: str) -> None:
    make, inputs = SIZES[name]
    tangent = ns.Tangent(randomize(make()))
    for k, x in enumerate(inputs):
        holds(tangent, x, "entk" if k % 2 else "trntk0")


def test_a_branch_that_flips_between_calls() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x).tanh()
        if m.flag:
            return m.head(m.b(h))
        return m.head(h * m.scale)

    model = randomize(Net(run, a=nn.Linear(4, 3), b=nn.Linear(3, 3), scale=parameter(3), head=nn.Linear(3, 2)))
    model.flag = True
    tangent = ns.Tangent(model)
    for _ in range(2):
        holds(tangent, X)
        model.flag = not model.flag
    holds(tangent, X)


def test_a_branch_that_inputs_choose() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        y, far = m.head(x), x[:, 0] > 2
        if bool(far.any()):
            y = y.index_add(0, far.nonzero().flatten(), m.expert(x[far]))
        return y

    tangent = ns.Tangent(randomize(Net(run, head=nn.Linear(4, 2), expert=nn.Linear(4, 2))))
    near, far = X.clamp(-1, 1), X + 10
    for x in (near, far, torch.cat([near, far]), near):
        holds(tangent, x)


def test_what_fell_back_is_tried_again() -> None:
    """A detour of one call is not a verdict on the next."""

    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(m.a(x)) if bool((x[:, 0] < 5).all()) else m.head(m.a(x)) * m.a.weight.sum()

    tangent = ns.Tangent(randomize(Net(run, a=nn.Linear(4, 3), head=nn.Linear(3, 2))))
    holds(tangent, X)
    with pytest.raises(NtkscopeError):  # samples that change what the others get
        tangent.kernel("trntk0", torch.cat([X, X + 20]))
    holds(tangent, X)


@pytest.mark.guard
# -- features and products -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("outputs", [None, [2, 0], 1])
def test_features_are_gradients(outputs: Any) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(m.conv(x).tanh().sum(2) * m.scale + m.offset)

    scalar = nn.Parameter(torch.tensor(0.5))
    parts = {"scale": parameter(3), "offset": scalar, "idle": parameter(2)}
    model = randomize(Net(run, conv=nn.Conv1d(2, 3, 2), head=nn.Linear(3, 3), **parts))
    x = noise(5, 2, 4)
    found = ns.Tangent(model, outputs=outputs).features(x)
    exact = jacobian(model, x, outputs=[outputs] if isinstance(outputs, int) else outputs)
    assert set(found) == set(exact)
    for name, value in exact.items():
        assert found[name].numel() == value.numel()
        torch.testing.assert_close(found[name].reshape(value.shape), value, rtol=1e-10, atol=1e-12)
        assert not found[name].requires_grad


def test_features_of_packed_and_tied_weights() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.embed(x)
        return m.attend(h, h, h)[0].sum(1) @ m.embed.weight.T

    model = randomize(Net(run, embed=nn.Embedding(6, 4), attend=nn.MultiheadAttention(4, 2, batch_first=True)))
    x = tokens(4, 3, vocabulary=6)
    exact = jacobian(model, x)
    for name, value in ns.Tangent(model).features(x).items():
        torch.testing.assert_close(value, exact[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("outputs", "dtype"), [(None, None), ([2, 0], None), (None, torch.float64)])
def test_products_with_the_jacobian(outputs: list[int] | None, dtype: torch.dtype | None) -> None:
    model, x = (mlp(), X) if dtype is None else (mlp().float(), X.float())
    tangent = ns.Tangent(model, outputs=outputs, dtype=dtype)
    cotangent = noise(5, 3 if outputs is None else len(outputs), seed=3)
    direction = {name: noise(*p.shape, seed=k) for k, (name, p) in enumerate(model.named_parameters())}
    for _ in range(2):
        exact, pulled = jacobian(model, x, outputs=outputs), tangent.vjp(x, cotangent)
        for name, value in exact.items():
            torch.testing.assert_close(pulled[name], torch.einsum("nc...,nc->...", value, cotangent))
        along = [
            torch.einsum("ncp,p->nc", value.flatten(2), direction[name].flatten()) for name, value in exact.items()
        ]
        torch.testing.assert_close(tangent.jvp(x, direction), sum(along))
        stepped(model)


# -- refusals ------------------------------------------------------------------------------------------------------
def test_wrong_questions() -> None:
    tangent = ns.Tangent(mlp(), outputs=[0, 9])
    with pytest.raises(UsageError, match="3 outputs"):
        tangent.kernel("trntk0", X)
    tangent = ns.Tangent(mlp())
    with pytest.raises(UsageError, match="no option"):
        tangent.kernel("trntk0", X, dim=3)
    with pytest.raises(UsageError, match="without store"):
        tangent.kernel("trntk0", X, executor=object())
    with pytest.raises(NtkscopeError):
        tangent.kernel("unheard-of", X)
    with pytest.raises(UsageError, match="shape"):
        tangent.vjp(X, torch.zeros(5, 2, dtype=torch.float64))
    with pytest.raises(UsageError):
        tangent.jvp(X, {"nothing": torch.zeros(3)})
    with pytest.raises(UsageError, match="OutputSketch"):
        ns.Tangent(mlp(), outputs=ns.OutputSketch(4)).vjp(X, torch.zeros(5, 3, dtype=torch.float64))
    holds(tangent, X)


# -- another number of outputs -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("before", "after"), [(5, 3), (3, 5)])
def test_another_number_of_outputs(before: int, after: int) -> None:
    model = randomize(Net(lambda m, x: m.b(torch.tanh(m.a(x)))[:, : m.width], a=nn.Linear(4, 6), b=nn.Linear(6, 5)))
    model.width = before
    tangent, some = ns.Tangent(model), ns.Tangent(model, outputs=[2])
    for each in (tangent, some):
        each.kernel("trntk0", X)
        each.features(X)
    model.width = after
    for name in ("trntk0", "entk", "pntk"):
        holds(tangent, X, name)
    assert tangent.features(X)["a.bias"].shape == (5, after, 6)
    assert torch.equal(some.kernel("trntk0", X).dense(), ns.kernel("trntk0", model, X, outputs=[2]).dense())
    model.width = 2
    with pytest.raises(UsageError, match=r"outputs=\[2\] for a model with 2 outputs"):
        some.kernel("trntk0", X)
