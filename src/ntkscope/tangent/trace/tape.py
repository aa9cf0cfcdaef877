"""Capture: every call in which a chosen parameter appears, with its input and a handle on its output's cotangent.

A `TorchFunctionMode` watches the functions a forward pass calls, so a parameter is found wherever it is used: in its own
module, in another one (tied), through `F.linear(x, self.other.weight)`, or in a slice.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from ntkscope.tangent.blocks import replaced_calls
from ntkscope.tangent.blocks.convolution import quick
from ntkscope.tangent.blocks.linear import split
from ntkscope.tangent.blocks.norm import still
from ntkscope.tangent.blocks.replaced_calls import ReplacedCalls, recomputed
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.layout import Layout
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.rules import REWRITES, RULES
from ntkscope.tangent.trace.rules.registry import bind
from ntkscope.tangent.trace.terms import Outer, Slot, Term, Vector

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a function with a rule: its terms and where the cotangent of its output arrives."""

    terms: list[Term]
    edge: GradientEdge | None  # None once the cotangents are there: it holds the whole graph
    shape: torch.Size  # of the output
    lead: tuple[int, ...]  # sizes of its leading, batch-like axes
    own: ReplacedCalls | None = None  # of the forward pass it belongs to

    @property
    def outer(self) -> bool:
        """Whether only products use what is kept of the cotangent, so that it may be short where the precision says so."""
        return all(term.only_multiplied for term in self.terms if not isinstance(term, Vector))

    @property
    def leading(self) -> bool:
        """Whether all that is kept of the cotangent is for terms that take heads wherever they are in memory."""
        return all(isinstance(term, Outer) and term.leading for term in self.terms if not isinstance(term, Vector))

    @property
    def kept(self) -> bool:
        """Whether the cotangent is kept: what vectors make of it is made when it arrives."""
        return any(not isinstance(term, Vector) for term in self.terms)

    @property
    def signature(self) -> tuple[Any, ...]:
        return tuple((type(term).__name__, term.slot) for term in self.terms)


@dataclass
class Tape:
    """What a forward pass did with the chosen parameters."""

    calls: list[Call] = field(default_factory=list)
    unruled: set[str] = field(default_factory=set)  # parameters seen in a call no rule answers for
    hooked: bool = False  # whether the model asked to be told of gradients


