"""Run an experiment: configuration, record, measurements, verdicts, figures."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import torch

from ntkscope.core import NtkscopeError, Record, RecordError, UsageError
from ntkscope.core.arguments import as_device
from ntkscope_papers.framework.drawing import save_figures
from ntkscope_papers.framework.experiment import Experiment
from ntkscope_papers.framework.gather import gather

SCALES = ("smoke", "paper")


def run(
    experiment: Experiment,
    scale: str = "smoke",
    *,
    out: str | Path,
    device: torch.device | str | None = None,
    root: str | Path | None = None,
    seed: int = 0,
    progress: bool = False,
    gather_from: Sequence[str | Path] = (),
    **overrides: Any,
) -> Record:
    """Run an experiment at `scale`, as `ntkscope.run` says."""
    if gather_from and not experiment.legs:
        raise UsageError(
            f"got folders to gather for {experiment.name}, which does not run in legs; expected one that does"
        )
    config = configured(experiment, scale, overrides)
    where = as_device(device or "auto") or torch.device("cpu")
    settings = {key: value for key, value in dataclasses.asdict(config).items() if key not in experiment.legs}
    described = {"scale": scale, **settings}
    shared: dict[str, Any] = {"config": described, "seeds": {"seed": seed}, "device": where}
    if os.path.exists(Path(out) / "record.json"):
        record = Record.resume(out, **shared)
    else:
        record = Record.create(out, kind="experiment", name=experiment.name, **shared)
    with record:
        gather(record, gather_from)
        with _trusting(record):
            experiment.func(
                config, record, device=where, root=None if root is None else str(root), seed=seed, progress=progress
            )
            conclude(experiment, config, record, scale)
    return record


@contextmanager
def _trusting(record: Record) -> Iterator[None]:
    """Inside, an error that may come from results which were there before says so: a record may hold anything."""
    before = [key for key, value in record.metrics.items() if isinstance(value, Mapping)]
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if not before or isinstance(error, NtkscopeError):
            raise
        raise RecordError(
            f"{record.folder} cannot be continued ({type(error).__name__}: {error}) with the results it held"
            f" ({', '.join(before[:6])}{', …' if len(before) > 6 else ''}); were they not written by a run of {record.name}?"
            " restore them, or run in another folder"
        ) from error


def configured(experiment: Experiment, scale: str, overrides: Mapping[str, Any]) -> Any:
    """The configuration of `scale` with some fields replaced; unknown names and wrong types are errors."""
    if scale not in SCALES:
        raise UsageError(f"got scale {scale!r}; expected one of {', '.join(SCALES)}")
    config: Any = experiment.config.smoke() if scale == "smoke" else experiment.config.paper()
    known = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    unknown = [key for key in overrides if key not in known]
    if unknown:
        raise UsageError(f"{experiment.name} has no setting {', '.join(unknown)}; its settings: {', '.join(known)}")
    hints = get_type_hints(type(config))
    made = {key: _alike(key, value, known[key], hints[key]) for key, value in overrides.items()}
    if made.get("seeds", 1) < 1:
        raise UsageError(f"got seeds={made['seeds']}; expected at least one network")
    return dataclasses.replace(config, **made)


def _alike(key: str, value: Any, default: Any, hint: Any) -> Any:
    """`value` as the type of `default`: a lone item becomes a tuple, a whole number a float; None if `hint` allows it."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if default is None or value is None:
        if type(value) not in kinds:
            expected = " or ".join(
                "None" if kind is NoneType else getattr(kind, "__name__", str(kind)) for kind in kinds
            )
            raise UsageError(f"got {key}={value!r}, a {type(value).__name__}; expected {expected}")
        return value
    if isinstance(default, tuple):
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise UsageError(
            f"got {key}={value!r}, a {type(value).__name__}; expected a {type(default).__name__} such as {default!r}"
        )
    return value


def conclude(experiment: Experiment, config: Any, record: Record, scale: str) -> None:
    """Set the verdicts and draw the figures from the record."""
    difference = experiment.difference(config)
    words = "" if not difference else "smoke scale, see config" if scale == "smoke" else f"other settings: {difference}"
    wanted, judged = {claim.id for claim in experiment.published}, set()
    for claim in experiment.judge(config, record, words):
        if claim.id not in wanted:
            raise UsageError(
                f"{experiment.name} judged {claim.id!r}, which it does not list among its published claims"
            )
        judged.add(claim.id)
        record.claim(claim)
    if wanted - judged:
        raise UsageError(f"{experiment.name} listed {', '.join(sorted(wanted - judged))} but did not judge them")
    record.put(figures=save_figures(experiment.draw, record))
