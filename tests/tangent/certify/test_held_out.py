"""Samples that are run apart from the rest of their block: never the one that is left out, and enough of the others."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ntkscope.tangent.certify.comparison import LEAST, Some

lengths = st.sampled_from([2, 3, LEAST, LEAST + 1, LEAST + 2]) | st.integers(2, 300)
blocks = lengths.flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n)))


@given(blocks)
def test_the_others_are_others(block: tuple[int, int]) -> None:
    one, n = block
    some = Some.others(one, n)
    taken = some(torch.arange(n)).tolist()
    assert len(taken) == some.count(n) > 0
    assert one not in taken
    assert len(set(taken)) == len(taken)
    if n <= LEAST + 1:
        assert taken == [i for i in range(n) if i != one]
    else:
        assert n // 8 <= len(taken) <= -(-n // 8)


def test_any_other_is_taken_in_some_run() -> None:
    """Which eighth it is depends on the one, so that none is left out always, nor always beside the same place of eight."""
    n = 64
    for place in range(8):
        taken = {i for one in range(place, n, 8) for i in Some.others(one, n)(torch.arange(n)).tolist()}
        assert taken == set(range(n)) - set(range(place, n, 8))


@given(blocks, st.booleans())
def test_rows_are_copies(block: tuple[int, int], alone: bool) -> None:
    one, n = block
    some = Some((slice(one, one + 1),)) if alone else Some.others(one, n)
    values = torch.arange(2.0 * n).view(n, 2)
    taken = some(values)
    assert torch.equal(taken, torch.stack([values[i] for i in some(torch.arange(n)).tolist()]))
    taken.fill_(-1)
    assert torch.equal(values, torch.arange(2.0 * n).view(n, 2))
