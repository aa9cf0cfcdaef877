"""The trace-NTK with torch.func alone: the two methods of PyTorch's tutorial on neural tangent kernels.

Jacobian contraction: per-sample Jacobians by `vmap(jacrev)`, then one product a parameter. NTK-vector products: for each
pair, push every output's basis vector back through one input and forward through the other, forming no Jacobian.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap

Single = Callable[[dict[str, Tensor], Tensor], Tensor]


def functional(model: nn.Module) -> tuple[Single, dict[str, Tensor]]:
    """The network as a function of its parameters and one input, without batch axis."""
    params = {key: value.detach() for key, value in model.named_parameters() if value.requires_grad}
    buffers = {key: value.detach() for key, value in model.named_buffers()}

    def single(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, (p, buffers), (x[None],))[0]

    return single, params


def jacobians(model: nn.Module, x: Tensor) -> list[Tensor]:
    """One (n, c, p) Jacobian a parameter."""
    single, params = functional(model)
    return [j.flatten(2) for j in vmap(jacrev(single), (None, 0))(params, x).values()]


def contract(j1: list[Tensor], j2: list[Tensor]) -> Tensor:
    """Σ over parameters and outputs."""
    return torch.stack([torch.einsum("naf,maf->nm", a, b) for a, b in zip(j1, j2)]).sum(0)


def jacobian_contraction(model: nn.Module, x: Tensor, *, chunk: int, triangle: bool = False) -> Tensor:
    """The kernel by `vmap(jacrev)`, `chunk` samples at a time; each Jacobian is computed once and held.

    `triangle=False` contracts every pair of chunks, as the tutorial does; `triangle=True` mirrors the upper half, which
    it does not: a stronger peer than the published one.
    """
    held = [jacobians(model, piece) for piece in x.split(chunk)]
    K = x.new_empty(len(x), len(x))
    for i, a in enumerate(held):
        for j, b in enumerate(held):
            rows, columns = slice(i * chunk, (i + 1) * chunk), slice(j * chunk, (j + 1) * chunk)
            if triangle and j < i:
                K[rows, columns] = K[columns, rows].T
            else:
                K[rows, columns] = contract(a, b)
    return K


def vector_products(model: nn.Module, x: Tensor) -> Tensor:
    """The kernel by NTK-vector products, one vmap over each side and one over outputs."""
    single, params = functional(model)

    def pair(x1: Tensor, x2: Tensor) -> Tensor:
        outputs, pull = vjp(lambda p: single(p, x1), params)[:2]

        def product(basis: Tensor) -> Tensor:
            return jvp(lambda p: single(p, x2), (params,), pull(basis))[1]

        basis = torch.eye(outputs.numel(), dtype=outputs.dtype).view(-1, *outputs.shape)
        return vmap(product)(basis).trace()

    return vmap(vmap(pair, (None, 0)), (0, None))(x, x)


def sweep(model: nn.Module, x: Tensor, chunks: tuple[int, ...], *, held_bytes: float) -> dict[int, float]:
    """Predicted seconds of the whole kernel for each chunk: n/b Jacobians and (n/b)² contractions, each timed once.

    Raises MemoryError when the Jacobians of all inputs would take more than `held_bytes`.
    """
    n, parameters = len(x), sum(p.numel() for p in model.parameters() if p.requires_grad)
    with torch.no_grad():
        outputs = model(x[:1]).numel()
    if n * outputs * parameters * 4 > held_bytes:
        raise MemoryError(f"the Jacobians of {n} inputs take {n * outputs * parameters * 4 / 2**30:.1f} GiB")
    predicted = {}
    for b in sorted({min(chunk, n) for chunk in chunks}):
        jacobians(model, x[: min(b, 4)])
        start = time.perf_counter()
        j = jacobians(model, x[:b])
        middle = time.perf_counter()
        contract(j, j)
        end = time.perf_counter()
        pieces = -(-n // b)
        predicted[b] = pieces * (middle - start) + pieces**2 * (end - middle)
    return predicted
