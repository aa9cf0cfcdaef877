"""What methods that never form a matrix need from it: its size, device, products and pieces."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


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
