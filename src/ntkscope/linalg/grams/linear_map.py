"""What methods that never form a matrix need from it: its size, device, products and pieces."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Multiplies(Protocol):
    """Anything with a shape, a device and `K @ v`: every Gram, and every square Tensor."""

    @property
    def shape(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    def __matmul__(self, v: Any) -> Any: ...


@runtime_checkable
class Pieces(Protocol):
    """A matrix that can be read piece by piece: every Gram."""

    @property
    def shape(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    @property
    def symmetric(self) -> Any: ...
    def __getitem__(self, key: Any) -> Any: ...
    def tiles(self, size: int | None = None) -> Any: ...


@runtime_checkable
class LinearMap(Protocol):
    """A matrix (n, p) by its products alone: `matvec` is `A V`, (p, k) → (n, k), and `rmatvec` is `Aᵀ U`, (n, k) → (p, k).

    Both take and return tensors of one dtype on one device, those of the right-hand sides.
    """

    @property
    def shape(self) -> Any: ...
    def matvec(self, V: Tensor, /) -> Tensor: ...
    def rmatvec(self, U: Tensor, /) -> Tensor: ...
