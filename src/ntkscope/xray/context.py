"""The context: what a section may ask for. Whatever is dear is kept in the record and read back when a run goes on."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from ntkscope.core import Inputs, Part, Record
from ntkscope.core.tree import join
from ntkscope.data.subsets import stratified
from ntkscope.kernels import kernel
from ntkscope.linalg import Gram
from ntkscope.surrogates import KernelGLM
from ntkscope.xray.budget import half_of_the_budget
from ntkscope.xray.items import Items
from ntkscope.xray.network import class_logits, outputs
from ntkscope.xray.plan import Plan
from ntkscope.xray.rates import projection_dim

Array = NDArray[Any]
FACTORED = ("ck", "proj-trntk", "proj-pntk")
ALPHA = (
    1e-4  # of the surrogates; kernels are scaled to a mean diagonal of 1 first, so it means the same for all of them
)
ABSENT = -50.0  # the logit of a class the surrogate never saw: a probability of nothing


@dataclass(frozen=True, eq=False)
class Pair:
    """A kernel between the training items (n, n) and of the test items with them (m, n)."""

    train: Array
    test: Array


@dataclass(frozen=True, eq=False)
class Fitted:
    """A surrogate on one kernel: linear in it, one row of coefficients a class of the network."""

    name: str
    coef_: Array
    intercept_: Array
    scale: float
    seconds: float
    converged: bool

    def logits(self, K: Array) -> Array:
        """`K coefᵀ + intercept` in float64, K already scaled."""
        return K.astype(np.float64) @ self.coef_.T + self.intercept_


@dataclass(eq=False)
class Context:
    """One X-ray in progress."""

    record: Record
    model: nn.Module
    initial: nn.Module | None
    train: Items
    test: Items
    classes: tuple[str, ...]
    plan: Plan
    memory: int
    seed: int
    device: Any
    progress: bool | Literal["auto"]
    certify: str | bool = "every"
    timings: list[dict[str, Any]] = field(default_factory=list)  # written with each section

    # -- the network --------------------------------------------------------------------------------------------------

    @cached_property
    def network_logits(self) -> Array:
        """The network's logits of the test items, (m, classes)."""
        return self._kept(
            "network.test_logits", lambda: class_logits(outputs(self.model, self.test.x, self.device)).numpy()
        )

    @cached_property
    def network_train_logits(self) -> Array:
        """The network's logits of the training items."""
        return self._kept(
            "network.train_logits", lambda: class_logits(outputs(self.model, self.train.x, self.device)).numpy()
        )

    @property
    def y_train(self) -> NDArray[np.int64]:
        return self.train.y.numpy()

    @property
    def y_test(self) -> NDArray[np.int64]:
        return self.test.y.numpy()

    # -- kernels ------------------------------------------------------------------------------------------------------

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels of the plan by the names of the page: the normalised trace-NTK first."""
        return tuple(
            name
            for planned in self.plan.kernels
            for name in (("trntk", "trntk0") if planned == "trntk0" else (planned,))
        )

    def pair(self, name: str) -> Pair:
        """The kernel `name` of the network, computed once; "trntk" is made of "trntk0"."""
        if name == "trntk":
            raw = self.pair("trntk0")
            own = lengths(np.diagonal(raw.train))
            other = lengths(self.record.arrays["kernels.trntk0.test_diagonal"])
            train = (raw.train / own[:, None] / own).astype(np.float32)
            np.fill_diagonal(train, 1.0)
            return Pair(train, (raw.test / other[:, None] / own).astype(np.float32))
        return self._pair(name, self.model, self.train.x, self.test.x, f"kernels.{name}", f"kernel {name}")

    def initial_pair(self, name: str) -> Pair:
        """The kernel `name` of the initial network on the subset of items the plan gave it."""
        assert self.initial is not None
        rows, columns = self.initial_rows
        return self._pair(
            name,
            self.initial,
            self.train.take(torch.from_numpy(rows)).x,
            self.test.take(torch.from_numpy(columns)).x,
            f"kernels.initial.{name}",
            f"initial kernel {name}",
        )

    @cached_property
    def initial_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which training and test items the initial network is compared on: a stratified part of those in use."""
        return (
            stratified(self.y_train, self.plan.initial_train, self.seed, "xray", "initial", "train"),
            stratified(self.y_test, self.plan.initial_test, self.seed, "xray", "initial", "test"),
        )

    def _pair(self, name: str, model: nn.Module, train: Inputs, test: Inputs, key: str, stage: str) -> Pair:
        arrays = self.record.arrays
        if f"{key}.train" not in arrays or f"{key}.test" not in arrays:
            with self.record.stage(stage, total=2) as step, self.timed(stage):
                if f"{key}.train" not in arrays:
                    if name in FACTORED:
                        self._factored(name, model, train, test, key)
                    else:
                        made = self._kernel(name, model, train)
                        if key == "kernels.trntk0":
                            self._keep_coverage(made)
                        self.keep_certificate(key.removeprefix("kernels."), "train", made)
                        self.record.array(f"{key}.train", made.numpy().astype(np.float32, copy=False))
                step.advance(max(0, 1 - step.done))
                if f"{key}.test" not in self.record.arrays:
                    made = self._kernel(name, model, test, train)
                    self.keep_certificate(key.removeprefix("kernels."), "test", made)
                    if made.row_diagonal is not None:
                        self.record.array(f"{key}.test_diagonal", made.row_diagonal.double())
                    self.record.array(f"{key}.test", made.numpy().astype(np.float32, copy=False))
                step.advance(max(0, 2 - step.done))
        arrays = self.record.arrays
        return Pair(arrays[f"{key}.train"], arrays[f"{key}.test"])

    def _factored(self, name: str, model: nn.Module, train: Inputs, test: Inputs, key: str) -> None:
        """Kernels held by features: one pass over all items, then both products."""
        n = len(self.train) if model is self.model else len(self.initial_rows[0])
        made = self._kernel(name, model, joined(train, test))
        self.keep_certificate(key.removeprefix("kernels."), "all", made)
        everything = slice(0, made.shape[0])
        rows = slice(n, everything.stop)
        self.record.array(f"{key}.test", made[rows, slice(0, n)].numpy().astype(np.float32, copy=False))
        self.record.array(f"{key}.train", made[slice(0, n), slice(0, n)].numpy().astype(np.float32, copy=False))

    def _kernel(self, name: str, model: nn.Module, x1: Inputs, x2: Inputs = None) -> Any:
        options: dict[str, Any] = {"dim": projection_dim(name)} if name.startswith("proj-") else {}
        with half_of_the_budget():
            return kernel(
                name,
                model,
                x1,
                x2,
                device=self.device,
                memory=self.memory // 2,
                progress=bool(self.progress),
                seed=self.seed,
                certify=self.certify,
                **options,
            )

    def keep_certificate(self, name: str, part: str, made: Gram) -> None:
        """What was checked while one part of a kernel was computed; kept before its numbers, so that they are never without."""
        if made.certificate is not None:
            known = dict(self.record.metrics.get("certificates", {}))
            known[name] = {**known.get(name, {}), part: made.certificate.to_json()}
            self.record.put(certificates=known)

    def _keep_coverage(self, made: Any) -> None:
        cover = made.coverage
        if cover is not None:
            names = list(cover.roads)
            self.record.put(
                coverage={
                    "roads": {name: cover.roads[name] for name in names},
                    "numbers": {name: cover.numbers[name] for name in names},
                    "seconds": {name: round(cover.seconds[name], 6) for name in names},
                    "stages": {name: round(value, 6) for name, value in cover.stages.items()},
                }
            )

    # -- surrogates ---------------------------------------------------------------------------------------------------

    def scaled(self, name: str) -> Pair:
        """The kernel divided by the mean of its training diagonal, so that one ridge strength fits all kernels."""
        pair = self.pair(name)
        scale = self.scale(pair)
        return Pair(pair.train / scale, pair.test / scale)

    @staticmethod
    def scale(pair: Pair) -> Any:
        mean = float(np.diagonal(pair.train).astype(np.float64).mean())
        return np.float32(mean if mean > 0 else 1.0)

    def surrogate(self, name: str) -> Fitted:
        """The kernel GLM on the kernel `name`, fitted once to the training labels."""
        key = f"surrogates.coef.{name}"
        if key not in self.record.arrays:
            K = self.scaled(name).train
            with self.timed(f"surrogate {name}"):
                start = time.perf_counter()
                fitted = fit(K, self.y_train, self.seed)
                seconds = time.perf_counter() - start
                coef, intercept = whole(fitted, len(self.classes))
                known = dict(self.record.metrics.get("surrogate_fits", {}))
                known[name] = {
                    "seconds": seconds,
                    "converged": bool(fitted.converged_),
                    "iterations": int(fitted.n_iter_),
                }
                self.record.put(surrogate_fits=known)
                self.record.array(key, np.concatenate([coef, intercept[:, None]], axis=1))
        both = np.asarray(self.record.arrays[key])
        told = self.record.metrics["surrogate_fits"][name]
        return Fitted(
            name, both[:, :-1], both[:, -1], float(self.scale(self.pair(name))), told["seconds"], told["converged"]
        )

    def surrogate_logits(self, name: str) -> Array:
        """The surrogate's logits of the test items."""
        return self._kept(
            f"surrogates.logits.{name}", lambda: self.surrogate(name).logits(self.scaled(name).test), np.float64
        )

    # -- keeping ------------------------------------------------------------------------------------------------------

    def keep(self, name: str, value: Array | Tensor) -> None:
        """Put an array into the record."""
        self.record.array(name, value)

    def _kept(self, name: str, make: Callable[[], Array], dtype: Any = np.float64) -> Array:
        if name not in self.record.arrays:
            self.record.array(name, make().astype(dtype, copy=False))
        return np.asarray(self.record.arrays[name])

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """A block whose time goes into the list of timings, when it ends well."""
        start = time.perf_counter()
        yield
        self.timings = [entry for entry in self.timings if entry["what"] != what]
        self.timings.append({"what": what, "seconds": round(time.perf_counter() - start, 4)})


