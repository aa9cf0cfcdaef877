"""Arguments of measures as checked float64 tensors, on the device they came on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError


def tensor_of(values: Any, name: str, *axes: int) -> Tensor:
    """`values` (a tensor, an array, a list) in float64, with one of these numbers of axes, none of them empty, finite.

    >>> tensor_of([[1, 2]], "X", 2)
    tensor([[1., 2.]], dtype=torch.float64)
    """
    try:
        array = values.detach() if isinstance(values, Tensor) else torch.from_numpy(np.array(values, dtype=np.float64))
    except (TypeError, ValueError) as error:  # texts, rows of different lengths
        wanted = " or ".join(map(str, axes))
        raise UsageError(f"got {name} that is no array ({error}); expected real numbers with {wanted} axes") from None
    if array.is_complex() or array.ndim not in axes or 0 in array.shape:
        wanted = " or ".join(map(str, axes))
        raise UsageError(
            f"got {name} of shape {tuple(array.shape)} and {array.dtype}; expected real numbers with {wanted} axes, none empty"
        )
    wide: Tensor = array.to(torch.float64)
    bad = int((~torch.isfinite(wide)).sum())
    if bad:
        raise NumericalError(
            f"{name} holds {bad} values that are NaN or infinite; drop those items or find where they come from"
        )
    return wide


def inputs_and_weights(X: Any, y: Any, least: int = 1) -> tuple[Float64[Tensor, "n d"], Float64[Tensor, " n"]]:
    """Inputs (n, d) and one number per input (labels, or derivatives of the loss), not all of them zero."""
    inputs, numbers = tensor_of(X, "X", 2), tensor_of(y, "y", 1)
    if len(inputs) != len(numbers) or len(inputs) < least:
        raise UsageError(
            f"got {len(inputs)} inputs and {len(numbers)} labels; expected one of each, of at least {least} samples"
        )
    if not bool(numbers.any()):
        raise NumericalError("got labels (or loss derivatives) that are all zero: the weights do not move")
    if not bool(inputs.any()):
        raise NumericalError("got inputs that are all zero: the first layer's weights do not move")
    return inputs, numbers.to(inputs.device)
