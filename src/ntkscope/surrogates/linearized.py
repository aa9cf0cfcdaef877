"""A network linearised in its parameters: a module that any optimiser trains, and that can be solved outright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn

from ntkscope.core import Params, Part, UsageError
from ntkscope.core.checked import renamed
from ntkscope.core.machine.threads import alone_with
from ntkscope.core.model.calling import arguments
from ntkscope.core.model.copies import differing, duplicate, own_copy
from ntkscope.core.model.reach import Reach
from ntkscope.core.sizes import parse_bytes
from ntkscope.surrogates.solvers.linear_solution import LinearSolution, Problem, Settings, solve
from ntkscope.tangent.model.batches import Batch, checked
from ntkscope.tangent.model.guards import check_mode
from ntkscope.tangent.model.selection import Selection, select
from ntkscope.tangent.model.state import ModelState
from ntkscope.tangent.operators.expansion import FAILED, ROADS, admit, expand, is_transformed, second_road

Coordinates: TypeAlias = Literal["u", "w"]


def linearize(
    model: nn.Module, *, params: Selection = None, coordinates: Coordinates = "u", offset: bool = True
) -> Linearized:
    """`f(w₀, x) + J(x) u`: the first-order Taylor expansion of `model` in its parameters, at the values they have now.

    The result is a module of the same inputs and outputs whose parameters are u (zeros at first), so that any optimiser trains
    it: one forward-mode pass forward, one backward pass back, at 5/3 of the arithmetic of the network's own step whatever the
    number of outputs. The model is copied and never changed; the copy must answer as the model does at the first inputs, and
    globals and classes that it reads keep the values they have now. `params`: which parameters move, as in `ns.kernel`.
    `coordinates`: "u" holds the displacement, "w" the weights `w₀ + u` themselves; both are the same function, but weight decay
    (and the ridge of `solve`) pulls u to 0 in one and w to 0 in the other. `offset=False` leaves out `f(w₀, x)`.

    Models without a Jacobian per sample (active dropout, batch statistics, chance) are refused as `ns.kernel` refuses them,
    the mode when the model is linearised, the rest at the first inputs. Operations without forward mode are noticed there too
    and differentiated by two backward passes instead. Samarin, Roth & Belius (2022), Eq. 2 and 3.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[1.0, 2.0]]))
        >>> linear = linearize(model)
        >>> with torch.no_grad():
        ...     _ = linear.u.weight.copy_(torch.tensor([[0.5, 0.0]]))
        >>> linear(torch.tensor([[2.0, 1.0]])).tolist()  # 4 + 1
        [[5.0]]
    """
    return Linearized(model, params=params, coordinates=coordinates, offset=offset)


@final
class Linearized(nn.Module):
    """What `linearize` returns. Its parameters are `u` (or `w`); w₀ and the rest of the network are among its buffers.

    `.to` moves and casts both, `state_dict` holds both. `.train()` changes nothing: the network stays in the mode in which it
    was linearised, so neither dropout nor BatchNorm wakes. A tied parameter is one parameter, under its first name.

    Examples:
        >>> linear = Linearized(model)
        >>> linear(x).allclose(model(x)), sum(u.numel() for u in linear.parameters())
        (True, 22)
    """

    def __init__(
        self, model: nn.Module, *, params: Selection = None, coordinates: Coordinates = "u", offset: bool = True
    ) -> None:
        if isinstance(model, Linearized):
            raise UsageError("got a linearised network, which is linear already; expected the network itself")
        if isinstance(params, str) and params == "last":
            raise UsageError(
                "got params='last' without inputs, which tell the last layer; expected names: pass those of the readout, such"
                " as params='readout.*'"
            )
        super().__init__()
        check_mode(model)
        chosen = select(model, params)
        self.coordinates, self.offset = coordinates, offset
        self.names = tuple(name for name, p in chosen.items() if p.numel())
        self._trainable = tuple(name for name, p in model.named_parameters() if p.requires_grad)
        self._admitted: dict[Any, tuple[str, bool]] = {}
        self._making = _Making(model)
        self.origin = _own_copy(model)
        tree = nn.Module()
        for name, start in self._start().items():
            _put(tree, name, nn.Parameter(start.clone() if coordinates == "w" else torch.zeros_like(start)))
        self.add_module(coordinates, tree)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs and not args:
            args, kwargs = arguments(self.origin, kwargs)
        batch = checked(Batch(args, kwargs))
        key, (road, restore) = self._road(batch)
        try:
            values, moved = self._expand(batch, road, restore)
        except torch.OutOfMemoryError:
            raise
        except FAILED as error:
            last = second_road(road, error)
            if road == last or is_transformed(batch.tensors()):
                raise
            values, moved = self._expand(batch, last, restore)
            self._admitted[key] = last, restore  # remembered: these inputs take an operation without forward mode
        return values + moved if self.offset else moved

    def _expand(self, batch: Batch, road: str, restore: bool) -> tuple[Tensor, Tensor]:
        around = self._making.surroundings
        return expand(self.origin, self.displacement(), batch, road, restore=restore, around=around)

    def displacement(self) -> Params:
        """u by the names of the network's parameters; differentiable."""
        own = dict(getattr(self, self.coordinates).named_parameters())
        if self.coordinates == "u":
            return {name: own[name] for name in self.names}
        start = self._start()
        return {name: own[name] - start[name] for name in self.names}

    def network(self) -> nn.Module:
        """The network itself at `w₀ + u`: a copy, which trains as the original did."""
        made = _own_copy(self.origin)
        own = dict(made.named_parameters())
        with torch.no_grad():
            for name, moved in self.displacement().items():
                own[name].add_(moved.to(own[name]))
        return _unfrozen(made, self._trainable)

    @renamed(ridge="alpha", rtol="tol")
    def solve(
        self,
        part: Part,
        *,
        alpha: float = 0.0,
        weights: Tensor | str | None = None,
        method: str = "auto",
        dtype: torch.dtype = torch.float64,
        memory: str | int | float = "2GiB",
        **options: Any,
    ) -> LinearSolution:
        """Set u to the minimum of `Σ_i w_i ‖f_lin(x_i) - y_i‖² + α ‖u‖²`, of minimum norm where there are many.

        Class labels become one-hot rows; floating-point targets are taken as they are. The sum runs over items and outputs: a
        penalty λ beside a loss that is a mean over n items and c outputs is `alpha = n c λ` here. In coordinates "w", penalty
        and norm are those of w. `method`: "dense" forms the Jacobian, (n c) × p, and takes its SVD or QR; "kernel" solves the
        system of the empirical NTK, (n c) × (n c); "lsmr" and "cg" (on that kernel) use products with the Jacobian alone, to
        `tol=1e-8` or `max_iter=1000` iterations; "auto" takes the first of dense, kernel and lsmr that fits `memory` and time.
        `cutoff=`: singular values up to this part of the largest count as zero (None: rounding of `dtype`). `store=` keeps the
        kernel of "kernel" and "cg" on disk. `progress=True` shows how far iterations are.
        """
        start = self._start()
        problem = Problem(
            model=self._at_start(),
            names=self.names,
            part=part,
            weights=weights,
            offset=self.offset,
            origin=start if self.coordinates == "w" else None,
            dtype=dtype,
        )
        settings = Settings(method=method, alpha=alpha, memory=parse_bytes(memory), **options)
        with self._making.surroundings():
            found, solution = solve(problem, settings)
        own = dict(getattr(self, self.coordinates).named_parameters())
        with torch.no_grad():
            for name, value in found.items():
                own[name].copy_(value.to(own[name]))
        return solution

    # -- what makes it a module ---------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Linearized:
        """Note the mode; the network keeps the one in which it was linearised."""
        self.training = mode
        getattr(self, self.coordinates).train(mode)
        return self

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """u (or w) alone."""
        if recurse:
            inner = f"{prefix}.{self.coordinates}" if prefix else self.coordinates
            yield from getattr(self, self.coordinates).named_parameters(inner, True, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """w₀, parameters that do not move, and the network's own buffers."""
        if recurse:
            inner = f"{prefix}.origin" if prefix else "origin"
            yield from self.origin.named_parameters(inner, True, remove_duplicate)
            yield from self.origin.named_buffers(inner, True, remove_duplicate)

    def extra_repr(self) -> str:
        count = sum(p.numel() for p in self.parameters())
        return f"{count} parameters, coordinates={self.coordinates!r}, offset={self.offset}"

    def _start(self) -> Params:
        own = dict(self.origin.named_parameters())
        return {name: own[name].detach() for name in self.names}

    def _at_start(self) -> nn.Module:
        """The network at w₀, its moving parameters differentiable, sharing the numbers of this one."""
        return _unfrozen(duplicate(self.origin, share=True), self.names)

    def _road(self, batch: Batch) -> tuple[Any, tuple[str, bool]]:
        """How to differentiate for inputs like these, found out when such inputs first come."""
        check_mode(self.origin)
        if is_transformed((batch.tensors(), list(self.origin.parameters()), list(self.parameters()))):
            known = next(iter(self._admitted.values()), (next(iter(ROADS)), False))
            return None, known
        where = next(self.origin.parameters())
        key = (where.device, where.dtype, *((tuple(t.shape[1:]), t.dtype, t.device) for t in batch.tensors()))
        if key not in self._admitted:
            with alone_with(self.origin), self._making.surroundings():
                try:
                    self._admitted[key] = admit(
                        _unfrozen(self.origin, self.names), self.names, batch, self._making.before
                    )
                finally:
                    _unfrozen(self.origin, ())
            self._making.before = None
        return key, self._admitted[key]


class _Making:
    """What a network was linearised of: the model, until the copy is first run; and the globals and classes of both."""

    of_this_process = True

    def __init__(self, model: nn.Module | None = None) -> None:
        self.before: ModelState | None = None
        self.around: ModelState | None = None
        if model is not None:
            own = {id(value) for _, value in Reach(model, classes=False, foreign=True)}
            everything = list(Reach(model))
            self.before = ModelState(model, reached=everything)
            self.around = ModelState(
                model, reached=[(name, value) for name, value in everything if id(value) not in own]
            )

    def surroundings(self) -> AbstractContextManager[None]:
        """While open, globals and classes are as they were, so that the network stays what it was."""
        return nullcontext() if self.around is None else self.around.as_it_was(aside=True)

    def __deepcopy__(self, memo: Any) -> _Making:
        return self

    def __reduce__(self) -> Any:
        return _Making, ()  # another process has others


def _put(tree: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register a parameter under a dotted name: `tree.conv1.weight`."""
    first, _, rest = name.partition(".")
    if not rest:
        tree.register_parameter(first, parameter)
        return
    if first not in tree._modules:
        tree.add_module(first, nn.Module())
    _put(tree.get_submodule(first), rest, parameter)


def _own_copy(model: nn.Module) -> nn.Module:
    """A copy with numbers of its own, frozen and without gradients."""
    hooked = [name for name, parameter in model.named_parameters() if parameter._backward_hooks]
    if hooked:
        raise UsageError(
            f"got gradient hooks on {', '.join(hooked)}, which make a gradient another than the function's; expected a model"
            " without: remove them before it is linearised"
        )
    made = own_copy(model, "a linearised network keeps a copy, so that w₀ stays as it was")
    others = differing(made, model)
    if others:
        raise UsageError(
            f"a copy of {type(model).__name__} differs from it in {', '.join(others)}, and a linearised network keeps a copy;"
            " expected a model that is copied as it is: look for __deepcopy__ and __getstate__"
        )
    for parameter in made.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
    return made


def _unfrozen(model: nn.Module, names: tuple[str, ...]) -> nn.Module:
    chosen = set(names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    return model
