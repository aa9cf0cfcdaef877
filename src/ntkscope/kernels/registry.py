"""The registry of kernels and what every one of them is asked with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import torch
from torch import nn

from ntkscope.core import Registry, UsageError
from ntkscope.core.sizes import over_budget
from ntkscope.kernels import costs
from ntkscope.linalg import Gram
from ntkscope.tangent.blocks.heads import Heads, OutputSketch
from ntkscope.tangent.forward.readout import last_parameters
from ntkscope.tangent.kernel.engines import Engines
from ntkscope.tangent.kernel.store_source import TangentRecipe
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.autograd import compare
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.selection import Selection
from ntkscope.tangent.model.state import ModelState
from ntkscope.tangent.model.subject import Subject, place

F = TypeVar("F", bound=Callable[..., Gram])
Held = TypeVar("Held")


@dataclass(frozen=True)
class Traits:
    """What is declared of a kernel where it is registered: all that plans and pages need to know of it by its name.

    `by_parameters`: it is made of gradients by parameters, so that `params=` chooses among them. `cost`: seconds for n training
    inputs and m test inputs with them. `features`: it is held by its features, so that one pass
    over all inputs gives every part of it. `normalizes`: the kernel whose cosines it is, from which it follows at no cost.
    `per_output`: a row for each output of an input, not one per input. `quick`: options for a first look at a network.
    `priority`: kernels with the highest number are given up first when time is short; None: computed only when asked for.
    `title`: its name in words, for pages. `meant_by`: words under which it may be looked for and is not found.
    """

    by_parameters: bool = True
    cost: costs.Cost = costs.exact
    features: bool = False
    normalizes: str | None = None
    per_output: bool = False
    quick: Mapping[str, Any] = field(default_factory=dict)
    priority: int | None = 100
    title: str = ""
    meant_by: tuple[str, ...] = ()


@final
class KernelRegistry(Registry[Callable[..., Gram]]):
    """Names to kernels, with what each declares.

    >>> kernels = KernelRegistry("kernel")
    >>> @kernels.register("mine", features=True)
    ... def mine(request): ...
    >>> kernels.traits("mine").features
    True
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)  # `Tangent.kernel` checks their options
        self._traits: dict[Callable[..., Gram], Traits] = {}

    def register(self, *names: str, **declared: Any) -> Callable[[F], F]:  # type: ignore[override]
        """Decorator: register a kernel under each of `names`; `declared` are its `Traits`."""
        add, traits = super().register(*names), Traits(**declared)

        def decorate(kernel: F) -> F:
            made = add(kernel)
            self._traits[made] = traits
            for word in traits.meant_by:
                self._meant.setdefault(word, []).extend(f"{name!r} ({traits.title})" for name in names)
            return made

        return decorate

    def traits(self, name: str) -> Traits:
        """What the kernel `name` declares; the defaults where it declares nothing."""
        return self._traits.get(self[name], Traits())

    def per_input(self) -> list[str]:
        """The kernels with one row per input, those given up last first."""
        found = {name: self.traits(name) for name in self if not self.traits(name).per_output}
        places = {name: float("inf") if traits.priority is None else traits.priority for name, traits in found.items()}
        return sorted(found, key=lambda name: (places[name], found[name].normalizes is None, name))

    def computed_as(self, name: str) -> str:
        """The kernel that has to be computed for `name`: itself, or the one whose cosines it is.

        >>> from ntkscope.kernels import KERNELS
        >>> KERNELS.computed_as("trntk"), KERNELS.computed_as("ck")
        ('trntk0', 'ck')
        """
        return self.traits(name).normalizes or name

    def views_of(self, computed: str) -> list[str]:
        """The kernels that one computed kernel gives: its cosines, where some kernel is that, then itself.

        >>> from ntkscope.kernels import KERNELS
        >>> KERNELS.views_of("trntk0"), KERNELS.views_of("ck")
        (['trntk', 'trntk0'], ['ck'])
        """
        return [*(name for name in self if self.traits(name).normalizes == computed), computed]


KERNELS = KernelRegistry("kernel")


class Kept:
    """What is kept of one model from call to call: the subjects made of it and what their probes found.

    `lasting`: whether there are to be further calls.
    """

    def __init__(self, lasting: bool = False) -> None:
        self.lasting = lasting
        self._held: dict[str, tuple[ModelState | None, Any]] = {}

    def get(self, what: str, model: nn.Module, make: Callable[[], Held], sample: Batch) -> Held:
        """What was made of the model earlier, if it is still the same but for its weights; made anew otherwise.

        A copy of a model that holds more than can be looked at is held to it on a `sample`.
        """
        before, held = self._held.get(what, (None, None))
        if before is not None and before.same():
            subject = held.subject if isinstance(held, Engines) else held
            subject.refresh()
            try:
                if before.opaque:
                    compare(subject, subject.placed(sample))
                return held
            except UsageError:
                pass
        before, held = ModelState(model, foreign=True) if self.lasting else None, make()
        self._held[what] = before, held
        return held


