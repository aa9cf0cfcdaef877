"""The oracles on networks whose kernels are known by hand, and canaries: a wrong kernel is caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oracles import naive
from oracles.autograd import jacobian
from oracles.closeness import assert_kernel_close, relative_error

X = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.25]], dtype=torch.float64)
Y = torch.tensor([[-1.0, 0.5], [2.0, 2.0]], dtype=torch.float64)


def linear(bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3, bias=bias)).double()


class Tied(nn.Module):
    """f(x) = w² x: the weight is used twice, so df/dw = 2 w x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * (self.w * x)


def test_one_linear_layer_has_the_closed_form_of_every_kernel() -> None:
    model, inner = linear(), X @ Y.T + 1
    identity = torch.eye(3, dtype=torch.float64)
    assert_kernel_close(naive.kernel("entk", model, X, Y), torch.kron(inner, identity))
    assert_kernel_close(naive.kernel("trntk0", model, X, Y), 3 * inner)
    norms = (X.square().sum(1) + 1).sqrt()[:, None] * (Y.square().sum(1) + 1).sqrt()[None]
    assert_kernel_close(naive.kernel("trntk", model, X, Y), inner / norms)
    assert_kernel_close(naive.kernel("pntk", model, X, Y), inner)
    assert_kernel_close(naive.kernel("ck", model, X, Y), inner)
    assert_kernel_close(naive.kernel("em", model, X, Y, layers=["0"]), (model(X) @ model(Y).T).detach())
    assert_kernel_close(naive.kernel("ptk", model, X, Y, layer="0"), torch.full((3, 2), 3.0))
    assert_kernel_close(naive.kernel("ptk", model, X, layer="0", form="features"), identity)


def test_without_a_bias_the_one_goes() -> None:
    assert_kernel_close(naive.kernel("ck", linear(bias=False), X, Y), X @ Y.T)
    assert_kernel_close(naive.kernel("trntk0", linear(bias=False), X, Y), 3 * X @ Y.T)


def test_two_layers_by_hand() -> None:
    hidden, top = nn.Linear(2, 4, bias=False), nn.Linear(4, 1, bias=False)
    model = nn.Sequential(hidden, nn.ReLU(), top).double()
    w, v = hidden.weight.detach(), top.weight.detach()[0]
    on1, on2 = ((z @ w.T > 0).double() for z in (X, Y))
    lower = (X @ Y.T) * ((on1 * v) @ (on2 * v).T)
    upper = (X @ w.T).relu() @ (Y @ w.T).relu().T
    assert_kernel_close(naive.kernel("trntk0", model, X, Y), lower + upper)
    assert_kernel_close(naive.kernel("trntk0", model, X, Y, params="0.*"), lower)
    assert_kernel_close(naive.kernel("trntk0", model, X, Y, params="last"), upper)
    assert_kernel_close(naive.kernel("trntk0", model, X, Y, params=lambda name: name.startswith("2")), upper)
    assert_kernel_close(naive.kernel("ptk", model, X, Y, layer="0"), (on1 * v) @ (on2 * v).T)
    gamma = on1 * v
    assert_kernel_close(naive.kernel("ptk", model, X, layer="0", form="features"), gamma.T @ gamma / 3)


def test_a_weight_used_twice_has_its_cross_term() -> None:
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    assert_kernel_close(naive.kernel("trntk0", Tied(), x), 36 * x @ x.T)


def test_a_convolution_is_the_linear_layer_of_its_patches() -> None:
    conv = nn.Conv2d(2, 3, 3, padding=1, stride=2).double()
    model = nn.Sequential(conv, nn.Flatten())
    x = torch.randn(3, 2, 5, 5, dtype=torch.float64)
    patches = F.unfold(x, 3, padding=1, stride=2)  # (n, c·k·k, s)
    grams = torch.einsum("ias,jas->ijs", patches, patches) + 1
    # output (channel o, position s) only sees row o of the weight and patch s, so the trace is Σ_{o,s} (a_s · a'_s + 1)
    assert_kernel_close(naive.kernel("trntk0", model, x), 3 * grams.sum(2))


