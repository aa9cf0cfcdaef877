"""Pickles inspected without being run: which instructions they hold and how deeply what they build is nested.

Python computes hashes of tuples, and frees them, by recursion on the C stack, so a small pickle of tuples inside
tuples can crash the process. The depth is found from the instructions alone.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import IO, Any

from ntkscope.core.errors import DataCorrupt

DEEPEST = 200  # lists, tuples and dicts inside each other
_WHOLE = {"TUPLE", "LIST", "DICT", "FROZENSET"}  # of everything since the last mark
_INTO = {"APPENDS", "SETITEMS", "ADDITEMS"}  # everything since the last mark into what is below it
_FEW = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ONE_INTO = {"APPEND": 1, "SETITEM": 2}


def instructions(content: bytes | IO[bytes]) -> Iterator[tuple[str, Any, int]]:
    """Every instruction of a pickle by name, with its argument and position; an error when what it builds is nested too deeply.

    >>> import pickle
    >>> [name for name, _, _ in instructions(pickle.dumps((1, 2), protocol=2))]
    ['PROTO', 'BININT1', 'BININT1', 'TUPLE2', 'BINPUT', 'STOP']
    """
    depths = _Depths()
    memo: dict[Any, int] = {}
    for operation, argument, position in pickletools.genops(content):
        name = operation.name
        yield name, argument, int(position or 0)
        if name == "MARK":
            depths.mark()
        elif name in _WHOLE:
            depths.push(1 + max(depths.since_mark(), default=0))
        elif name in _INTO:
            inner = max(depths.since_mark(), default=0)
            depths.push(max(depths.pop(), 1 + inner))
        elif name == "POP_MARK":
            depths.since_mark()
        elif name in _FEW:
            depths.push(1 + max(depths.pop() for _ in range(_FEW[name])))
        elif name in _ONE_INTO:
            inner = max(depths.pop() for _ in range(_ONE_INTO[name]))
            depths.push(max(depths.pop(), 1 + inner))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = depths.last()
        elif name == "MEMOIZE":
            memo[len(memo)] = depths.last()
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            depths.push(memo.get(argument, 0))
        elif name == "POP":
            depths.pop_any()
        elif name == "DUP":
            depths.push(depths.last())
        else:
            depths.general(operation)
        if depths.last() > DEEPEST:
            raise DataCorrupt(f"what it builds is nested more than {DEEPEST} levels deep at byte {position}")


class _Depths:
    """The stack of the pickle machine, holding the depth of each value; marks open a stack of their own."""

    def __init__(self) -> None:
        self._now: list[int] = []
        self._below: list[list[int]] = []

    def push(self, depth: int) -> None:
        self._now.append(depth)

    def pop(self) -> int:
        if not self._now:
            raise DataCorrupt("an instruction takes more values than the stack holds")
        return self._now.pop()

    def last(self) -> int:
        return self._now[-1] if self._now else 0

    def mark(self) -> None:
        if len(self._below) > DEEPEST:
            raise DataCorrupt(f"what it builds is nested more than {DEEPEST} levels deep")
        self._below.append(self._now)
        self._now = []

    def since_mark(self) -> list[int]:
        if not self._below:
            raise DataCorrupt("an instruction takes more values than the stack holds")
        taken, self._now = self._now, self._below.pop()
        return taken

    def pop_any(self) -> None:
        """Drop the last value, or the mark itself if nothing follows it."""
        if self._now:
            self._now.pop()
        else:
            self.since_mark()

    def general(self, operation: pickletools.OpcodeInfo) -> None:
        """Any other instruction: what it makes is one level deeper than what it takes."""
        if pickletools.markobject in operation.stack_before:
            taken = max(self.since_mark(), default=0)
        else:
            taken = max((self.pop() for _ in operation.stack_before), default=-1)
        self._now.extend([taken + 1] * len(operation.stack_after))
