"""Execution modes: how a block of samples is run through the network and back, and which mode is the fastest here.

A mode is a memory format (the model's own, or channels innermost), how passes back through a convolution are made (by
the library, or as convolutions: `convolution`) and how many outputs share a backward pass. All of them give the same
numbers up to rounding; which is fastest depends on the network and the GPU. So on CUDA the first blocks of a run are
run in different modes and timed: that is work which had to be done anyway, and it is certified like all other work.
An engine that is kept for further calls (`patient`) times them on some samples before its first block instead. A mode
that does not give the plain one's factors on the probed samples is never used. What was found stays with the engine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

DEVICES: tuple[str, ...] = ("cuda",)  # where modes are compared; elsewhere blocks are run as the model runs
TOGETHER = 16  # outputs that share a backward pass, at most
USES = 2  # blocks of each mode: the first makes libraries choose their kernels, the second is timed
AHEAD = 4  # blocks to come, or of earlier calls, from which on another mode is tried: fewer could not pay for it
GAIN = 0.97  # of the plain mode's time, which another must stay below
LAUNCHES = 0.2  # of a block's time, which three samples alone take: from there on launches may be what it costs
BLOCK, LONGEST = 256, 4096  # samples of a block while modes are compared, and once one was chosen
LONG = 1024  # samples on which they are compared before the first block, at most
RUNS = 14  # of some samples before the first block, at most
SLOWER = 1.3  # times the plain mode's time, beyond which nothing more is tried with that layout
ALIKE = 1.5  # blocks whose lengths differ by less than this factor are compared


@dataclass(frozen=True)
class ExecutionMode:
    """`channels_last`: convolutions with their channels innermost; `together`: how many outputs share a backward pass;
    `flipped`: passes back through convolutions of stride 1 are convolutions with flipped kernels; `split`: affine maps, and
    those passes, are made on tensor cores, each number in two halves."""

    channels_last: bool = False
    together: int = 1
    flipped: bool = False
    split: bool = False

    def __str__(self) -> str:
        layout = "channels last" if self.channels_last else "the model's own layout"
        layout += ", flipped kernels" * self.flipped + ", split products" * self.split
        return f"{layout}, {self.together if self.together > 1 else 'one'} output{'s' * (self.together > 1)} per backward pass"

    def within(self, spare: float, weights: int, each: int) -> ExecutionMode:
        """What of this fits into `spare` bytes: `weights` for converted kernels, `each` for another output's pass."""
        channels_last = self.channels_last and weights <= spare
        left = spare - weights * channels_last
        flipped = self.flipped and weights * (1 + channels_last) <= left
        fitting = 1 + int((left - weights * (1 + channels_last) * flipped) // max(1, each))
        passes = -(-self.together // max(1, min(self.together, fitting)))
        return replace(self, channels_last=channels_last, together=-(-self.together // passes), flipped=flipped)


PLAIN = ExecutionMode()


@dataclass
class Execution:
    """What is known about the modes of one engine; its parts and copies share it.

    `convolutions`: whether channels can be innermost anywhere; `heads`: how many outputs could share a pass; `splits`: whether
    products may be split.
    """

    tries: bool = False
    patient: bool = False  # whether further calls are to come
    convolutions: bool = False
    heads: int = 1
    splits: bool = False
    mode: ExecutionMode = PLAIN  # the best one so far
    threads: int = 1  # that work with copies of the engine at present
    seen: int = 0  # blocks of all calls
    before: int = 0  # blocks of earlier calls
    ahead: int = 0  # blocks that this call is still going to run
    length: int = 0  # samples of the blocks that are compared
    floor: float | None = None  # seconds of a few samples alone
    uses: dict[ExecutionMode, int] = field(default_factory=dict)
    seconds: dict[ExecutionMode, float] = field(default_factory=dict)  # per sample
    refused: set[ExecutionMode] = field(default_factory=set)
    abandoned: bool = False
    long_uses: int = 0
    long_seconds: float | None = None  # per sample, in longer blocks

    @classmethod
    def of(cls, device: torch.device, convolutions: bool, heads: int, certified: bool, splits: bool) -> Execution:
        """Modes are compared only where every block is certified: the probed samples alone cannot tell how a network that looks
        at the length of its batch, or at strides, takes another layout."""
        return cls(certified and device.type in DEVICES, convolutions=convolutions, heads=heads, splits=splits)

    @property
    def settled(self) -> bool:
        """Whether every mode worth it was timed."""
        return not self.tries or self._untried() is None

    def longest(self, samples: int) -> int:
        """The longest block a call with so many samples should use; 0 for the planner's own limit."""
        if not self.tries:
            return 0
        if not self.settled:  # several blocks, so that there is something to compare
            return max(BLOCK, min(LONGEST, samples // (2 * AHEAD)))
        known = self.seconds.get(self.mode)
        worse = self.long_seconds is not None and known is not None and self.long_seconds > known / GAIN
        return BLOCK if worse else LONGEST

    @staticmethod
    def compared(samples: int, fitting: int) -> int:
        """On how many of so many samples modes are compared before the first block, where so many fit: more than a usual
        block's where that takes little, since launches weigh less in long blocks."""
        return min(samples, max(min(BLOCK, fitting // 2), min(LONG, fitting // 4)))

    def compare(
        self,
        n: int,
        vet: Callable[[ExecutionMode], float | None],
        run: Callable[[ExecutionMode], Callable[[], float] | None],
    ) -> None:
        """Time every mode worth it on the same n samples; `run(mode)` says how long it took, or None where it failed."""
        self.patient = False
        for _ in range(RUNS):
            if self.settled:
                break
            self.begin(AHEAD)
            mode = self.next(n, vet)
            seconds = run(mode)
            if seconds is not None:
                self.took(mode, n, seconds)
            elif mode == PLAIN:
                break
            else:
                self.refuse(mode)
        self.seen = 0  # these were no blocks of a call

    def begin(self, blocks: int) -> None:
        """A call that is going to run so many blocks."""
        self.before, self.ahead = self.seen, blocks

    def next(self, n: int, vet: Callable[[ExecutionMode], float | None]) -> ExecutionMode:
        """The mode for the next block, of n samples.

        `vet(mode)`: seconds that a few samples take in the plain mode, None if the other mode has other numbers for them.
        """
        left, self.ahead = self.ahead, max(0, self.ahead - 1)
        self.seen += 1
        # Blocks that were shorter than those that count now are compared again.
        if self.tries and n > ALIKE * self.length and (self.length < BLOCK or not self.settled):
            self.length, self.uses, self.seconds = n, {}, {}
        if not self.tries or self.settled:
            return self.mode
        candidate = self._untried()
        if candidate is None or not self._comparable(n):
            return self.mode
        if candidate != PLAIN and not self.uses.get(candidate):
            if left < AHEAD and self.before < AHEAD:
                return self.mode
            floor = vet(candidate)
            if floor is None:
                self.refuse(candidate)
                return self.mode
            self.floor = floor if self.floor is None else min(self.floor, floor)
            if self._untried() != candidate:  # what was measured just now says it is not worth it
                return self.mode
        return candidate

    def took(self, mode: ExecutionMode, n: int, seconds: Callable[[], float]) -> None:
        """A block of n samples was run; `seconds()` says how long it took and may wait for the device."""
        if not self.tries or mode in self.refused:
            return
        if not self.settled and self._comparable(n):
            self.uses[mode] = self.uses.get(mode, 0) + 1
            if self.uses[mode] == USES:
                self.seconds[mode] = seconds() / n
                self.mode = self._best()
        elif self.settled and mode == self.mode and n > ALIKE * self.length and self.long_uses < USES:
            self.long_uses += 1
            if self.long_uses == USES:
                self.long_seconds = seconds() / n

    def refuse(self, mode: ExecutionMode) -> None:
        """Never use this mode again: it failed, or its numbers are others."""
        self.refused.add(mode)
        self.seconds.pop(mode, None)
        self.mode = self._best()

    def abandon(self) -> None:
        """Run everything as the model itself runs from now on."""
        self.tries, self.mode, self.abandoned = False, PLAIN, True

    def __str__(self) -> str:
        if not self.tries:
            return str(self.mode) if self.mode != PLAIN else ""
        told = [f"{mode} {1e3 * spent:.3g} ms per sample" for mode, spent in self.seconds.items() if mode != self.mode]
        compared = f"; compared with: {'; '.join(told)}" if told else ""
        spent = f", {1e3 * self.seconds[self.mode]:.3g} ms per sample" if self.mode in self.seconds else ""
        return f"{self.mode}{spent}{compared}"

    def _comparable(self, n: int) -> bool:
        return self.length <= ALIKE * n and n <= ALIKE * self.length

    def _untried(self) -> ExecutionMode | None:
        """The next mode to time: first the plain one, then those that could be faster than what is known."""
        return next(
            (mode for mode in self._worth() if mode not in self.refused and self.uses.get(mode, 0) < USES), None
        )

    def _worth(self) -> Sequence[ExecutionMode]:
        found = [PLAIN]
        if PLAIN not in self.seconds:
            return found
        together = min(self.heads, TOGETHER)
        block = min(self.seconds.values()) * self.length
        launches = together > 1 and (self.floor is None or self.floor >= LAUNCHES * block)
        roots = [PLAIN] + [ExecutionMode(split=True, flipped=self.convolutions)] * self.splits
        found = list(roots)
        base = min(roots, key=lambda mode: self.seconds.get(mode, math.inf))
        last, flipped = replace(base, channels_last=True), replace(base, flipped=self.convolutions)
        if self.convolutions and not base.split:
            found += [last, flipped]
            if self.seconds.get(last, math.inf) < SLOWER * self.seconds[PLAIN]:
                found.append(replace(last, flipped=True))
        if launches:
            # passes that share launches make of convolutions many images, of which flipped kernels are faster than of few
            found += [replace(mode, together=together) for mode in (*roots, flipped)]
            known = [mode for mode in found if mode in self.seconds and mode.together == 1]
            if replace(roots[-1], together=together) in self.seconds:
                found.append(replace(min(known, key=self.seconds.__getitem__), together=together))
        return list(dict.fromkeys(found))

    def _best(self) -> ExecutionMode:
        if not self.tries:
            return PLAIN
        known = {mode: spent for mode, spent in self.seconds.items() if mode not in self.refused}
        if not known:
            return PLAIN
        best = min(known, key=known.__getitem__)
        return best if best == PLAIN or PLAIN not in known or known[best] < GAIN * known[PLAIN] else PLAIN


class Stopwatch:
    """The time between its start and its stop, of the device where that is a GPU; nothing waits until it is read."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._began: Any = self._mark()
        self._ended: Any = None

    def stop(self) -> None:
        self._ended = self._mark()

    def seconds(self) -> float:
        if self.device.type != "cuda":
            return float(self._ended - self._began)
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) / 1e3

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event
