"""Two ways to compute a few networks on a GPU, stacked by `vmap` or one after the other, and which of them is faster.

Stacked, the convolutions of the members become one grouped convolution, for which a GPU may need longer than for each by
itself. How much longer depends on shapes, so it is measured, as recorded steps will run: launches cost nothing there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

MEMBERS = 8  # with more, a step would be too many launches
STEPS = 2000  # a training shorter than this is not worth the trial
MARGIN = 0.9  # stacked unless the other way takes less than this share of its time
WARM_UP, REPLAYS = 3, 20


def worth_a_trial(members: int, steps: int) -> bool:
    """Whether both ways should be timed. Not where the user asked for the same numbers each time: the choice may differ."""
    return members <= MEMBERS and steps >= STEPS and not torch.backends.cudnn.deterministic


def alone_is_faster(step: Callable[[bool], object]) -> tuple[bool, str]:
    """Whether `step(vectorised=False)` takes less time than `step(vectorised=True)` on the current GPU, in words too."""
    return compare(_recorded_seconds(partial(step, True)), _recorded_seconds(partial(step, False)))


def compare(stacked: float, alone: float) -> tuple[bool, str]:
    """The choice, given the seconds of each way.

    >>> compare(1e-3, 4e-4)
    (True, 'members are computed one after the other: 0.400 ms a step, stacked 1.000')
    >>> compare(1e-3, 9.5e-4)[0]
    False
    """
    told = f"members are computed one after the other: {1e3 * alone:.3f} ms a step, stacked {1e3 * stacked:.3f}"
    return alone < MARGIN * stacked, told


def _recorded_seconds(step: Callable[[], object]) -> float:
    """The seconds of `step` as a CUDA graph; infinite where it cannot be recorded."""
    aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    current = torch.cuda.current_stream()
    try:
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                step()
        current.wait_stream(aside)
        with torch.cuda.graph(graph):
            step()
    except RuntimeError:
        torch.cuda.set_stream(current)
        torch.cuda.synchronize()
        return float("inf")
    for _ in range(WARM_UP):
        graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / REPLAYS
