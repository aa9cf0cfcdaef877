"""Measurement: everything that is measured of a network at one moment, as rows, with what each part took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import NtkscopeError, NumericalError, UsageError
from ntkscope.kernels import KERNELS, Tangent
from ntkscope.measures import alignment
from ntkscope.measures.spectra import classify_eigenvalues
from ntkscope.tracking.budget import FEWEST, Cost
from ntkscope.tracking.features import NFA, feature_rows
from ntkscope.tracking.probe import Probe
from ntkscope.tracking.still import held_still
from ntkscope.tracking.weights import DIGITS, PREFIX, directions_for, matrices, spectrum_row, spike_row, weight_rows

POWERS = 20  # eigenvectors whose cumulative label power is written
LEVEL = 0.05  # of the tests for spikes
ALIGNMENT = "alignment"


@dataclass(frozen=True)
class Watch:
    """What is watched: matrices by the globs of their names, kernels by name, whether kernels are held against labels, and
    layers whose weights are held against gradients, by the globs of their names."""

    globs: tuple[str, ...]
    kernels: tuple[str, ...]
    alignment: bool
    features: tuple[str, ...] = ()


def as_watch(names: Sequence[str] | str) -> Watch:
    """
    >>> as_watch(("weights:readout.*", "ck"))
    Watch(globs=('readout.*',), kernels=('ck',), alignment=False, features=())
    """
    told = (names,) if isinstance(names, str) else tuple(names)
    globs, kernels, features, aligned = [], [], [], False
    for name in told:
        if not isinstance(name, str):
            raise UsageError(f"got {name!r} in watch; expected names such as 'weights', 'ck', 'trntk', 'alignment'")
        head, _, glob = name.partition(":")
        if head == PREFIX:
            globs.append(glob or "*")
        elif head == NFA:
            features.append(glob or "*")
        elif name == ALIGNMENT:
            aligned = True
        elif name in KERNELS and name != "entk":
            kernels.append(name)
        else:
            known = ", ".join(kernel for kernel in KERNELS if kernel != "entk")
            raise UsageError(
                f"got {name!r} in watch; expected 'weights', 'weights:GLOB', 'alignment', 'nfa', 'nfa:GLOB' or of {known}"
            )
    if not told:
        raise UsageError("got an empty watch; expected something to measure, such as watch=('weights', 'ck')")
    if aligned and not kernels:
        raise UsageError(
            "got 'alignment' in watch without a kernel to align; add 'ck' (cheap) or 'trntk', or leave it out"
        )
    return Watch(tuple(globs), tuple(kernels), aligned, tuple(features))


@dataclass(frozen=True, eq=False)
class Measurement:
    """One measurement of a network: rows by series, without moment and step; kernels; what it took; what could not be measured;
    the weights of the layers whose features are watched."""

    items: int
    rows: Mapping[str, list[dict[str, Any]]]
    kernels: Mapping[str, Tensor]
    cost: Cost
    notes: tuple[str, ...] = ()
    weights: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass
class Observer:
    """A network with its probe. `keep` says which measurement the next one's velocities refer to."""

    model: nn.Module
    probe: Probe
    watch: Watch
    directions: Any = None
    memory: str | int | float = "2GiB"
    seed: int = 0
    initial: Mapping[str, Tensor] = field(default_factory=dict)
    """The kernels of moment 0, which later ones are compared with."""
    earlier: Mapping[str, Tensor] = field(default_factory=dict)
    earlier_step: int = 0
    first_weights: Mapping[str, Tensor] = field(default_factory=dict)
    """The weights of moment 0 of the layers whose features are watched."""

    def __post_init__(self) -> None:
        self.chosen = matrices(self.model, self.watch.globs) if self.watch.globs else {}
        if self.watch.globs and not self.chosen:
            raise UsageError(
                f"got watch={PREFIX!r} for {type(self.model).__name__}, but no parameter that is a matrix matches"
                f" {', '.join(self.watch.globs)}; expected the name or glob of a weight, or leave {PREFIX!r} out"
            )
        self.aimed = directions_for(self.directions, self.chosen)
        self._tangent: tuple[torch.device, Tangent] | None = None
        self._initial_values: dict[str, tuple[Tensor, int, Tensor]] = {}

    @property
    def device(self) -> torch.device:
        """Where the network is now."""
        return device_of(self.model)

    def measure(self, items: int, step: int, *, strict: bool = False) -> Measurement:
        """Measure the network on the first `items` items of the probe.

        What cannot be measured is named in `notes`, so that it does not end the training; `strict` raises it instead, unless
        it is that numbers are not finite.
        """
        rows: dict[str, list[dict[str, Any]]] = {"spectra": [], "spikes": [], "alignment": []}
        kernels: dict[str, Tensor] = {}
        weights: dict[str, Tensor] = {}
        notes: list[str] = []
        device = self.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the work of training that is still queued is not ours

        def attempt(what: str, work: Callable[[], None]) -> float:
            start = time.perf_counter()
            try:
                work()
            except (NtkscopeError, torch.OutOfMemoryError, torch.linalg.LinAlgError) as error:
                if strict and not isinstance(error, NumericalError):
                    raise
                notes.append(f"{what}: {error}")
            return time.perf_counter() - start

        with held_still(self.model, device), torch.no_grad():
            fixed = attempt(PREFIX, lambda: self._weights(rows))
            by_items = 0.0
            for name in self.watch.kernels:
                by_items += attempt(name, partial(self._kernel, name, items, step, rows, kernels))
            if self.watch.features:
                by_items += attempt(NFA, lambda: self._features(items, rows, weights))
        for name in self.watch.kernels:
            if name not in kernels:
                row = {"of": name, "kind": "eigen", "shape": [items, items], "values": [], "left_out": items}
                note = next((note for note in notes if note.startswith(f"{name}: ")), "not measured")
                rows["spectra"].append({**row, "note": note[:200]})
        return Measurement(items, rows, kernels, Cost(items, fixed, by_items), tuple(notes), weights)

    def keep(self, measurement: Measurement, step: int) -> None:
        """Later velocities are taken from this measurement; that of step 0 is what every later kernel is compared with."""
        self.earlier, self.earlier_step = measurement.kernels, step
        if step == 0:
            self.initial, self.first_weights = measurement.kernels, measurement.weights

    def _weights(self, rows: dict[str, list[dict[str, Any]]]) -> None:
        chosen = matrices(self.model, self.watch.globs)  # anew: a network may replace its parameters
        rows["spectra"] += weight_rows(chosen)
        for name, parameter in chosen.items():
            found = spike_row(name, parameter, self.aimed.get(name), level=LEVEL, seed=self.seed)
            rows["spikes"] += [] if found is None else [found]

    def _kernel(
        self, name: str, items: int, step: int, rows: dict[str, list[dict[str, Any]]], kernels: dict[str, Tensor]
    ) -> None:
        x, y = self._inputs(items), self.probe.labels(items)
        K = self._engine().kernel(name, x, memory=self.memory, seed=self.seed).dense().detach().to("cpu", torch.float64)
        K = (K + K.T) / 2
        if not bool(torch.isfinite(K).all()):
            raise NumericalError("the kernel holds NaN or infinity")
        row: dict[str, Any] = {"of": name, "kind": "eigen", "shape": list(K.shape)}
        aligned: dict[str, Any] = {"of": name}
        if self.watch.alignment and y is not None:
            values, vectors = torch.linalg.eigh(K)
            aligned |= _against_labels(K, vectors.flip(1), y)
        else:
            values = torch.linalg.eigvalsh(K)
        rows["spectra"].append({**row, **spectrum_row(values.flip(0))})
        kernels[name] = K
        rows["spikes"] += self._outside(name, K, values.flip(0))
        if self.watch.alignment:
            if name in self.earlier and step > self.earlier_step:
                n = min(items, len(self.earlier[name]))  # the items that both have
                velocity = _defined(
                    lambda: alignment.kernel_velocity(
                        self.earlier[name][:n, :n], K[:n, :n], elapsed=step - self.earlier_step
                    )
                )
                aligned |= {} if velocity is None else {"velocity": velocity}
            rows["alignment"].append(aligned)

    def _outside(self, name: str, K: Tensor, values: Tensor) -> list[dict[str, Any]]:
        """The row of `spikes` for a kernel: how many more of its eigenvalues than of the initial one lie outside the bulk.

        Both on the items they share; no row where these are too few to tell.
        """
        start = self.initial.get(name)
        n = 0 if start is None else min(len(K), len(start))
        if start is None or n < FEWEST:
            return []
        kept, items, initial = self._initial_values.get(name, (None, 0, values))
        if kept is not start or items != n:
            initial = _eigenvalues(start[:n, :n])
            self._initial_values[name] = (start, n, initial)
        shared = values if n == len(K) else _eigenvalues(K[:n, :n])
        found = classify_eigenvalues(shared.numpy(), initial.numpy()[None])
        count = int(found.evidence.get("eigenvalues outside", 0))
        return [{"of": name, "label": found.label, "count": count, "values": spectrum_row(values[:count])["values"]}]

    def _features(self, items: int, rows: dict[str, list[dict[str, Any]]], weights: dict[str, Tensor]) -> None:
        found, held = feature_rows(
            self.model,
            self._inputs(items),
            self.watch.features,
            self.first_weights,
            memory=self.memory,
            seed=self.seed,
        )
        rows["alignment"] += found
        weights.update(held)

    def _inputs(self, items: int) -> Any:
        if self.probe.device != self.device:
            self.probe = self.probe.to(self.device)
        return self.probe.first(items)

    def _engine(self) -> Tangent:
        """The engine, kept while the network stays where it is."""
        if self._tangent is None or self._tangent[0] != self.device:
            self._tangent = (self.device, Tangent(self.model, memory=self.memory))
        return self._tangent[1]


def _eigenvalues(K: Tensor) -> Tensor:
    """Descending."""
    return torch.linalg.eigvalsh(K).flip(0)


def device_of(model: nn.Module) -> torch.device:
    """Where a network's first parameter is."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _against_labels(K: Tensor, vectors: Tensor, y: Tensor) -> dict[str, Any]:
    """Alignment with the labels, plain and centred, and their cumulative power in the leading eigenvectors."""
    found: dict[str, Any] = {
        "kta": _defined(lambda: alignment.kernel_target_alignment(K, y)),
        "centred_kta": _defined(lambda: alignment.kernel_target_alignment(K, y, centred=True)),
    }
    if bool(y.any()):
        powers = np.minimum(np.cumsum(alignment.power_in(vectors[:, :POWERS], y)), 1.0)
        found["cumulative_power"] = [float(f"{value:.{DIGITS}g}") for value in powers]
    return {name: value for name, value in found.items() if value is not None}


def _defined(measure: Callable[[], float]) -> float | None:
    """A measure's value; None where it is undefined for these numbers (all items of one class, a zero kernel)."""
    try:
        return float(f"{measure():.{DIGITS}g}")
    except NumericalError:
        return None
