"""Errors. Every message says what was received, what was expected and what to do."""


class NtkscopeError(Exception):
    """Base of every error ntkscope raises on purpose."""


class UsageError(NtkscopeError, ValueError):
    """A call with invalid arguments: wrong shape, wrong mode, out of range."""


class UnknownName(NtkscopeError, KeyError):
    """A name that is not in the registry; the message suggests the nearest."""

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0]) if self.args else ""


class DuplicateName(NtkscopeError, ValueError):
    """Two entries registered under one name."""


class DataNotFound(NtkscopeError, FileNotFoundError):
    """A data set that is not on disk; the message says where we looked and how to get it."""


class DataCorrupt(NtkscopeError, ValueError):
    """A data file that is truncated, has a wrong checksum or holds values out of range."""


class UnsafeData(NtkscopeError, ValueError):
    """A file that would run code when loaded; it was refused before anything ran."""


class NumericalError(NtkscopeError, ArithmeticError):
    """A computation that has no finite answer: NaN inputs, a matrix that is not positive definite."""


class MemoryBudgetError(NtkscopeError, MemoryError):
    """A memory budget that is too small; the message states the smallest that works."""


class RecordError(NtkscopeError, OSError):
    """A record that cannot be read, written or continued."""


class StoreError(NtkscopeError, OSError):
    """A kernel or features on disk that cannot be read, written or continued."""


class DamagedTile(StoreError):
    """Part of a store whose bytes differ from those that were written; the message names the file."""
