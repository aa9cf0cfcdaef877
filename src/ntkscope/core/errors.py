"""Errors. Every message says what came, what was expected and what to do."""


class NtkscopeError(Exception):
    """Base of every error ntkscope raises on purpose."""


class UsageError(NtkscopeError, ValueError):
    """A call whose arguments cannot mean anything: wrong shape, wrong mode, out of range."""


class UnknownName(NtkscopeError, KeyError):
    """A name that no registry entry carries; the message suggests the nearest."""

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0]) if self.args else ""


class DuplicateName(NtkscopeError, ValueError):
    """Two entries registered under one name."""


class DataNotFound(NtkscopeError, FileNotFoundError):
    """A data set that is not on disk; the message says where it was looked for and how to get it."""


class DataCorrupt(NtkscopeError, ValueError):
    """A data file that is truncated, has a wrong checksum or holds values out of range."""


class UnsafeData(NtkscopeError, ValueError):
    """A file that would run code if it were loaded; it was refused before anything ran."""


class NumericalError(NtkscopeError, ArithmeticError):
    """A computation that has no finite answer: NaN inputs, a matrix that is not positive definite."""


class MemoryBudgetError(NtkscopeError, MemoryError):
    """A memory budget nothing fits into; the message states the smallest that would do."""


class RecordError(NtkscopeError, OSError):
    """A record that cannot be read, written or continued."""


class StoreError(NtkscopeError, OSError):
    """A kernel or features on disk that cannot be read, written or continued."""


class DamagedTile(StoreError):
    """A piece of a store whose bytes are not those that were written; the message names its file."""