@dataclass(frozen=True)
class Request:
    """What the caller of `ns.kernel` asked for, inputs made into batches and checked."""

    name: str
    model: nn.Module
    x1: Batch
    x2: Batch | None
    outputs: Sequence[int] | OutputSketch | None
    params: Selection
    dtype: torch.dtype | None
    device: torch.device | str | None
    memory: int
    progress: bool
    seed: int
    store: str | None = None  # where tiles are kept; None: the kernel stays in memory
    executor: Any = None  # who computes them; None: this process
    certify: str | bool = "every"  # which blocks are checked against autograd
    kept: Kept | None = None  # what an earlier call found out about the model

    def subject(self, params: Selection = None, last: Sequence[str] = (), *, still: bool = False) -> Subject:
        return Subject(self.model, params=params, last=last, dtype=self.dtype, device=self.device, still=still)

    @property
    def numbers(self) -> list[int] | None:
        """The numbers of the chosen outputs, None for all of them; random combinations have none."""
        if isinstance(self.outputs, OutputSketch):
            raise UsageError(f"got outputs={self.outputs} for a kernel on disk; expected the numbers of some outputs")
        return None if self.outputs is None else list(self.outputs)

    def recipe(self, subject: Subject, heads: Heads, full: bool, precision: str) -> TangentRecipe:
        """How another process makes the engine of this request."""
        names = frozenset(subject.leaves)
        return TangentRecipe(self.model, self.dtype, self.device, names, heads, full, precision, self.certify)

    def place(self) -> torch.device:
        """Where it is computed."""
        return place(self.model, self.device)

    def check_inputs(self) -> None:
        """Inputs must be where the model is, unless a device was asked for, and finite."""
        for batch in (self.x1, self.x2):
            if batch is not None:
                guards.check_placement(self.place(), self.device is not None, batch)
                guards.check_inputs_finite(batch)

    def engines(self) -> Engines:
        """The engines of the parameters that were chosen; "last" is found by running the model once."""
        kept = self.kept or Kept()

        def make() -> Engines:
            last: tuple[str, ...] = ()
            if isinstance(self.params, str) and self.params == "last":
                everything = self.subject()
                last = last_parameters(everything, everything.placed(self.x1[: min(3, len(self.x1))]))
            return Engines(self.subject(self.params, last), certify=self.certify, lasting=kept.lasting)

        engines = kept.get("engines", self.model, make, self.x1[:1])
        engines.certify = self.certify
        return engines

    def still(self) -> tuple[Subject, Batch]:
        """The subject of a kernel without parameters, checked on a few samples of both inputs, and these of the first."""
        subject = (self.kept or Kept()).get("still", self.model, lambda: self.subject(still=True), self.x1[:1])
        few = subject.placed(self.x1[: min(3, len(self.x1))])
        outputs = guards.first_outputs(subject, few)
        guards.check_randomness(subject, few, outputs)
        guards.check_independence(subject, few, outputs)
        if self.x2 is not None:
            guards.first_outputs(subject, subject.placed(self.x2[:1]))
        return subject, few

    def check_memory(self, features: int, itemsize: int) -> None:
        """Refuse a budget into which the features of all inputs do not fit; `features` numbers per sample."""
        samples = len(self.x1) + (0 if self.x2 is None else len(self.x2))
        needed = samples * features * itemsize * 2  # the blocks and the whole they are joined into
        if needed > self.memory:
            raise over_budget(self.memory, needed, f"for {samples} samples of {features} features")

    def unrestricted(self) -> None:
        """Refuse `params=` and `outputs=` where they mean nothing."""
        if self.params is not None:
            raise UsageError(f"got params={self.params!r} for {self.name!r}, which uses no gradients; leave it out")
        if self.outputs is not None:
            raise UsageError(f"got outputs={self.outputs!r} for {self.name!r}, which uses no outputs; leave it out")


def describe(subject: Subject, **more: Any) -> dict[str, Any]:
    """What a tangent kernel says about itself."""
    return {"parameters": subject.parameters, "dtype": str(subject.dtype).replace("torch.", ""), **more}