def lengths(squares: Any) -> Array:
    """Lengths of gradients by which a kernel is normalised; 1 for an item no parameter reacts to, whose row stays 0.

    >>> lengths([4.0, 0.0]).tolist()
    [2.0, 1.0]
    """
    roots = np.sqrt(np.asarray(squares, dtype=np.float64))
    return np.where(roots > 0, roots, 1.0)


def fit(K: Array, y: NDArray[np.int64], seed: int, alpha: float = ALPHA) -> KernelGLM:
    """A kernel GLM; one that stops early says so in the record instead of a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return KernelGLM(alpha=alpha, tol=1e-5, max_iter=100, seed=seed).fit(np.asarray(K), y)


def whole(fitted: Any, classes: int) -> tuple[Array, Array]:
    """Coefficients and intercepts for all classes of the network, also those without a training item."""
    coef = np.zeros((classes, fitted.coef_.shape[1]))
    intercept = np.full(classes, ABSENT)
    coef[fitted.classes_], intercept[fitted.classes_] = fitted.coef_, fitted.intercept_
    return coef, intercept


def joined(first: Inputs, second: Inputs) -> Inputs:
    """The inputs of both, one after the other."""
    return join([first, second])


def subset(items: Items, rows: NDArray[np.int64]) -> Part:
    """Some items as a `Part`."""
    taken = items.take(torch.from_numpy(rows))
    return Part(taken.x, taken.y)
