"""A tracked training as a record holds it: the rows that a tracker appended, by moment and by spectrum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64

from ntkscope.core import Record
from ntkscope.core.errors import RecordError
from ntkscope.report.numbers import as_float

SERIES = ("moments", "spectra", "spikes", "alignment")
KERNELS = {"ck": "conjugate kernel", "trntk": "trace NTK, normalised", "trntk0": "trace NTK"}
NFA = "nfa"  # of rows with one layer each
FEATURES = {
    NFA: "weights and gradients of each layer (ρ of NFM and AGOP)",
    f"{NFA} centred": "what training added to the weights of each layer, and gradients (ρ)",
}
_PLACES = ("moment", "step", "of")  # of a row of alignment; everything else in it is a measure
POWER = 10  # eigenvectors whose share of the labels is drawn


@dataclass(frozen=True)
class Moment:
    """One measurement: the step, the loss, seconds since the start, what measuring took, and on how many probe items."""

    moment: int
    step: float
    loss: float = math.nan
    seconds: float = math.nan
    cost: float = math.nan
    probe_items: float = math.nan
    waited: Any = None
    note: str = ""


@dataclass(frozen=True)
class Look:
    """One spectrum at one moment: values in descending order, and what the test of spikes found."""

    moment: int
    step: float
    values: Float64[np.ndarray, " k"]
    left_out: int = 0
    label: str = ""
    spikes: tuple[float, ...] = ()
    p_values: tuple[float, ...] = ()
    edge: float = math.nan
    alignments: tuple[float, ...] = ()  # of each spike, the largest |cos| with a given direction

    @property
    def tested(self) -> bool:
        """Whether there was a test: a matrix that is too small for one has a label alone."""
        return bool(self.spikes) or math.isfinite(self.edge)


@dataclass(frozen=True)
class Spectrum:
    """What was tracked under one name, over time; `measures` holds pairs of step and value."""

    of: str
    kind: str
    shape: tuple[int, ...]
    looks: tuple[Look, ...]
    measures: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As a reader knows it: a weight by its own name, a kernel in words.

        >>> Spectrum("weights:fc.weight", "singular", (3, 2), ()).name, Spectrum("ck", "eigen", (9, 9), ()).name
        ('fc.weight', 'conjugate kernel (ck)')
        """
        if self.of.startswith("weights:"):
            return self.of.removeprefix("weights:")
        if self.of in FEATURES:
            return FEATURES[self.of]
        return f"{KERNELS[self.of]} ({self.of})" if self.of in KERNELS else self.of

    @property
    def noun(self) -> str:
        return "eigenvalue" if self.kind == "eigen" else "singular value"

    @property
    def tested(self) -> bool:
        """Whether spikes were tested at any moment."""
        return any(look.tested for look in self.looks)


@dataclass(frozen=True)
class Track:
    """All moments in order, the spectra, and what could not be read."""

    moments: tuple[Moment, ...]
    spectra: tuple[Spectrum, ...]
    troubles: tuple[str, ...] = ()


def read_track(record: Record, prefix: str = "") -> Track:
    """The track in the series of a record, each name after `prefix`; rows of another form are left out. O(bytes).

    A moment that a resumed run measured again counts once, as it was measured last.
    """
    troubles: list[str] = []
    rows = {name: list(_rows(record, prefix + name, troubles)) for name in SERIES}
    timed = ("step", "loss", "seconds", "cost", "probe_items")
    moments = {
        row["moment"]: Moment(
            row["moment"],
            **{key: as_float(row.get(key)) for key in timed},
            waited=row.get("waited"),
            note=str(row.get("note") or ""),
        )
        for row in rows["moments"]
    }
    tests = {(str(row.get("of")), row["moment"]): row for row in rows["spikes"]}
    looks: dict[str, dict[int, Look]] = {}
    about: dict[str, tuple[str, tuple[int, ...]]] = {}
    for row in rows["spectra"]:
        of, moment = str(row.get("of")), row["moment"]
        if moment not in moments:  # what a kill left of one that was not finished
            continue
        look = _look(row, tests.get((of, moment), {}))
        looks.setdefault(of, {}).update({moment: look} if len(look.values) else {})  # none: a note says why
        shape = tuple(int(side) for side in _numbers(row.get("shape")) if math.isfinite(side))
        about[of] = (str(row.get("kind")), shape)
    measures = _measures(by_layer(rows["alignment"]))
    for of in measures:
        looks.setdefault(of, {})
        about.setdefault(of, ("eigen", ()))
    spectra = tuple(
        Spectrum(of, *about[of], tuple(found[moment] for moment in sorted(found)), measures.get(of, {}))
        for of, found in looks.items()
    )
    kept = (moments[moment] for moment in sorted(moments))
    return Track(tuple(moment for moment in kept if math.isfinite(moment.step)), spectra, tuple(troubles))


