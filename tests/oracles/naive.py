"""The nine finite kernels in a few lines each, from the per-sample gradients of `oracles.autograd`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oracles.autograd import (
    Jacobian,
    Selection,
    call,
    double,
    flat,
    gradients,
    in_double,
    jacobian,
    readout,
    samples,
)

Projection = Callable[[str, torch.Size], Tensor]  # parameter name and shape -> (numel, dim)

CONVOLUTION_LIKE = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
)


# -- from Jacobians ------------------------------------------------------------------------------------------------
def entk(j1: Tensor, j2: Tensor) -> Tensor:
    """<g_k(x_i), g_l(x'_j)> at row i*c + k, column j*c + l."""
    return j1.flatten(0, 1) @ j2.flatten(0, 1).T


def trntk0(j1: Tensor, j2: Tensor) -> Tensor:
    """Σ_c <g_c(x), g_c(x')>."""
    return sum((j1[:, c] @ j2[:, c].T for c in range(j1.shape[1])), torch.zeros(len(j1), len(j2), dtype=j1.dtype))


def cosine(j1: Tensor, j2: Tensor) -> Tensor:
    """Σ_c <g_c(x), g_c(x')> over the square roots of the two diagonal values."""
    return trntk0(j1, j2) / (j1.square().sum((1, 2)).sqrt()[:, None] * j2.square().sum((1, 2)).sqrt()[None, :])


def pntk(j1: Tensor, j2: Tensor) -> Tensor:
    """<Σ_c g_c(x), Σ_c g_c(x')> / C."""
    return j1.sum(1) @ j2.sum(1).T / j1.shape[1]


def project(j: Jacobian, projection: Projection) -> Tensor:
    """Σ over parameters of g.flatten() @ P_parameter: (n, c, dim)."""
    parts = [g.reshape(*g.shape[:2], -1) @ projection(name, g.shape[2:]).double() for name, g in j.items()]
    return torch.stack(parts).sum(0)


# -- from activations ----------------------------------------------------------------------------------------------
def readout_inputs(model: nn.Module, x: Any) -> Tensor:
    """The last affine module's input, and a 1 when it has a bias: (n, d)."""
    model, rows = in_double(model), []
    for sample in samples(double(x)):
        _, module, value = readout(model, sample)
        one = torch.ones(int(module.bias is not None), dtype=torch.float64)
        rows.append(torch.cat([value.flatten(), one]))
    return torch.stack(rows)


def layer_outputs(model: nn.Module, x: Any, layer: str) -> Tensor:
    """What the module `layer` put out for each sample, all calls and positions in one row: (n, d)."""
    model, rows = in_double(model), []
    seen: list[Tensor] = []
    module = model.get_submodule(layer)
    module.register_forward_hook(lambda m, args, out: seen.append((out if isinstance(out, Tensor) else out[0]).clone()))
    for sample in samples(double(x)):
        seen.clear()
        call(model, sample)
        rows.append(torch.cat([value.detach().flatten() for value in seen]))
    return torch.stack(rows)


def cotangents(model: nn.Module, x: Any, layer: str, outputs: Sequence[int] | None) -> list[list[list[Tensor]]]:
    """∂f_c/∂h of the module's output h: for every sample, output and call of the module, without the batch axis."""
    model = in_double(model)
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        seen.append(out if out.requires_grad else out.requires_grad_())
        return out.clone()  # what follows may work in place

    model.get_submodule(layer).register_forward_hook(keep)
    rows = []
    with torch.enable_grad():
        for sample in samples(double(x)):
            seen.clear()
            f = call(model, sample)
            wanted = range(f.shape[1]) if outputs is None else outputs
            rows.append([[g[0].detach() for g in gradients(f[0, c], seen)] for c in wanted])
    return rows


def ptk_dual(model: nn.Module, x1: Any, x2: Any, layer: str, outputs: Sequence[int] | None) -> Tensor:
    """Σ_c <∂f_c/∂h(x), ∂f_c/∂h(x')> with units and positions together."""

    def rows(x: Any) -> Tensor:
        found = cotangents(model, x, layer, outputs)
        return torch.stack([torch.stack([torch.cat([g.flatten() for g in c]) for c in sample]) for sample in found])

    return trntk0(rows(x1), rows(x2))


def ptk_features(model: nn.Module, x: Any, layer: str, outputs: Sequence[int] | None) -> Tensor:
    """(1/n) Σ_i Σ_c Σ_s γ γᵀ with γ = ∂f_c/∂h_s(x_i) over the units of the layer: (k, k)."""
    channels_first = isinstance(model.get_submodule(layer), CONVOLUTION_LIKE)
    found = cotangents(model, x, layer, outputs)
    total = torch.zeros((), dtype=torch.float64)
    for sample in found:
        for per_output in sample:
            for g in per_output:
                units = g.movedim(0, -1) if channels_first else g
                for gamma in units.reshape(-1, units.shape[-1]):
                    total = total + torch.outer(gamma, gamma)
    return total / len(found)


# -- by name -------------------------------------------------------------------------------------------------------
EXACT = {"entk": entk, "trntk": cosine, "trntk0": trntk0, "pntk": pntk}
PROJECTED = ("proj-trntk", "proj-pntk")
OF_GRADIENTS = (*EXACT, *PROJECTED)
KNOWN = (*OF_GRADIENTS, "ck", "em", "ptk")


def kernel(
    name: str,
    model: nn.Module,
    x1: Any,
    x2: Any = None,
    *,
    outputs: Sequence[int] | None = None,
    params: Selection = None,
    projection: Projection | None = None,
    normalize: bool | None = None,
    layers: Sequence[str] = (),
    layer: str = "",
    form: str = "dual",
) -> Tensor:
    """The kernel `name` by the definitions of the contract, dense and in float64."""
    x2 = x1 if x2 is None else x2
    if name == "ck":
        return readout_inputs(model, x1) @ readout_inputs(model, x2).T
    if name == "em":
        grams = [layer_outputs(model, x1, key) @ layer_outputs(model, x2, key).T for key in layers]
        return torch.stack(grams).sum(0)
    if name == "ptk":
        if form == "features":
            return ptk_features(model, x1, layer, outputs)
        return ptk_dual(model, x1, x2, layer, outputs)
    j1, j2 = jacobian(model, x1, params, outputs), jacobian(model, x2, params, outputs)
    return from_jacobians(name, j1, j2, projection=projection, normalize=normalize)


def from_jacobians(
    name: str,
    j1: Mapping[str, Tensor],
    j2: Mapping[str, Tensor],
    *,
    projection: Projection | None = None,
    normalize: bool | None = None,
) -> Tensor:
    """A kernel of gradients, from the two Jacobians."""
    if name in PROJECTED:
        if projection is None:
            raise ValueError(f"{name} needs projection=, the dense matrix of each parameter")
        g1, g2 = project(dict(j1), projection), project(dict(j2), projection)
        if name == "proj-pntk":
            g1, g2 = (g.sum(1, keepdim=True) / g.shape[1] ** 0.5 for g in (g1, g2))
        return cosine(g1, g2) if normalize is None or normalize else trntk0(g1, g2)
    return EXACT[name](flat(dict(j1)), flat(dict(j2)))
