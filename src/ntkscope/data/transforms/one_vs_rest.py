"""One class against the rest: targets +1 and -1 from class labels."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

from ntkscope.core import Part, Split, UsageError


@overload
def one_vs_rest(data: Part, positive: int) -> Part: ...
@overload
def one_vs_rest(data: Split, positive: int) -> Split: ...
def one_vs_rest(data: Part | Split, positive: int) -> Part | Split:
    """Targets +1 for items of class `positive` and -1 for all others, of the inputs' floating-point type, shape (n,).

    `extras["label"]` keeps the class labels. A `Split` has all its parts changed and no classes any more, since its targets
    are real numbers; "mse" counts a prediction as right when its sign is. A class that no item has (for a split: none in
    training) is an error. O(n). Reference: Samarin et al. (2022), section 4.3 (0 against not 0).

    Examples:
        >>> one_vs_rest(Part(torch.zeros(4, 1), torch.tensor([0, 7, 0, 3])), 0).y
        tensor([ 1., -1.,  1., -1.])
    """
    if isinstance(data, Split):
        if data.classes and not 0 <= positive < len(data.classes):
            raise UsageError(f"positive={positive}; expected a class from 0 to {len(data.classes) - 1}")
        _check_present(data.train, positive, "the training part")
        parts = {"train": data.train, "validation": data.validation, "test": data.test}
        return data.replace(**{name: part and _signed(part, positive) for name, part in parts.items()}, classes=())
    _check_present(data, positive, "the part")
    return _signed(data, positive)


def _check_present(part: Part, positive: int, where: str) -> None:
    _check_labels(part)
    if not bool((part.y == positive).any()):
        raise UsageError(
            f"positive={positive}, which no item of {where} has; expected one of its classes:"
            f" {', '.join(map(str, part.y.unique().tolist()[:20])) or 'none, it is empty'}"
        )


def _check_labels(part: Part) -> None:
    y = part.y
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.ndim != 1:
        raise UsageError(
            f"targets have dtype {y.dtype} and shape {tuple(y.shape)}; expected integer class labels of shape ({len(y)},)"
        )


def _signed(part: Part, positive: int) -> Part:
    _check_labels(part)
    real = isinstance(part.x, Tensor) and part.x.is_floating_point()
    one = torch.ones((), dtype=part.x.dtype if real else torch.get_default_dtype(), device=part.y.device)
    return Part(part.x, torch.where(part.y == positive, one, -one), {**part.extras, "label": part.y})
