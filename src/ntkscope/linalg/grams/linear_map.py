"""What methods that never form a matrix need from it: its size, device, products and pieces."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


class Shaped(Protocol):
    @property
    def shape(self) -> Any: ...


class Placed(Shaped, Protocol):
    @property
    def device(self) -> Any: ...


@runtime_checkable
class Multiplies(Placed, Protocol):
    """Anything with a shape, a device and `K @ v`: every Gram, and every square Tensor."""

    def __matmul__(self, v: Any) -> Any: ...


@runtime_checkable
class Pieces(Placed, Protocol):
    """A matrix that can be read piece by piece: every Gram."""

    @property
    def symmetric(self) -> Any: ...
    def __getitem__(self, key: Any) -> Any: ...
    def tiles(self, size: int | None = None) -> Any: ...


@runtime_checkable
class LinearMap(Shaped, Protocol):
    """A matrix (n, p) by its products alone: `matvec` is `A V`, (p, k) → (n, k), and `rmatvec` is `Aᵀ U`, (n, k) → (p, k).

    Both take and return tensors of one dtype on one device, those of the right-hand sides.
    """

    def matvec(self, V: Tensor, /) -> Tensor: ...
    def rmatvec(self, U: Tensor, /) -> Tensor: ...
