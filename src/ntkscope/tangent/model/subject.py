"""A model held still: its chosen parameters, its outputs as a function of them and of the inputs.

The caller's own model is run, with its own parameters, so that a gradient is what plain autograd says it is, wherever a
parameter is kept (a list, a view made long ago, a module registered twice). After every pass the model is put back as it
was (`ModelState`); inputs are copied before each. Only where another dtype or device is asked for, or where parameters must
be replaced (`vmap`, `jvp`), a copy is run instead, and held to the original (`Subject.compare`).
"""

from __future__ import annotations

import contextlib
import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import reduce
from itertools import chain
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import Params, UsageError
from ntkscope.core.arguments import as_device
from ntkscope.core.machine.tensor_cores import tensor_cores
from ntkscope.core.machine.threads import Together, alone_with, caller
from ntkscope.core.model.calling import logits
from ntkscope.core.model.copies import address, differing, duplicate, shared, trainable
from ntkscope.core.random import kept_randomness
from ntkscope.tangent.model.arithmetic import Kinds
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.selection import Selection, check_built, select
from ntkscope.tangent.model.state import ModelState
from ntkscope.tangent.model.swapped import swapped

NOT_THE_MODEL = (
    "dtype=, device= and linearised networks compute with a copy, and a copy of {model} is not that model: it would use {names}"
    " otherwise (functions that read a global or a weak reference still use the original's, and objects with a __getstate__,"
    " or found by their id(), are others); expected a model without them, or, for dtype= and device=, one that is converted"
    " itself: call model.to(...), and leave both out"
)


