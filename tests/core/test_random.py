"""Seeds are whole numbers; anything else is refused with a word on what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ntkscope.core import UsageError, derive_seed
from ntkscope.core.random import kept_randomness, reseed


@pytest.mark.parametrize("seed", [3, np.int64(3), np.uint8(3), torch.tensor(3), 3.0])
def test_whole_numbers_of_any_kind_are_one_seed(seed: Any) -> None:
    assert derive_seed(seed, "a") == derive_seed(3, "a")


@pytest.mark.parametrize("seed", ["3", 3.5, float("nan"), None, [3], torch.tensor(0.5)])
def test_anything_else_is_refused(seed: Any) -> None:
    with pytest.raises(UsageError, match="expected a whole number"):
        derive_seed(seed, "a")


def test_reseeding_draws_what_manual_seed_draws_and_leaves_nothing_behind() -> None:
    """Without a device, seeds for it would only pile up, each with a call stack."""
    with kept_randomness():
        torch.manual_seed(7)
        expected = torch.rand(3)
        waiting = len(torch.cuda._queued_calls)
        reseed(7)
        assert torch.equal(torch.rand(3), expected)
        if not torch.accelerator.is_available():
            assert len(torch.cuda._queued_calls) == waiting
