"""ntkscope: which kernel machine is a trained PyTorch network, how far to trust that view, and where it breaks.

Rooms and names are imported when they are first used, so `import ntkscope` costs next to nothing. In the examples of their
docstrings, `model` is a small trained classifier, `x` (12, 2) and `y` (12,) its inputs and labels, `folder` a new folder.

>>> import ntkscope as ns
>>> split = ns.data.load("digits")
>>> model = ns.models.build("small_cnn", image_size=8, classes=10)
>>> tuple(model(split.test.x[:2]).shape)
(2, 10)
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what the names below are, for type checkers and editors
    from ntkscope import (
        data,
        experiments,
        explain,
        infinite,
        kernels,
        linalg,
        machines,
        measures,
        models,
        report,
        storage,
        surrogates,
        tangent,
        tracking,
        training,
    )
    from ntkscope.core import Claim, NtkscopeError, Record, Registry, Snapshot, Split
    from ntkscope.experiments import EXPERIMENTS, run
    from ntkscope.kernels import KERNELS, OutputSketch, Tangent, kernel
    from ntkscope.linalg import Gram
    from ntkscope.machines import retrain_last_layer
    from ntkscope.storage import open_kernel
    from ntkscope.surrogates import Linearized, linearize
    from ntkscope.tangent import feature_matrices
    from ntkscope.tracking import Every, LogSpaced, OnPlateau, Tracker
    from ntkscope.xray import xray

    __version__: str

_ROOMS = (
    "data",
    "experiments",
    "explain",
    "infinite",
    "kernels",
    "linalg",
    "machines",
    "measures",
    "models",
    "report",
    "storage",
    "surrogates",
    "tangent",
    "tracking",
    "training",
)
_NAMES = {
    "EXPERIMENTS": "experiments",
    "Every": "training",
    "LogSpaced": "training",
    "OnPlateau": "tracking",
    "Tracker": "tracking",
    "KERNELS": "kernels",
    "OutputSketch": "kernels",
    "Tangent": "kernels",
    "feature_matrices": "tangent",
    "kernel": "kernels",
    "run": "experiments",
    "Gram": "linalg",
    "Linearized": "surrogates",
    "linearize": "surrogates",
    "retrain_last_layer": "machines",
    "open_kernel": "storage",
    "Claim": "core",
    "NtkscopeError": "core",
    "Record": "core",
    "Registry": "core",
    "Snapshot": "core",
    "Split": "core",
    "xray": "xray",
}

__all__ = [
    "EXPERIMENTS",
    "KERNELS",
    "Claim",
    "Every",
    "Gram",
    "Linearized",
    "LogSpaced",
    "NtkscopeError",
    "OnPlateau",
    "OutputSketch",
    "Record",
    "Registry",
    "Snapshot",
    "Split",
    "Tangent",
    "Tracker",
    "data",
    "experiments",
    "explain",
    "feature_matrices",
    "infinite",
    "kernel",
    "kernels",
    "linalg",
    "linearize",
    "machines",
    "measures",
    "models",
    "open_kernel",
    "report",
    "retrain_last_layer",
    "run",
    "storage",
    "surrogates",
    "tangent",
    "tracking",
    "training",
    "xray",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":  # pyproject.toml says it, once
        return import_module("ntkscope._version").package_version()
    if name in _ROOMS:
        return import_module(f"ntkscope.{name}")
    if name in _NAMES:
        return getattr(import_module(f"ntkscope.{_NAMES[name]}"), name)
    raise AttributeError(f"ntkscope has no {name!r}; it has: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


class _Package(ModuleType):
    """This package with `xray` the function, also once its room is imported, which Python would put in its place."""

    @property
    def xray(self) -> Any:
        return __getattr__("xray")

    @xray.setter
    def xray(self, room: ModuleType) -> None:
        """The room stays in `sys.modules`, where `from ntkscope.xray import …` finds it."""


sys.modules[__name__].__class__ = _Package
