"""Recorded steps: on CUDA a training step becomes a graph that is launched as one, so Python no longer sets the pace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ntkscope.core import Part
from ntkscope.core.model.tree import map_leaves

WARM_UP = 3  # steps before recording, in which PyTorch and its libraries allocate what they keep
Step = Callable[[Part, int | None], Tensor]


@dataclass(eq=False)
class _Slot:
    """Batches of one shape: the memory they are copied to, and the graph that reads it."""

    batch: Part
    warm: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    losses: Tensor | None = field(default=None, repr=False)


class Recorder:
    """`step(batch, axis)`, run as it is a few times for each shape of batch, then recorded and replayed.

    Every run is a step of training, the warm-up too. What a step reads and writes must stay where it is in memory, or `forget`
    must be called. A step that cannot be recorded is run as it is from then on; `note` says why.
    """

    def __init__(self, step: Step) -> None:
        self._step, self._slots, self.note = step, dict[tuple[object, ...], _Slot](), ""

    def forget(self) -> None:
        """Record anew: parameters learn that did not before, or memory moved."""
        self._slots.clear()

    def run(self, batch: Part, axis: int | None, constant: bool) -> Tensor:
        """One step, and the losses before it, to be read before the next; `constant`: always this batch, in this memory."""
        if self.note:
            return self._step(batch, axis)
        key = (axis, tuple(batch.y.shape), id(batch) if constant else None)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = _Slot(batch if constant else _copy(batch))
        elif not constant:
            _fill(slot.batch, batch)
        if slot.graph is None and slot.warm < WARM_UP:
            slot.warm += 1
            return self._aside(slot, axis)
        if slot.graph is None:
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
            try:
                with torch.cuda.graph(graph):
                    slot.losses = self._step(slot.batch, axis)
            except RuntimeError as error:
                self.note = f"steps are not recorded as CUDA graphs: {str(error).strip().splitlines()[0]}"
                self._slots.clear()
                torch.cuda.set_stream(stream)  # a recording that fails to end leaves its own
                torch.cuda.synchronize()
                return self._step(batch, axis)
            slot.graph = graph
        slot.graph.replay()
        assert slot.losses is not None
        return slot.losses

    def _aside(self, slot: _Slot, axis: int | None) -> Tensor:
        """A step on a stream of its own, as recording needs it before."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            losses = self._step(slot.batch, axis)
        torch.cuda.current_stream().wait_stream(stream)
        return losses


def _copy(batch: Part) -> Part:
    return Part(*map_leaves(lambda leaf: leaf.clone(), (batch.x, batch.y, dict(batch.extras))))


def _fill(into: Part, batch: Part) -> None:
    map_leaves(
        lambda old, new: old.copy_(new),
        (into.x, into.y, dict(into.extras)),
        (batch.x, batch.y, dict(batch.extras)),
    )
