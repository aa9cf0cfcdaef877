"""Projections on a layer's directions against plain autograd and plain unfolding, and the saliency of tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ntkscope as ns
from ntkscope.core import UsageError, generator
from ntkscope.linalg.features.directions import leading_of_features, leading_of_matrix
from ntkscope.tangent.matrices.projections import Projector
from ntkscope.tangent.operators.inputs import token_saliency

CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilated": {"kernel_size": 2, "dilation": 2},
    "grouped": {"kernel_size": 3, "groups": 2, "padding": 1},
}


def network(**options: object) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 6, **options),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 3),
    ).double()


def patches(h: Tensor, layer: nn.Conv2d) -> Tensor:
    """(n, positions, in) of a convolution, groups side by side, by PyTorch's own unfold."""
    found = F.unfold(h, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return found.transpose(1, 2)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_the_strongest_patches_are_those_of_plain_unfolding(kind: str) -> None:
    model = network(**CONVOLUTIONS[kind]).eval()
    x = torch.randn(90, 1, 8, 8, dtype=torch.float64, generator=generator(0, "x"))
    fm = ns.feature_matrices(model, x)
    vectors = leading_of_features(fm["2"].weight, fm["2"].ptk, 2).vectors
    projector = Projector(model, x)
    assert list(projector.sites) == [name for name in fm if name != "input"]
    found = projector.strongest({"2": vectors}, 5)["2"]
    h = model[1](model[0](x)).detach()
    a = patches(h, model[2])
    for k, v in enumerate(vectors * found.signs[:, None]):
        best = (a @ v).max(1)
        top = best.values.topk(5)
        assert found.samples[k].tolist() == top.indices.tolist()
        assert found.positions[k].tolist() == best.indices[top.indices].tolist()
        torch.testing.assert_close(found.values[k], top.values, rtol=1e-10, atol=1e-12)
        assert float(top.values.sum()) >= float((-(a @ v)).max(1).values.topk(5).values.sum())
    outward = (fm["2"].ptk @ fm["2"].weight @ vectors[0])[None].expand(5, -1)
    gradient = projector.reactions("2", outward, found.samples[0], found.positions[0])
    inputs = x[found.samples[0]].requires_grad_()
    seen = patches(model[1](model[0](inputs)), model[2])
    along = fm["2"].weight.T @ outward[0]
    chosen = (seen @ along)[torch.arange(5), found.positions[0]].sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(chosen, inputs)[0], rtol=1e-9, atol=1e-12)


def test_layers_that_see_the_input_are_told_apart() -> None:
    model = network(kernel_size=3).eval()
    x = torch.randn(20, 1, 8, 8, dtype=torch.float64)
    projector = Projector(model, x)
    assert [name for name in projector.sites if projector.sees_input(name)] == ["0"]
    assert (projector.kernel("0"), projector.kernel("6")) == ((3, 3), ())
    flat = ns.models.build("mlp", in_features=64, classes=2, widths=8, depth=2, ntk=True, sigma_w=1.0)
    other = Projector(flat, x.float())
    assert [name for name in other.sites if other.sees_input(name)] == ["layer1"]  # scaled, but the same


def test_repeated_modules_and_frozen_ones() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(4, 4).double().requires_grad_(False)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), shared, nn.Tanh(), shared, nn.Linear(4, 2)).double()
    x = torch.randn(30, 5, dtype=torch.float64)
    v = torch.randn(1, 4, dtype=torch.float64)
    found = Projector(model, x).strongest({"2": v}, 3)["2"]
    first = model[1](model[0](x)).detach()
    both = torch.stack([first, model[3](shared(first)).detach()], 1)  # (n, calls, in)
    best = (both @ (v[0] * found.signs[0])).max(1)
    assert found.samples[0].tolist() == best.values.topk(3).indices.tolist()
    assert found.positions[0].tolist() == best.indices[found.samples[0]].tolist()
    assert not shared.weight.requires_grad


@pytest.mark.parametrize(("out", "inside"), [(4, 9), (9, 4), (5, 5), (2, 1500)])
def test_directions_are_eigenvectors_of_the_feature_matrices(out: int, inside: int) -> None:
    drawn = generator(0, "directions", out)
    W = torch.randn(out, inside, generator=drawn, dtype=torch.float64)
    K = torch.randn(out, out, generator=drawn, dtype=torch.float64)
    K = K @ K.T
    for middle in (None, K):
        G = W.T @ W if middle is None else W.T @ middle @ W
        found = leading_of_features(W, middle, 2)
        for v, share in zip(found.vectors, found.shares):
            torch.testing.assert_close(G @ v, float(share * G.trace()) * v, rtol=1e-8, atol=1e-8 * float(G.trace()))
    wide = leading_of_matrix(W.T @ W, 2)  # of 1,500 rows by a few Lanczos steps
    torch.testing.assert_close(wide.shares, leading_of_features(W, None, 2).shares, rtol=1e-8, atol=1e-10)


class Texts(nn.Module):
    """Embedding, positions, attention over tokens, readout; ids may be padded with zeros."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(30, 8), nn.Embedding(12, 8)
        self.mix, self.readout = nn.Linear(8, 8), nn.Linear(8, classes)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        return self.readout(torch.tanh(self.mix(h)).mean(1))


@pytest.mark.parametrize("classes", [2, 40])
def test_saliency_is_the_first_order_change_towards_the_average_token(classes: int) -> None:
    torch.manual_seed(0)
    model = Texts(classes).double().eval()
    ids = torch.randint(1, 30, (150, 7), generator=generator(0, "ids"))
    found = token_saliency(model, ids)
    assert found.shape == ids.shape
    e = model.table(ids).detach()
    held_out = e - e.flatten(0, 1).mean(0)

    def outputs(embedded: Tensor) -> Tensor:
        h = embedded + model.places(torch.arange(7))
        return model.readout(torch.tanh(model.mix(h)).mean(1))

    jacobian = torch.func.vmap(torch.func.jacrev(lambda e: outputs(e[None])[0]))(e)  # (n, c, positions, d)
    exact = torch.einsum("nctd,ntd->nct", jacobian, held_out).square().sum(1).sqrt().detach()
    if classes == 2:
        torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-12)
    else:  # a sketch: unbiased squares of 16 draws, so that means over 1,050 tokens agree to a few percent
        assert float(found.square().mean()) == pytest.approx(float(exact.square().mean()), rel=0.1)


def test_a_shift_of_all_logits_does_not_count_when_centred() -> None:
    model = Texts(2).double().eval()
    with torch.no_grad():
        model.readout.weight[1] = model.readout.weight[0]
    ids = torch.randint(1, 30, (8, 5))
    assert float(token_saliency(model, ids, centred=True).max()) < 1e-12
    assert float(token_saliency(model, ids).max()) > 1e-3


def test_inputs_without_tokens_are_refused() -> None:
    with pytest.raises(UsageError, match="without token ids"):
        token_saliency(nn.Linear(2, 2), torch.zeros(3, 2))

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.readout = nn.Linear(30, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.readout(F.one_hot(ids, 30).float().mean(1))

    with pytest.raises(UsageError, match="does not look these token ids up"):
        token_saliency(Counts(), torch.zeros(3, 4, dtype=torch.int64))
