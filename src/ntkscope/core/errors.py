"""Errors. Every message says what was received, what was expected and what to do."""


class NtkscopeError(Exception):
    """Base of every error ntkscope raises on purpose.

    Examples:
        >>> try:
        ...     ns.data.load("digit")
        ... except NtkscopeError as error:
        ...     print(error)
        unknown data set 'digit'; did you mean 'digits'? known: ...
    """


class UsageError(NtkscopeError, ValueError):
    """A call with invalid arguments: wrong shape, wrong mode, out of range.

    Examples:
        >>> ns.models.build("mlp", in_features=0)
        Traceback (most recent call last):
        ...
        ntkscope.core.errors.UsageError: got in_features=0; expected a whole number ≥ 1
    """


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
    """A computation that has no finite answer: NaN inputs, a matrix that is not positive definite.

    Examples:
        >>> ns.linalg.cholesky_solve(-np.eye(2), np.ones(2))
        Traceback (most recent call last):
        ...
        ntkscope.core.errors.NumericalError: DenseGram(...) is not positive definite: its smallest eigenvalue is -1, ...
    """


class MemoryBudgetError(NtkscopeError, MemoryError):
    """A memory budget that is too small; the message states the smallest that works."""


class RecordError(NtkscopeError, OSError):
    """A record that cannot be read, written or continued."""


class StoreError(NtkscopeError, OSError):
    """A kernel or features on disk that cannot be read, written or continued."""


class DamagedTile(StoreError):
    """Part of a store whose bytes differ from those that were written; the message names the file."""
