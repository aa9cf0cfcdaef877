"""What of the data a layer's directions pick out: where its inputs project most on them, and what the projection reacts to."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from ntkscope.core import UsageError
from ntkscope.tangent.blocks.backward import check_path, watched_pass
from ntkscope.tangent.blocks.precision import tensor_cores
from ntkscope.tangent.certify.auditor import GraphMismatch
from ntkscope.tangent.matrices.feature_matrices import differentiable
from ntkscope.tangent.matrices.run import Asked, affine_parameters, chosen_sites
from ntkscope.tangent.matrices.sites import Site
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.batches import Batch, as_batch
from ntkscope.tangent.model.subject import place, quiet
from ntkscope.tangent.operators.inputs import Embedded, token_ids
from ntkscope.tangent.trace.tape import Call
from ntkscope.tangent.trace.terms import Outer

BYTES = 1 << 26  # of the patches of one block


@dataclass(frozen=True, eq=False)
class Strongest:
    """For each of k directions the m samples that project most on it: which, at which position, by how much.

    `signs`: by what a direction was multiplied, so that the largest projection is positive.
    """

    samples: Int[Tensor, "k m"]
    positions: Int[Tensor, "k m"]
    values: Float[Tensor, "k m"]
    signs: Float[Tensor, " k"]


class Projector:
    """A network with the inputs of its affine layers at hand, in the names and order of `feature_matrices`.

    `sites` are its layers; `left_out` says what is not among them. The model's own mode is used, and it is left unchanged.
    """

    def __init__(self, model: nn.Module, x: Any, *, device: torch.device | str | None = None) -> None:
        guards.check_mode(model)
        self.batch = as_batch(x, model)
        guards.check_inputs_finite(self.batch)
        self.device = place(model, device)
        with quiet(self.device, model):
            asked = Asked(
                differentiable(model), None, self.batch, device
            )  # no stream: neither memory nor a certificate
            affine, self.left_out = affine_parameters(asked, frozenset())
            self.subject, self.probed, self.sites, self.aliases = chosen_sites(asked, affine, self.left_out)
        self.shapes = {name: tuple(self.subject.leaves[site.parameter].shape) for name, site in self.sites.items()}

    def sees_input(self, name: str) -> bool:
        """Whether the layer's inputs are the network's own, as they are: its weights then have the shape of what comes in.

        A number they are all multiplied by does not count, and neither does the order of axes of size one.
        """
        given = self._few().tensors()
        (k, t), *others = self.sites[name].members
        if others or len(given) != 1 or not given[0].is_floating_point():
            return False
        with quiet(self.device, self.subject.original), torch.no_grad():
            x = self._input(self._calls(self._few()), k, t, len(given[0])).flatten(1).double()
        own = given[0].flatten(1).double().to(x.device)
        if x.shape != own.shape:
            return False
        factor = (x * own).sum() / own.square().sum().clamp_min(1e-300)
        return bool((x - factor * own).norm() <= 1e-5 * x.norm())

    def kernel(self, name: str) -> tuple[int, ...]:
        """The window of a convolution, () for any other layer."""
        site = self.sites[name]
        return tuple(self.shapes[name][2:]) if len(self.shapes[name]) > 2 and not site.transposed else ()

    def strongest(self, directions: Mapping[str, Float[Tensor, "k in"]], count: int) -> dict[str, Strongest]:
        """Where the inputs of each layer project most on its directions, one position per sample. One forward pass over
        all samples; a direction and its opposite are one direction."""
        highest: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in directions}
        lowest: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in directions}
        size = self._block(directions)
        with quiet(self.device, self.subject.original):
            for at in range(0, len(self.batch), size):
                calls = self._calls(self.subject.placed(self.batch[at : at + size]))
                with torch.no_grad():
                    for name, vectors in directions.items():
                        values = self._projections(calls, self.sites[name], vectors, min(size, len(self.batch) - at))
                        highest[name].append(tuple(t.cpu() for t in values.max(1)))  # type: ignore[arg-type]
                        lowest[name].append(tuple(t.cpu() for t in (-values).max(1)))  # type: ignore[arg-type]
        return {name: _ranked(highest[name], lowest[name], count) for name in directions}

    def reactions(
        self, name: str, outward: Float[Tensor, "r out"], samples: Int[Tensor, " r"], positions: Int[Tensor, " r"]
    ) -> Float[Tensor, "r ..."]:
        """The gradient of `v · a` by the network's input (token embeddings, of texts), for inputs a of the layer at single
        positions of some samples and directions `v = Wᵀ u` given by `outward`, the rows u. One forward and one pass back."""
        site, r = self.sites[name], len(samples)
        batch = self.subject.placed(self.batch[samples])
        ids = token_ids(batch)
        if ids is None:
            batch = batch.map(lambda t: t.detach().requires_grad_() if t.is_floating_point() else t)
        with quiet(self.device, self.subject.original):
            with Embedded(ids) if ids is not None else nullcontext() as mode:
                calls = self._calls(batch)
            leaves = mode.leaves if mode is not None else [t for t in batch.tensors() if t.is_floating_point()]
            if not leaves:
                raise UsageError("the network's inputs are neither real numbers nor tokens of an embedding table")
            edges, pulled = self._pulled(calls, site, outward, positions, r)
            (gradient, *_) = torch.autograd.grad(edges, leaves, pulled, allow_unused=True)
        return torch.zeros_like(leaves[0]) if gradient is None else gradient.detach()

    # -- one pass ---------------------------------------------------------------------------------------------------------

    def _few(self) -> Batch:
        return self.subject.placed(self.batch[: min(3, len(self.batch))])

    def _block(self, directions: Mapping[str, Tensor]) -> int:
        """Samples that pass at once: as many as leave the patches of the largest layer small."""
        widths = [self.sites[name].positions * self.sites[name].groups * self.sites[name].inside for name in directions]
        return max(1, min(64, BYTES // (8 * max(widths, default=1)), len(self.batch)))

    def _calls(self, batch: Batch) -> list[Call]:
        with tensor_cores(False), torch.enable_grad():
            tape = watched_pass(self.subject, batch, self.probed.findings)[1]
        try:
            check_path(tape.calls, tape.unruled, self.probed.findings)
        except GraphMismatch as change:
            raise UsageError(change.refusal) from change
        return tape.calls

    def _input(self, calls: list[Call], k: int, t: int, n: int) -> Tensor:
        term = calls[k].terms[t]
        assert isinstance(term, Outer)
        return self.probed.findings.layouts[k].read(term.x, term.lead_x, n)

    def _projections(self, calls: list[Call], site: Site, vectors: Tensor, n: int) -> Float[Tensor, "n positions k"]:
        """`v · a` at every position of every sample."""
        found = []
        for k, t in site.members:
            term = calls[k].terms[t]
            assert isinstance(term, Outer)
            a = term.activations(self._input(calls, k, t, n))  # (n, g, s, i)
            along = vectors.to(a).unflatten(1, (site.groups, site.inside))  # (k, g, i)
            if term.reorder is not None:
                along = term.order.inner(along.movedim(2, 0)).movedim(0, 2)
            found.append(torch.einsum("ngsi,kgi->nsk", a, along))
        return torch.cat(found, 1)

    def _pulled(
        self, calls: list[Call], site: Site, outward: Tensor, positions: Tensor, n: int
    ) -> tuple[list[GradientEdge], list[Tensor]]:
        """Cotangents of the layer's calls that ask for `u · (W a)` at one position of each sample."""
        edges, pulled, first = [], [], 0
        for k, t in site.members:
            call = calls[k]
            term = call.terms[t]
            assert isinstance(term, Outer)
            assert call.edge is not None
            blank = torch.zeros(call.shape, device=self.device, dtype=outward.dtype, requires_grad=True)
            seen = term.cotangents(self.probed.findings.layouts[k].written().read(blank, len(call.lead), n))
            wanted = torch.zeros_like(seen)  # (n, g, o, s)
            place_ = positions.to(wanted.device) - first
            mine = (place_ >= 0) & (place_ < seen.shape[3])
            rows = mine.nonzero().flatten()
            wanted[rows, :, :, place_[rows]] = outward.to(wanted)[rows].unflatten(1, (site.groups, site.outside))
            (cotangent,) = torch.autograd.grad(seen, blank, wanted)  # a rearrangement, so its transpose undoes it
            first += seen.shape[3]
            edges.append(call.edge)
            pulled.append(cotangent.to(self.subject.dtype))
        return edges, pulled


def _ranked(highest: list[tuple[Tensor, Tensor]], lowest: list[tuple[Tensor, Tensor]], count: int) -> Strongest:
    """The largest projections on each direction, or on its opposite where that has larger ones."""
    up, down = ([torch.cat([pair[k] for pair in side]) for k in (0, 1)] for side in (highest, lowest))
    m = min(count, len(up[0]))
    samples, positions, values, signs = [], [], [], []
    for j in range(up[0].shape[1]):
        tops = [torch.topk(side[0][:, j], m) for side in (up, down)]
        sign = 1.0 if float(tops[0].values.sum()) >= float(tops[1].values.sum()) else -1.0
        side, top = (up, tops[0]) if sign > 0 else (down, tops[1])
        samples.append(top.indices)
        positions.append(side[1][top.indices, j])
        values.append(top.values)
        signs.append(sign)
    return Strongest(torch.stack(samples), torch.stack(positions), torch.stack(values), torch.tensor(signs))