def _rows(record: Record, name: str, troubles: list[str]) -> Iterator[dict[str, Any]]:
    if name not in record.series_names:
        return
    try:
        for row in record.series(name):
            if isinstance(row.get("moment"), int) and not isinstance(row["moment"], bool):
                yield row
    except RecordError as error:
        troubles.append(str(error))


def _look(row: Mapping[str, Any], test: Mapping[str, Any]) -> Look:
    values = np.array(_numbers(row.get("values")), dtype=np.float64)
    values = np.sort(values[np.isfinite(values)])[::-1]
    left_out = as_float(row.get("left_out"))
    count, found = as_float(test.get("count")), _numbers(test.get("values"))
    return Look(
        row["moment"],
        as_float(row.get("step")),
        values,
        int(left_out) if math.isfinite(left_out) and left_out > 0 else 0,
        label=str(test.get("label") or ""),
        spikes=found[: int(count)] if math.isfinite(count) and count >= 0 else found,
        p_values=_numbers(test.get("p_values")),
        edge=as_float(test.get("edge")),
        alignments=_alignments(test.get("alignments")),
    )


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(as_float(item) for item in value) if isinstance(value, (list, tuple)) else ()


def _alignments(value: Any) -> tuple[float, ...]:
    """One number per spike; of several directions the one it is closest to.

    >>> _alignments([[0.1, 0.9], 0.5, []])
    (0.9, 0.5, nan)
    """
    if not isinstance(value, (list, tuple)):
        return ()
    each = (_numbers(item) if isinstance(item, (list, tuple)) else (as_float(item),) for item in value)
    return tuple(max((x for x in found if math.isfinite(x)), default=math.nan) for found in each)


def by_layer(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with those of single layers' features put together: one row per moment, a measure for each layer.

    >>> by_layer([{"moment": 0, "step": 0, "of": "nfa:fc", "correlation": 0.9, "control_low": 0.4}])
    [{'moment': 0, 'step': 0, 'of': 'nfa', 'layer fc': 0.9}]
    """
    kept: list[dict[str, Any]] = []
    joined: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        of = str(row.get("of"))
        if not of.startswith(f"{NFA}:"):
            kept.append(row)
            continue
        layer = f"layer {of.removeprefix(f'{NFA}:')}"
        for name, value in ((NFA, row.get("correlation")), (f"{NFA} centred", row.get("centred"))):
            if value is not None:
                place = {"moment": row["moment"], "step": row.get("step"), "of": name}
                joined.setdefault((name, row["moment"]), place)[layer] = value
    return kept + list(joined.values())


def _measures(rows: list[dict[str, Any]]) -> dict[str, dict[str, tuple[tuple[float, float], ...]]]:
    """Curves by spectrum and measure; of cumulative power, the share of the labels in the first eigenvectors."""
    found: dict[str, dict[str, dict[int, tuple[float, float]]]] = {}
    for row in rows:
        step, mine = as_float(row.get("step")), found.setdefault(str(row.get("of")), {})
        for name, value in row.items():
            if name in _PLACES:
                continue
            if isinstance(value, (list, tuple)):
                first = _numbers(value)[:POWER]
                name, value = f"{name} of the top {len(first)}", first[-1] if first else math.nan
            if math.isfinite(as_float(value)) and math.isfinite(step):
                mine.setdefault(name, {})[row["moment"]] = (step, as_float(value))
    return {
        of: {name: tuple(curve[moment] for moment in sorted(curve)) for name, curve in mine.items()}
        for of, mine in found.items()
    }