class Watch(TorchFunctionMode):
    """Fills a `Tape` while it is active. `layouts`, by call, widens outputs that do not depend on the sample.

    `channels_last`: convolutions are made with their channels innermost; `flipped`: on a GPU too, those are made whose passes
    back are convolutions; `split`: on one with tensor cores, products are made in two halves.
    """

    def __init__(
        self,
        leaves: Mapping[str, Tensor],
        n: int,
        layouts: list[Layout] | None = None,
        quickly: bool = False,
        channels_last: bool = False,
        flipped: bool = False,
        split: bool = False,
    ) -> None:
        super().__init__()
        self.stills = quickly
        self.quickly = quickly and (flipped or not channels_last)
        self.channels_last, self.flipped, self.split = channels_last, flipped, split
        self.tape, self.own = Tape(), ReplacedCalls()
        self.n = n
        self.layouts = layouts
        self._leaves = leaves
        self._names = {id(leaf): name for name, leaf in leaves.items()}
        self._rewriting: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        used = {name for value in _flat(args, kwargs) if (name := self._name(value)) is not None}
        self.tape.hooked |= func == Tensor.register_hook
        if not used:
            return self._call(func, args, kwargs)
        if func in REWRITES and func not in self._rewriting:
            self._rewriting.add(func)
            try:
                with self:
                    return REWRITES[func](*args, **kwargs)
            finally:
                self._rewriting.discard(func)
        if func not in RULES:
            return self._unruled(func, kwargs, used, self._call(func, args, kwargs))
        rule, names = RULES[func]
        arguments = bind(names, args, kwargs)
        output = self._quick(func, arguments) if self.stills and not recomputed() else None
        if output is None:
            output = self._call(func, args, kwargs)
        if not isinstance(output, Tensor) or not output.requires_grad:
            return output
        try:
            terms = rule(arguments, self.find)
        except (KeyError, IndexError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            LOG.info("%s was called in a way its rule does not know (%r)", getattr(func, "__name__", func), error)
            terms = []
        if terms is None:
            return self._unruled(func, kwargs, used, output)
        self.tape.unruled |= used - {term.slot.name for term in terms}
        return self._record(terms, output) if terms else output

    def _quick(self, func: Any, arguments: dict[str, Any]) -> Tensor | None:
        """The call made in another, equal way; None where there is none."""
        output = still(func, arguments, self.own)
        if output is None and self.split:
            output = split(func, arguments, self.own)
        if output is None and self.quickly:
            output = quick(func, arguments, self.own, self.flipped, self.channels_last, self.split)
        return output

    def _unruled(self, func: Any, kwargs: Any, used: set[str], output: Any) -> Any:
        """A call without a rule: parameters are lost sight of, unless what it returned is still one of them."""
        made = [v for v in _flat((output,), {}) if isinstance(v, Tensor)]
        if _writes(func, kwargs) or any(v.requires_grad and self._name(v) is None for v in made):
            self.tape.unruled |= used
        return output

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        return replaced_calls.channels_last(func, args, kwargs) if self.channels_last else func(*args, **kwargs)

    def find(self, value: Any) -> Slot | None:
        """Which parameter, or which rows of one, `value` is; None for everything else."""
        name = self._name(value)
        if name is None:
            return None
        leaf = self._leaves[name]
        if value is leaf:
            return Slot(name, 0, len(leaf) if leaf.dim() else 1)
        if (
            value.dim() == 2
            and leaf.dim() == 2
            and value.shape == leaf.shape[::-1]
            and value.stride() == leaf.stride()[::-1]
        ):
            return Slot(name, 0, len(leaf), transposed=True)
        if leaf.dim() and leaf.stride(0) and value.shape[1:] == leaf.shape[1:] and value.stride() == leaf.stride():
            start, inside = divmod(value.storage_offset() - leaf.storage_offset(), leaf.stride(0))
            return None if inside else Slot(name, start, start + len(value))
        return None

    def _name(self, value: Any) -> str | None:
        if not isinstance(value, Tensor):
            return None
        name = self._names.get(id(value))
        if name is None and value.requires_grad and value._base is not None:
            return self._names.get(id(value._base))
        return name

    def _record(self, terms: list[Term], output: Tensor) -> Tensor:
        lead = terms[0].lead_y
        index = len(self.tape.calls)
        if output._is_view():  # of something inside the function: written to in place, its old edge would see nothing
            output = torch.ops.aten._unsafe_view(output, output.shape)
        if self.layouts is not None and index < len(self.layouts) and self.layouts[index].axis is None:
            axes = output.dim()
            output = _widened(output, lead, self.n)
            lead += output.dim() - axes
        edge, sizes = get_gradient_edge(output), tuple(output.shape[:lead])
        self.tape.calls.append(Call(terms, edge, output.shape, sizes, self.own))
        return output


def _widened(output: Tensor, lead: int, n: int) -> Tensor:
    """An output that every sample shares, repeated for each, so that each has its own cotangent."""
    if lead and output.shape[0] == 1:
        return output.expand(n, *output.shape[1:])
    return output.unsqueeze(0).expand(n, *output.shape)


def _writes(function: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call puts its arguments into a tensor that is there already (`h[:, 0] = token`)."""
    name = getattr(function, "__name__", "")
    return name == "__setitem__" or "out" in kwargs or (name.endswith("_") and not name.endswith("__"))


def _flat(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            yield from _flat(value, {})
        else:
            yield value


def watch(
    subject: Subject,
    batch: Batch,
    layouts: list[Layout] | None = None,
    *,
    quickly: bool = False,
    inner: bool = False,
    flipped: bool = False,
    split: bool = False,
) -> tuple[Tensor, Tape]:
    """One forward pass: the outputs (n, c), with their graph, and the tape.

    `quickly`: the graph serves cotangents alone, so calls may be made whose weights get no gradient. `inner`: convolutions have
    their channels innermost; `flipped`: such calls are made on a GPU too; `split`: in products of two halves.
    """
    quickly = quickly and subject.quickly
    mode = Watch(subject.leaves, len(batch), layouts, quickly, inner, flipped, split and quickly)
    with mode:
        outputs = subject(batch)
    return outputs, mode.tape


def cotangents(
    outputs: Tensor, weights: Tensor, calls: Sequence[Call], *, several: bool = False
) -> list[Tensor | None]:
    """`∂ Σ weights·outputs / ∂ call` for every call; samples do not mix, so row i holds that of sample i.

    `several`: weights of several sums, along a first axis that the answers have too, in one pass. The graph stays: parts of it
    (views made in `__init__`) may be the caller's. It goes when its outputs go.
    """
    edges = [call.edge for call in calls if call.edge is not None]
    if not edges:
        return []
    own = next((call.own for call in calls if call.own is not None), None) or ReplacedCalls()

    def passed_back(some: Tensor) -> tuple[Tensor | None, ...]:
        with own.of_cotangents():
            return torch.autograd.grad(outputs, edges, grad_outputs=some, retain_graph=True, allow_unused=True)

    if not several:
        return list(passed_back(weights))
    reached: list[bool] = []

    def those_reached(some: Tensor) -> tuple[Tensor, ...]:  # vmap takes tensors alone
        found = passed_back(some)
        reached[:] = [cotangent is not None for cotangent in found]
        return tuple(cotangent for cotangent in found if cotangent is not None)

    # Few operations are made for one head after another (fused attention), and PyTorch warns of them; with `is_grads_batched`
    # most would be.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        made = iter(vmap(those_reached)(weights))
    return [next(made) if there else None for there in reached]
