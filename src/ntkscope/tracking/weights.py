"""Weights: the matrices of a network, their singular values, and the spikes among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope.core import NtkscopeError, UsageError
from ntkscope.linalg.spectra.singular import singular_values
from ntkscope.measures.spectra import classify

MOST_VALUES = 2000  # numbers of one spectrum that are written
SURELY = 50  # of these the largest
DIGITS = 7
HERE = (
    1 << 20
)  # entries up to which a matrix is decomposed on the CPU, wherever it is: an accelerator is slower at these
PREFIX = "weights"


def matrices(model: nn.Module, globs: Sequence[str] = ("*",)) -> dict[str, nn.Parameter]:
    """The parameters that are matrices, by name: weights of affine layers and embeddings, convolutions as out × in·k·k.

    >>> list(matrices(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2))))
    ['0.weight', '3.weight']
    """
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2 and min(as_matrix(parameter).shape) >= 2 and any(fnmatchcase(name, g) for g in globs)
    }


def as_matrix(parameter: Tensor) -> Tensor:
    """A weight as a matrix, one row per output."""
    return parameter.detach().flatten(1)


def wide(parameter: Tensor) -> Float64[Tensor, "rows columns"]:
    """The matrix in float64, where its decomposition is fastest."""
    matrix = as_matrix(parameter)
    return matrix.to("cpu" if matrix.numel() <= HERE else matrix.device, torch.float64)


def spectrum_row(values: Sequence[float] | Tensor) -> dict[str, Any]:
    """`values` (descending) as a row has them: at most `MOST_VALUES`, rounded, and the number left out.

    Of more than that, the largest and every so manieth of the others are kept, so that a histogram keeps its shape.

    >>> spectrum_row([2.0, 1 / 3])
    {'values': [2.0, 0.3333333], 'left_out': 0}
    """
    numbers = np.asarray(torch.as_tensor(values, dtype=torch.float64).cpu())
    keep: np.ndarray = np.arange(len(numbers))
    if len(numbers) > MOST_VALUES:
        rest = np.linspace(SURELY, len(numbers) - 1, MOST_VALUES - SURELY).round().astype(int)
        keep = np.unique(np.concatenate([np.arange(SURELY), rest]))
    kept = [float(f"{value:.{DIGITS}g}") for value in numbers[keep].tolist()]
    return {"values": kept, "left_out": len(numbers) - len(kept)}


def weight_rows(chosen: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """One row of the series `spectra` per matrix; a matrix that holds NaN or infinity has no values, and says so."""
    for name, parameter in chosen.items():
        shape = list(as_matrix(parameter).shape)
        row = {"of": f"{PREFIX}:{name}", "kind": "singular", "shape": shape}
        if bool(torch.isfinite(parameter).all()):
            yield {**row, **spectrum_row(singular_values(wide(parameter)))}
        else:
            yield {**row, "values": [], "left_out": min(shape), "note": "holds NaN or infinity"}


def spike_row(
    name: str, parameter: Tensor, directions: Float64[Tensor, "d k"] | None, *, level: float, seed: int
) -> dict[str, Any] | None:
    """The row of the series `spikes` for one matrix, by the Tracy–Widom law, which needs no draws; None where there is no test
    for it: entries that are not finite, constant, or symmetric.
    """
    try:
        found = classify(wide(parameter), level=level, draws=0, seed=seed)
    except NtkscopeError:
        return None
    row: dict[str, Any] = {"of": f"{PREFIX}:{name}", "label": found.label, "count": 0}
    spikes = found.spikes
    if spikes is None:  # too few singular values to tell
        return row
    row |= {"count": spikes.count, "values": _plain(spikes.values), "p_values": _plain(spikes.p_values)}
    row |= {"edge": _plain([spikes.edge])[0], "overlaps": [_plain(pair) for pair in spikes.overlaps]}
    if directions is not None:
        vectors = spikes.right if len(spikes.right) == len(directions) else spikes.left
        row["alignments"] = [_plain(cosines) for cosines in alignments(vectors, directions)]
    return row


def alignments(vectors: Float64[Tensor, "d count"], directions: Float64[Tensor, "d k"]) -> Float64[Tensor, "count k"]:
    """|cos| of each vector with each direction.

    >>> alignments(torch.eye(2), torch.tensor([[3.0], [4.0]]))
    tensor([[0.6000],
            [0.8000]])
    """
    aim = directions.to(vectors)
    return (vectors.T @ aim / torch.linalg.vector_norm(aim, dim=0)).abs()


def directions_for(directions: Any, chosen: Mapping[str, Tensor]) -> dict[str, Float64[Tensor, "d k"]]:
    """For each matrix the directions that its singular vectors are compared with.

    `directions`: (d,) or (d, k) for every matrix with d columns (or, where none has, d rows), or a mapping of names to them.
    """
    if directions is None:
        return {}
    named = isinstance(directions, Mapping)
    given = {str(key): value for key, value in directions.items()} if named else {"*": directions}
    found: dict[str, Tensor] = {}
    for key, value in given.items():
        columns = torch.as_tensor(value).detach().to("cpu", torch.float64)
        columns = columns[:, None] if columns.ndim == 1 else columns
        if columns.ndim != 2 or not columns.numel():
            raise UsageError(f"got directions of shape {tuple(columns.shape)}; expected (d,) or (d, k), one per column")
        if not bool(torch.isfinite(columns).all()) or not bool(columns.any(0).all()):
            raise UsageError(
                "got directions with NaN, infinity or a column of zeros; expected a direction in every column"
            )
        shapes = {name: tuple(as_matrix(p).shape) for name, p in chosen.items() if fnmatchcase(name, key)}
        fits = [n for n, shape in shapes.items() if shape[1] == len(columns)]
        fits = fits or [n for n, shape in shapes.items() if shape[0] == len(columns)]
        if not fits:
            sides = ", ".join(f"{name} {shape[0]}×{shape[1]}" for name, shape in list(shapes.items())[:8]) or "none"
            raise UsageError(
                f"got directions with {len(columns)} entries, which no watched matrix {key!r} has as a side; they are:"
                f" {sides}; expected one entry per column (or row)"
            )
        found |= dict.fromkeys(fits, columns)
    return found


def _plain(values: Any) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in torch.as_tensor(values, dtype=torch.float64).flatten().tolist()]