class Subject:
    """`f(θ, x)` of a model with the chosen parameters `leaves`, which ask for gradients.

    A tied parameter is one leaf, under its first name. Parameters that do not require a gradient are never chosen.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        params: Selection = None,
        last: Sequence[str] = (),
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        still: bool = False,
    ) -> None:
        """`still`: no parameter is differentiated by, whatever the model says."""
        self.original = model
        check_built(model)
        own = [t for t in model.parameters() if t.is_floating_point()]
        self.device = place(model, device)
        self.moved, self.cast = device is not None, dtype is not None
        chosen = {} if still else select(model, params, last)
        elsewhere = self.moved and any(t.device != self.device for t in (*model.parameters(), *model.buffers()))
        recast = dtype is not None and any(
            t.dtype != dtype for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()
        )
        inference = any(t.is_inference() for t in model.parameters())  # so that it cannot be differentiated itself
        self.native = not (elsewhere or recast or inference)
        self.model = model
        self.own: Subject | None = None  # the original, run beside its copy
        self.compared = 0  # samples
        self.wary = False  # whether functions were copied, which may use more for other inputs
        if not self.native:
            self.own = None if inference else Subject(model, params=set(chosen).__contains__, still=still)
            functions: list[FunctionType] = []
            self.model = _converted(model, dtype, self.device if self.moved else None, chosen, functions)
            self.wary = bool(functions)
        self.one_thread = threading.Lock()  # in which the original is run beside its copies
        parameters = dict(self.model.named_parameters())
        self.leaves: Params = {name: parameters[name] for name in chosen if parameters[name].numel()}
        if not self.native:
            for (name, leaf), theirs in zip(parameters.items(), model.parameters()):
                leaf.requires_grad_(name in chosen or (leaf.is_floating_point() and theirs.requires_grad))
        kinds = [leaf.dtype for leaf in self.leaves.values()] or [t.dtype for t in own[:1]]
        self.dtype: torch.dtype = dtype or (reduce(torch.promote_types, kinds) if kinds else torch.get_default_dtype())
        self._model_state: ModelState | None = None
        self._spare: tuple[nn.Module, ModelState] | None = None
        self._remembered: dict[str, Any] = {}
        self._theirs: dict[int, str] | None = None  # the original's parameters, by address
        self._written: frozenset[str] | None = None  # tensors that a forward pass writes to
        self.changes: set[str] = set()  # what the model itself changed while it was run
        self.casts = False  # whether a forward pass casts modules
        self.quickly = True  # whether calls may be made in another, equal way
        self.kinds: set[torch.dtype] = set()  # what a forward pass computes in
        self.draws = False  # whether it draws from a random generator of its own

    def __call__(self, batch: Batch, leaves: Mapping[str, Tensor] | None = None) -> Tensor:
        """The outputs, (n, c); with `leaves` in the place of the chosen parameters, on a copy of the model."""
        if leaves is None:
            outputs = logits(self.run(batch))
            if self.own is not None:
                self._check_graph(outputs)
            return outputs
        spare, before = self.spare()
        try:
            with swapped(spare, leaves):
                return logits(spare(*batch.args, **batch.kwargs))
        finally:
            before.restore()

    def _check_graph(self, outputs: Tensor) -> None:
        """Refuse outputs of a copy that depend on parameters of the original."""
        if self._theirs is None:
            self._theirs = {p.data_ptr(): name for name, p in self.original.named_parameters() if p.numel()}
        theirs = self._theirs
        lost = sorted({theirs[address(leaf)] for leaf in trainable(outputs) if address(leaf) in theirs})
        if lost:
            raise UsageError(NOT_THE_MODEL.format(model=type(self.original).__name__, names=", ".join(lost)))

    def run(self, batch: Batch) -> Any:
        """Whatever the model answers; the model is put back as it was, the inputs are left alone."""
        fresh = batch.map(_copied)
        if self._model_state is None:
            return self._first_run(fresh)
        if self.changes:
            self.restore()
        try:
            return self.model(*fresh.args, **fresh.kwargs)
        finally:
            self.tidy()

    def _first_run(self, batch: Batch) -> Any:
        """The same, and looks whether the model writes to its own tensors and casts its own modules."""
        for other in chain(*_OPEN.get(caller(), ())):  # of the same model, perhaps, whose numbers a pass has left
            other.restore()
        self._model_state = before = ModelState(self.model, written=self._written)
        if self._written is None:
            before.watch_values()
        try:
            _CAST.discard(caller())
            with _NOTING, Kinds(self.kinds):
                return self.model(*batch.args, **batch.kwargs)
        finally:
            self.casts |= caller() in _CAST
            self.draws |= bool(before.drew())
            if self._written is None:
                self._written = frozenset(before.settle())
            self.changes.update(self._written)
            self.tidy()

    @contextlib.contextmanager
    def in_original_numbers(self) -> Iterator[None]:
        """While open, a copy computes with what the original's parameters and buffers hold, where those are."""
        state = _state(self.model)
        kept = [tensor.data for tensor in state]
        try:
            for mine, theirs in zip(state, _state((self.own or self).original), strict=True):
                mine.data = theirs.detach().clone()
            yield
        finally:
            for mine, data in zip(state, kept):
                mine.data = data
            self.restore()

    def spare(self) -> tuple[nn.Module, ModelState]:
        """A copy of the model whose parameters may be replaced; a model that cannot be copied is refused."""
        if self._spare is None:
            copied = duplicate(self.model, share=True).requires_grad_(False)
            self._spare = copied, ModelState(copied, classes=False)
        return self._spare

    def placed(self, batch: Batch) -> Batch:
        """A batch where this is, in its dtype, as far as the caller asked for that."""
        if not (self.cast or self.moved):
            return batch
        return batch.to(self.device, self.dtype if self.cast else None)

    def tidy(self) -> None:
        """Put back what a pass changed, but for the numbers of tensors, which its backward pass may need."""
        assert self._model_state is not None
        with torch._C.DisableTorchFunction():  # whoever watches the pass has no use for this
            self.changes.update(self._model_state.restore(numbers=False))
        calls = _OPEN.get(caller())
        if calls and self not in calls[-1]:
            calls[-1].append(self)

    def restore(self, *, every: bool = False) -> None:
        """Put back everything; `every`: also what may have been written without a trace."""
        if self._model_state is not None:
            self.changes.update(self._model_state.restore(every=every))

    def refresh(self) -> None:
        """Before another call: follow what the caller did to the weights."""
        self._spare = None
        self._remembered, self._theirs = {}, None
        if self.own is not None:
            self.own.refresh()
        if not self.native:
            with torch.no_grad():
                for mine, theirs in zip(_state(self.model), _state(self.original), strict=True):
                    mine.copy_(theirs)
        if self._model_state is not None and not self._model_state.follow():
            self._model_state = self._written = None

    def twin(self) -> Subject:
        """The same for another thread, with modules of its own; the parameters' numbers are shared."""
        other = copy.copy(self)
        other.model = duplicate(self.model, share=True)
        if shared(other.model, self.model):
            raise ValueError("a copy of the model would not be independent of it")
        other._remembered, other.compared = {}, 0
        parameters = dict(other.model.named_parameters())
        other.leaves = {name: parameters[name] for name in self.leaves}
        other._model_state, other._spare, other.changes = (
            ModelState(other.model, classes=False, written=self._written),
            None,
            set(),
        )
        return other

    def remember(self, key: str, make: Callable[[], Any]) -> Any:
        """What `make` gave when it was first asked for."""
        if key not in self._remembered:
            self._remembered[key] = make()
        return self._remembered[key]

    def loosest(self, table: Mapping[torch.dtype, float], otherwise: float = 1e-1) -> float:
        """The tolerance of the shortest numbers that the model computes with."""
        kinds = self.kinds | {leaf.dtype for leaf in self.leaves.values()} or {self.dtype}
        return max(table.get(kind, otherwise) for kind in kinds)

    @property
    def title(self) -> str:
        """Which model is run."""
        name = type(self.original).__name__
        if self.native:
            return f"{name} itself"
        return f"a copy of {name} in {str(self.dtype).removeprefix('torch.')} on {self.device}"

    @property
    def writes(self) -> frozenset[str]:
        """The tensors of its own that the model was seen to write to during a forward pass."""
        return self._written or frozenset()

    @property
    def parameters(self) -> int:
        """How many numbers the chosen parameters hold."""
        return sum(p.numel() for p in self.leaves.values())

    def layer_of(self, name: str) -> str:
        """The module a parameter belongs to, as a person would name it."""
        return name.rpartition(".")[0] or "(the model itself)"


