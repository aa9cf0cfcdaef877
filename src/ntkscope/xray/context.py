"""The context: what a section may request. Expensive results are kept in the record and read back when a run is resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from ntkscope.core import Inputs, Part, Record, UsageError
from ntkscope.core.progress import TimeLimit, time_limit
from ntkscope.data.subsets import stratified
from ntkscope.kernels import KERNELS
from ntkscope.kernels.costs import Rates
from ntkscope.machines import KernelMachine, KernelPair, fit_machine
from ntkscope.machines.computing import names_of
from ntkscope.xray.budget import MOMENT, Clock, Pace
from ntkscope.xray.items import Items
from ntkscope.xray.network import Params, chosen_matrices, last_layer, outputs, shapes
from ntkscope.xray.pairs import Pairs
from ntkscope.xray.plan import EXACT, INITIAL_STEP, Plan, fewer_items, kernel_step, section_step
from ntkscope.xray.registry import OutOfTime, Section, Skip, in_order
from ntkscope.xray.result import R
from ntkscope.xray.settings import Settings
from ntkscope.xray.task import CLASSIFICATION, Array, Task
from ntkscope.xray.tracked import Tracked
from ntkscope.xray.training import Training
from ntkscope.xray.workload import DECOMPOSED, Workload

T = TypeVar("T")
OVER = 0.05  # of the budget by which a step that was expected to fit may pass it before it is stopped
ALPHA = 1e-4  # kernels are first scaled to a mean diagonal of 1, so it means the same for all
FIT: dict[str, dict[str, Any]] = {
    "labels": {"alpha": ALPHA, "tol": 1e-5, "max_iter": 100},
    "logits": {"rows": DECOMPOSED},
    "outputs": {"rows": DECOMPOSED},  # the same of a regression
    "targets": {"rows": DECOMPOSED},
}


def _nobody(step: str) -> None:
    """Ignore that a step of the plan is done."""


@dataclass(eq=False)
class Subject:
    """What is X-rayed, read and checked; `classes` are the names of the classes, in a regression those of the outputs."""

    model: nn.Module
    initial: nn.Module | None
    train: Items
    test: Items
    classes: tuple[str, ...]
    width: int  # outputs of the network
    params: Params  # by which kernels of gradients differentiate
    device: torch.device | None
    tracked: Tracked | None  # the training of this network, as a tracker recorded it
    training: Training | None  # the same as a loop that can be replayed
    compared: Inputs | None  # inputs of other items, to compare with the training items
    settings: Settings
    clock: Clock

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def memory(self) -> int:
        """Bytes that may be held, the model and its data not counted."""
        return int(self.settings.budget.bytes)

    @property
    def task(self) -> Task:
        return self.train.task

    @property
    def given(self) -> tuple[str, ...]:
        """What sections may need and this X-ray has."""
        found = {
            "tracked": self.tracked is not None,
            "training": self.training is not None,
            "texts": self.train.kind == "text",
        }
        return tuple(name for name, there in found.items() if there)

    @property
    def examined(self) -> Params:
        """The parameters whose weights are looked at: those that the caller chose; kernels may differentiate by fewer."""
        return None if self.settings.params is None else self.params

    @cached_property
    def matrices(self) -> dict[str, nn.Parameter]:
        """The weights that are matrices, by name; those of `params` alone where they were chosen."""
        return chosen_matrices(self.model, self.examined)

    @cached_property
    def last_layer(self) -> tuple[str, ...]:
        """The parameters of the last affine layer; none if the outputs do not all go through one."""
        try:
            return last_layer(self.model, self.train, self.device)
        except UsageError:
            return ()

    def workload(self, rates: Rates) -> Workload:
        """The work on all items."""
        train, test = len(self.train), len(self.test)
        return Workload(
            train,
            test,
            *((0, 0) if self.initial is None else (train, test)),
            self.task.smallest_sample(len(self.classes)),
            rates,
            task=self.task,
            matrices=shapes(self.matrices),
            tracked=None if self.tracked is None else self.tracked.bytes,
            training=None if self.training is None else self.training.seconds,
            given=self.given,
        )


@dataclass(eq=False)
class Context(Subject):
    """One X-ray in progress, of the items of its plan."""

    record: Record
    plan: Plan
    timings: list[dict[str, Any]]  # written with each section
    pace: Pace
    step_done: Callable[[str], None] = _nobody  # called with the name of every finished step of the plan
    kernel_seconds: float = 0.0  # spent on kernels in this attempt

    # -- the network --------------------------------------------------------------------------------------------------

    @cached_property
    def network_outputs(self) -> Float64[np.ndarray, "m c"]:
        """The network's outputs for the test items; of a classifier its logits, one per class."""
        return self._outputs("test", self.test)

    @cached_property
    def network_train_outputs(self) -> Float64[np.ndarray, "n c"]:
        """The same for the training items."""
        return self._outputs("train", self.train)

    def _outputs(self, side: str, items: Items) -> Array:
        key = f"network.{side}_{self.task.outputs}"
        return self._kept(key, lambda: self.task.from_outputs(outputs(self.model, items.x, self.device)).numpy())

    @property
    def network_logits(self) -> Float64[np.ndarray, "m c"]:
        """The network's logits of the test items, (m, classes)."""
        self._needs(CLASSIFICATION)
        return self.network_outputs

    def _needs(self, task: Task) -> None:
        """Skip the section that asks for what networks of another task do not have."""
        if self.task is not task:
            raise Skip(f"not for {self.task.name}: it needs {task.lacking}, which this network's data do not have")

    @property
    def labels_train(self) -> Array:
        """Class numbers (n,), or the real targets (n, outputs) of a regression."""
        return self.train.y.numpy()

    @property
    def labels_test(self) -> Array:
        return self.test.y.numpy()

    @property
    def y_train(self) -> Int64[np.ndarray, " n"]:
        """Class numbers; a section that asks for them is not for regressions."""
        self._needs(CLASSIFICATION)
        return self.labels_train

    @property
    def y_test(self) -> Int64[np.ndarray, " m"]:
        self._needs(CLASSIFICATION)
        return self.labels_test

    @property
    def aim_train(self) -> Array:
        """What a kernel should be aligned with: the labels (n,), or the targets (n, outputs), each with mean 0, variance 1."""
        return self.task.aim(self.labels_train)

    # -- what other sections found -------------------------------------------------------------------------------------

    def result(self, section: Section[R]) -> R | None:
        """What another section found; None if it failed or found nothing. It must be among the caller's `after`."""
        return section.of(self.task).read(self.record.metrics)

    # -- kernels ------------------------------------------------------------------------------------------------------

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels of the plan by their names on the page: the normalised trace-NTK first."""
        return names_of([name for name in self.plan.kernels if name not in self.record.metrics.get("left_out", ())])

    def while_time_lasts(self, computed: str, work: Callable[[], T]) -> T | None:
        """What `work` makes of a computed kernel of the plan, or None if the time would not suffice: it is left out then.

        The main kernel is never left out; of others what comes after them and is essential is kept free.
        """
        if computed == EXACT:
            return work()
        steps, surrogates = self.plan.steps, f"{self.task.prefix}surrogates"
        fits = steps.get(section_step(surrogates), 0.0) * len(names_of([computed])) / len(names_of(self.plan.kernels))
        expected = fits + (0.0 if self.pairs.has(computed) else steps.get(kernel_step(computed), 0.0))
        room = self.clock.left() - self.kept_free(surrogates)
        if self.pace.now() * expected <= room:
            with suppress(TimeLimit), time_limit(room):
                return work()
        self.record.put(left_out=[*self.record.metrics["left_out"], computed])
        return None

    def allowed(self, section: Section[Any]) -> float:
        """Seconds after which a section is stopped: the time of essential ones that come after it is kept free.

        Where that is too little for them all, a section still gets twice what it was expected to take.
        """
        left = self.clock.left() + OVER * (self.clock.seconds or 0.0)
        expected = self.pace.now() * self.plan.steps.get(section_step(section.name), 0.0)
        return max(left - self.kept_free(section.name), min(left, MOMENT + 2 * expected))

    def kept_free(self, name: str) -> float:
        """Seconds for the essential sections after this one, and for the kernel of the initial network, which they need."""
        names = [section.name for section in in_order(self.task, self.given) if section.essential]
        steps = [section_step(later) for later in names[names.index(name) + 1 :]] if name in names else []
        if steps and self.initial is not None and not self.pairs.has(EXACT, "initial."):
            steps.append(INITIAL_STEP)
        return self.pace.now() * sum(self.plan.steps.get(step, 0.0) for step in steps)

    def too_short_for(self, step: str) -> str | None:
        """Why a step of the plan does not fit the time any more; None if it does."""
        pace = self.pace.now()

        def smaller(seconds: float) -> str:
            try:
                rates = Rates(**self.record.metrics.get("rates", {}))
            except TypeError:  # of another version
                return ""
            work = replace(self.workload(rates), classes=rates.outputs)
            found = fewer_items(step, self.plan, work, seconds / pace)
            if found is None:
                return ", choose fewer parameters (--params) or a faster device; fewer items would not be enough"
            return f", or in a new folder use about {found:,} training items, which would fit (--max-train)"

        return self.clock.too_short_for(pace * self.plan.steps.get(step, 0.0), smaller)

    @cached_property
    def pairs(self) -> Pairs:
        """How this X-ray computes kernels, and where it keeps them."""
        options = {
            "device": self.device,
            "memory": self.memory // 2,
            "progress": bool(self.settings.progress),
            "seed": self.seed,
            "certify": self.settings.certify,
        }
        return Pairs(self.record, options, self.timed, self.params)

    def pair(self, name: str) -> KernelPair:
        """The kernel `name` of the network, computed once; a kernel of cosines is made from the one it normalises."""
        computed = KERNELS.computed_as(name)
        if not self.pairs.has(computed):
            self._check_time(f"the kernel {computed}", kernel_step(computed))
        found = self.pairs.pair(computed, self.model, self.train.x, self.test.x, coverage=computed == EXACT)
        self.step_done(kernel_step(computed))
        return found if name == computed else self.pairs.cosines(found, name)

    def initial_pair(self, name: str) -> KernelPair:
        """The computed kernel `name` of the initial network on the subset of items that the plan chose for it."""
        assert self.initial is not None
        rows, columns = self.initial_rows
        if not self.pairs.has(name, "initial."):
            self._check_time("the kernel of the initial network", INITIAL_STEP)
        train, test = self.train.take(torch.from_numpy(rows)), self.test.take(torch.from_numpy(columns))
        found = self.pairs.pair(name, self.initial, train.x, test.x, "initial.")
        if name == EXACT:
            self.step_done(INITIAL_STEP)
        return found

    def _check_time(self, what: str, step: str) -> None:
        """Skip the section that asks for something the time no longer allows."""
        why = self.too_short_for(step)
        if why is not None:
            raise OutOfTime(f"needs {what}: {why}")

    @cached_property
    def initial_rows(self) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " m"]]:
        """Which training and test items the initial network is compared on: a stratified part of those in use."""
        return (
            stratified(self.train.strata, self.plan.initial_train, self.seed, "xray", "initial", "train"),
            stratified(self.test.strata, self.plan.initial_test, self.seed, "xray", "initial", "test"),
        )

    # -- surrogates ---------------------------------------------------------------------------------------------------

    def fitted(self, pair: KernelPair, y: Array, target: str = "labels") -> KernelMachine:
        """The X-ray's surrogate on a scaled kernel, one logit per class of the network; not stored.

        `y`: labels or targets of the rows of that kernel; fits of logits and outputs are of all training items.
        """
        network = self.network_train_outputs if target == self.task.outputs else None
        how: dict[str, Any] = {"target": target, "network": network, "classes": len(self.classes), "seed": self.seed}
        return fit_machine(pair, y, **how, **FIT[target])

    def machine(self, name: str, target: str = "labels") -> KernelMachine:
        """The surrogate on the kernel `name`, fitted once, to the training labels or to the network's logits."""
        fit = fit_name(name, target)
        key = f"surrogates.coef.{fit}"
        if key not in self.record.arrays or fit not in self.record.metrics.get("surrogate_fits", {}):
            pair = self.pair(name).scaled()
            with self.timed(f"surrogate {fit}"):
                made = self.fitted(pair, self.labels_train, target)
                fits = dict(self.record.metrics.get("surrogate_fits", {}))
                kept = ("seconds", "converged", "iterations", "alpha", "edge")
                fits[fit] = {field: getattr(made, field) for field in kept}
                self.record.put(surrogate_fits=fits)
                self.record.array(key, np.concatenate([made.coef_, made.intercept_[:, None]], axis=1))
        both = np.asarray(self.record.arrays[key])
        told = {"alpha": FIT[target].get("alpha", math.nan), **self.record.metrics["surrogate_fits"][fit]}
        return KernelMachine(name, both[:, :-1], both[:, -1], target=target, **told)

    def machine_logits(self, name: str, target: str = "labels") -> Float64[np.ndarray, "m c"]:
        """The surrogate's logits of the test items."""
        key = f"surrogates.logits.{fit_name(name, target)}"
        return self._kept(key, lambda: self.machine(name, target).logits(self.pair(name).scaled().test))

    # -- keeping ------------------------------------------------------------------------------------------------------

    def keep(self, name: str, value: Array | Tensor) -> None:
        """Put an array into the record."""
        self.record.array(name, value)

    def _kept(self, name: str, make: Callable[[], Array]) -> Array:
        if name not in self.record.arrays:
            self.record.array(name, make().astype(np.float64, copy=False))
        return np.asarray(self.record.arrays[name])

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Time a block and add it to the list of timings if it succeeds."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.timings = [entry for entry in self.timings if entry["what"] != what]
        self.timings.append({"what": what, "seconds": round(seconds, 4)})
        if what.endswith(tuple(map(kernel_step, self.plan.kernels))):
            self.kernel_seconds += seconds
            self.pace.saw(self.plan.steps.get(what, 0.0), seconds)


def fit_name(kernel: str, target: str) -> str:
    """Under which name a surrogate and what is computed from it are kept: the kernel's own for a fit of labels.

    >>> fit_name("trntk", "labels"), fit_name("trntk", "logits")
    ('trntk', 'trntk.logits')
    """
    return kernel if target == "labels" else f"{kernel}.{target}"


def subset(items: Items, rows: Int64[np.ndarray, " k"]) -> Part:
    """Some items as a `Part`."""
    taken = items.take(torch.from_numpy(rows))
    return Part(taken.x, taken.y)