def test_a_conv_cotangent_is_summed_over_positions() -> None:
    conv = nn.Conv1d(1, 2, 1, bias=False).double()
    model = nn.Sequential(conv, nn.Flatten())
    x = torch.randn(4, 1, 3, dtype=torch.float64)
    # f is h itself: every (channel, position) once
    assert_kernel_close(naive.kernel("ptk", model, x, layer="0"), torch.full((4, 4), 6.0))
    assert_kernel_close(naive.kernel("ptk", model, x, layer="0", form="features"), 3 * torch.eye(2))


def test_chosen_outputs_keep_their_order() -> None:
    model = linear()
    whole = naive.kernel("entk", model, X).view(3, 3, 3, 3).transpose(1, 2)  # (n, m, c, c)
    chosen = naive.kernel("entk", model, X, outputs=[2, 0]).view(3, 2, 3, 2).transpose(1, 2)
    assert_kernel_close(chosen, whole[:, :, [2, 0]][..., [2, 0]])


def test_frozen_and_unused_parameters() -> None:
    model = linear()
    model[0].bias.requires_grad_(False)
    model.register_parameter("idle", nn.Parameter(torch.ones(2)))
    j = jacobian(model, X)
    assert set(j) == {"0.weight", "idle"}
    assert not j["idle"].any()


def test_projecting_with_the_identity_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False)).double()

    def identity(name: str, shape: torch.Size) -> Tensor:
        return torch.eye(shape.numel(), dtype=torch.float64)

    for projected, exact in [("proj-trntk", "trntk0"), ("proj-pntk", "pntk")]:
        raw = naive.kernel(projected, model, X, Y, projection=identity, normalize=False)
        assert_kernel_close(raw, naive.kernel(exact, model, X, Y))
    cosine = naive.kernel("proj-trntk", model, X, Y, projection=identity)
    assert_kernel_close(cosine, naive.kernel("trntk", model, X, Y))


def test_mappings_are_keywords_and_tuples_are_positional() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(2, 1)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.lin(a) - self.lin(b)

    model, z = Two().double(), Y[:1].expand(3, 2)
    expected = (X - z) @ (X - z).T  # the bias cancels
    assert_kernel_close(naive.kernel("trntk0", model, (X, z)), expected)
    assert_kernel_close(naive.kernel("trntk0", model, {"b": z, "a": X}), expected)


def test_the_model_given_to_the_oracle_stays_as_it_was() -> None:
    model = linear().float()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    naive.kernel("entk", model, X)
    naive.kernel("em", model, X, layers=["0"])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not model[0]._forward_hooks
    assert model[0].weight.dtype == torch.float32


# -- canaries: each of these mistakes must be seen -----------------------------------------------------------------
def mean_over_outputs(j: Tensor) -> Tensor:
    return naive.trntk0(j, j) / j.shape[1]


def no_factor(j: Tensor) -> Tensor:
    return naive.pntk(j, j) * j.shape[1]


def summed_roots(j: Tensor) -> Tensor:
    """The printed denominator, Σ_c of roots, instead of the root of the sum: not a cosine."""
    roots = j.square().sum(2).sqrt().sum(1)
    return naive.trntk0(j, j) / torch.outer(roots, roots)


def outputs_outside(j: Tensor) -> Tensor:
    """Rows ordered c*n + i instead of i*c + k."""
    return naive.entk(j.transpose(0, 1), j.transpose(0, 1))


@pytest.mark.parametrize(
    ("name", "mistake"),
    [("trntk0", mean_over_outputs), ("pntk", no_factor), ("trntk", summed_roots), ("entk", outputs_outside)],
)
def test_a_wrong_kernel_is_caught(name: str, mistake: Callable[[Tensor], Tensor]) -> None:
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    j = naive.flat(jacobian(model, X))
    with pytest.raises(AssertionError, match="differ"):
        assert_kernel_close(mistake(j), naive.kernel(name, model, X))


def test_a_missing_cross_term_is_caught() -> None:
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    per_use = 9 * x @ x.T + 9 * x @ x.T  # each use alone: w x twice, without the products between them
    with pytest.raises(AssertionError, match="differ"):
        assert_kernel_close(per_use, naive.kernel("trntk0", Tied(), x))


def test_closeness_sees_small_errors_shapes_and_nans() -> None:
    k = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    assert_kernel_close(k + 1e-11, k)
    for wrong in (k + 1e-9, k[:1], k * float("nan"), k.T.reshape(1, 4)):
        with pytest.raises(AssertionError, match="differ"):
            assert_kernel_close(wrong, k)
    assert relative_error(k, k * 0) == float("inf")