_OPEN: dict[int, list[list[Subject]]] = {}  # by caller: subjects to be put back when the call that runs them ends


def place(model: nn.Module, device: torch.device | str | None = None) -> torch.device:
    """Where a model is computed: on `device`, or where its first parameter is."""
    if device is None:
        return next((p.device for p in model.parameters()), torch.device("cpu"))
    where = as_device(device, auto=False)
    assert where is not None
    if where.type == "cuda" and where.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return where


def _copied(tensor: Tensor) -> Tensor:
    return tensor.clone()


def _state(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _converted(
    model: nn.Module,
    dtype: torch.dtype | None,
    device: torch.device | None,
    chosen: Iterable[str],
    functions: list[FunctionType],
) -> nn.Module:
    """A copy on `device` with floating-point parameters and buffers as `dtype`, neither of them inference tensors.

    `functions` gets those that were copied."""
    made = duplicate(model, functions=functions)
    state = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])
    lost = [name for name in shared(made, model) if name in chosen]
    lost += [name for name in differing(made, model) if name in state]
    if lost:
        raise UsageError(NOT_THE_MODEL.format(model=type(model).__name__, names=", ".join(lost)))
    with torch.inference_mode(False), torch.no_grad():
        for tensor in _state(made):
            value = tensor.detach()
            kind = dtype if dtype is not None and value.is_floating_point() else value.dtype
            if dtype is not None and value.is_complex():
                kind = torch.complex128 if dtype == torch.float64 else torch.complex64
            converted = value.to(device=device or value.device, dtype=kind)
            tensor.data = converted.clone() if converted.is_inference() else converted
    if any(tensor.is_inference() for tensor in _state(made)):
        _replace_inference(made)
    return made


def _replace_inference(model: nn.Module) -> None:
    """Inference tensors cannot be differentiated by: ordinary ones take their places, the same for tied ones."""
    fresh: dict[int, Tensor] = {}
    for module in model.modules():
        for slots, kind in ((module._parameters, nn.Parameter), (module._buffers, torch.Tensor)):
            for name, tensor in slots.items():
                if tensor is not None and tensor.is_inference():
                    if id(tensor) not in fresh:
                        value = tensor.detach().clone()
                        fresh[id(tensor)] = value if kind is torch.Tensor else nn.Parameter(value, tensor.requires_grad)
                    slots[name] = fresh[id(tensor)]  # type: ignore[assignment]
        if isinstance(module, nn.RNNBase):
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


_CAST: set[int] = set()  # callers whose modules were cast or moved


@contextlib.contextmanager
def _noting() -> Iterator[None]:
    """While open, casts and moves of modules are noted."""
    original = nn.Module._apply

    def noted(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        _CAST.add(caller())
        return original(module, *args, **kwargs)

    nn.Module._apply = noted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]


_NOTING = Together(_noting)


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """TF32 off; the default dtype, warning filters, random states of the process and whether its algorithms are deterministic
    are kept, whatever happens inside."""
    dtype, before = torch.get_default_dtype(), _deterministic()
    devices = [torch.device("cuda", k) for k in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)]
    with kept_randomness(devices), tensor_cores(False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*performance drop", category=UserWarning)  # of vmap's slower rules
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            if _deterministic() != before:  # setting it imports the whole compiler
                torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


_SETTINGS = Together(_settings)


@contextlib.contextmanager
def quiet(device: torch.device, *models: nn.Module) -> Iterator[None]:
    """One call on `models`: others on them, or on parts of them, wait in their threads until it ends.

    Gradients on, mixed precision off, the settings of the process kept; the models are put back as they were.
    """
    threads, subjects = torch.get_num_threads(), list[Subject]()
    context, errors = copy_context(), np.geterr()
    with (
        alone_with(*(module for model in models for module in model.modules())),
        _SETTINGS,
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),  # threads of their own know nothing of the caller's
        torch.autocast(device.type, enabled=False),
    ):
        calls = _OPEN.setdefault(caller(), [])
        calls.append(subjects)
        try:
            yield
        finally:
            calls.pop()
            if not calls:
                del _OPEN[caller()]
            np.seterr(**errors)
            for variable, value in context.items():
                if variable.get(None) is not value:
                    variable.set(value)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            with contextlib.ExitStack() as each:
                for subject in subjects:
                    each.callback(subject.restore, every=True)
