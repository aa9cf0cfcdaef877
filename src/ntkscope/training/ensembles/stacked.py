"""Stacked networks: what every member of an ensemble computes, all at once by `vmap` or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ntkscope.core import Inputs, Params, Part, UsageError
from ntkscope.core.model.calling import arguments, logits
from ntkscope.core.model.tree import join, map_leaves
from ntkscope.training.evaluation import evaluating
from ntkscope.training.losses import Loss

LEAST, MOST = 128, 4096  # items evaluated at once: this many for each member at least, for all of them together at most


def outputs_of(template: nn.Module, params: Params, buffers: Params, x: Inputs) -> Tensor:
    """The outputs of `template` with other parameters and buffers."""
    return logits(functional_call(template, {**params, **buffers}, *arguments(template, x)))


def each_member(
    function: Callable[..., Tensor], in_dims: Sequence[int | None], vectorised: bool
) -> Callable[..., Tensor]:
    """`function` of each member's own arguments, results stacked; arguments whose entry in `in_dims` is None are shared.

    >>> each_member(lambda a, b: a + b, (0, None), vectorised=False)(torch.tensor([1, 2]), torch.tensor(10))
    tensor([11, 12])
    """
    if vectorised:
        return vmap(function, in_dims=tuple(in_dims))

    def loop(*args: Any) -> Tensor:
        own = [None if dim is None else _Rows(arg) for arg, dim in zip(args, in_dims)]
        members = next(len(rows) for rows in own if rows is not None)
        return torch.stack(
            [
                function(*(arg if rows is None else rows.member(i) for arg, rows in zip(args, own)))
                for i in range(members)
            ]
        )

    return loop


class _Rows:
    """The members' own parts of one tree of stacked tensors."""

    def __init__(self, tree: Any) -> None:
        self._lengths: list[int] = []
        self._tree, self._rows = tree, map_leaves(self._split, tree)

    def _split(self, leaf: Tensor) -> Any:
        self._lengths.append(len(leaf))
        # gradients of `unbind` are one stack; buffers are views, so that a network may write to them
        return _Tensors(leaf.unbind(0) if leaf.requires_grad else [leaf[i] for i in range(len(leaf))])

    def __len__(self) -> int:
        return self._lengths[0]

    def member(self, i: int) -> Any:
        return map_leaves(lambda _, rows: rows.each[i], self._tree, self._rows)


class _Tensors:
    """Tensors of the members, not a branch of a tree."""

    def __init__(self, each: Sequence[Tensor]) -> None:
        self.each = each


class MemberData:
    """The data of the members: one part for all, or several of one length, and which member has which.

    >>> one, two = (Part(torch.full((3, 1), value), torch.zeros(3)) for value in (1.0, 2.0))
    >>> MemberData([one, two, one]).rows(torch.tensor([[0], [2], [1]])).x.flatten()
    tensor([1., 2., 1.])
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        if len(parts[0]) == 0:
            raise UsageError("got a part without items to train, validate or stop on; expected at least one item")
        unique = list({id(part): part for part in parts}.values())
        self.shared, self.items, self.members = len(unique) == 1, len(parts[0]), len(parts)
        self.part = unique[0] if self.shared else _stack(unique)
        place = {id(part): i for i, part in enumerate(unique)}
        self.owner = torch.tensor([place[id(part)] for part in parts], device=self.part.y.device)
        self._all: Part | None = None

    @property
    def targets(self) -> Tensor:
        """All targets, of all parts."""
        return self.part.y if self.shared else self.part.y.flatten(0, 1)

    @property
    def axis(self) -> int | None:
        """The axis along which the members lie in `everything` and `slices`; None where all have the same."""
        return None if self.shared else 0

    def everything(self) -> Part:
        """All items: (n, …) where they are shared, else (k, n, …)."""
        if self._all is None:
            everyone = len(self.part.y) == self.members and not self.shared
            self._all = self.part if self.shared or everyone else self._mapped(lambda leaf: leaf[self.owner])
        return self._all

    def rows(self, index: Int64[Tensor, "k b"]) -> Part:
        """Other items for each member, (k, b, …)."""
        return self._mapped(lambda leaf: leaf[index] if self.shared else leaf[self.owner[:, None], index])

    def slices(self, size: int) -> Iterator[Part]:
        """All items, `size` at a time, in order."""
        for start in range(0, self.items, size):
            yield self._slice(slice(start, min(start + size, self.items)))

    def _slice(self, at: slice) -> Part:
        return self._mapped(lambda leaf: leaf[at] if self.shared else leaf[:, at][self.owner])

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> Part:
        return Part(*map_leaves(function, (self.part.x, self.part.y, dict(self.part.extras))))


def evaluate_stacked(
    template: nn.Module,
    params: Params,
    buffers: Params,
    data: MemberData,
    loss: Loss,
    vectorised: bool,
    at_once: int | None = None,
) -> dict[str, Float64[Tensor, " k"]]:
    """What `evaluate` says of each member, on the CPU: loss and, where targets name classes, accuracy.

    `at_once`: how many items of each member are computed together, where the caller knows what fits.
    """
    total = torch.zeros(data.members, dtype=torch.float64, device=data.part.y.device)
    right = torch.zeros_like(total)
    counts = loss.names_classes(data.targets)
    forward = each_member(lambda p, b, x: outputs_of(template, p, b, x), (0, 0, data.axis), vectorised)
    each = each_member(loss.each, (0, data.axis), vectorised)
    correct = each_member(loss.right, (0, data.axis), vectorised)
    checked = False
    with evaluating(template), torch.no_grad():
        for part in data.slices(at_once or max(LEAST, MOST // data.members)):
            outputs = forward(params, buffers, part.x)
            if not checked:
                loss.check(outputs[0], data.targets)
                checked = True
            losses = each(outputs, part.y).double()
            count = part.y.shape[0 if data.shared else 1]
            if "weights" in part.extras:
                total += (losses * part.extras["weights"]).sum(1)
            else:
                total += losses.reshape(data.members, -1).mean(1) * count / data.items
            if counts:
                right += correct(outputs, part.y).sum(1)
    metrics = {"loss": total.cpu()}
    return metrics | {"accuracy": (right / data.items).cpu()} if counts else metrics


def _stack(parts: Sequence[Part]) -> Part:
    """Parts of one length as one with a first axis of parts in front of the items."""
    return Part(*join([(p.x, p.y, dict(p.extras)) for p in parts], torch.stack, "the parts of the members"))
