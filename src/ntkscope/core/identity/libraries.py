"""Whose code it is: code that is followed line by line, or a library's, which is identified by name and version."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from ntkscope.core.numerics import numerics

DIGITS = 24  # hexadecimal digits of a sha256: 96 bits
OWN_NAME = "ntkscope"
# Their version may change last digits: stores keep it as a label, and what is stored is compared with what is computed.
UNVERSIONED = {"torch", "functorch", "torchgen", "numpy", "scipy", "triton", "nvidia", "jaxtyping", "beartype"}
VERSIONED = {
    "PIL", "accelerate", "cloudpickle", "cupy", "dask", "datasets", "diffusers", "distributed", "einops", "fsspec",
    "huggingface_hub", "jax", "jaxlib", "keras", "lightning", "lightning_fabric", "lightning_utilities", "matplotlib",
    "mpmath", "networkx", "numba", "pandas", "peft", "polars", "pyarrow", "pytorch_lightning", "safetensors", "sklearn",
    "skimage", "sympy", "tensorflow", "timm", "tokenizers", "torchaudio", "torchmetrics", "torchtext", "torchvision",
    "transformers", "xarray", "zarr",
}  # fmt: skip
TOOLS = {
    "_pytest", "pytest", "pluggy", "hypothesis", "IPython", "ipykernel", "typer", "click", "rich", "tqdm", "loguru",
}  # fmt: skip


def top(module: str | None) -> str:
    """The top-level package of a module's name.

    >>> top("torch.nn.modules.linear")
    'torch'
    """
    return str(module or "").partition(".")[0]  # some built-in types have a descriptor there


def is_standard(module: str | None) -> bool:
    """Whether a module belongs to Python itself."""
    return top(module) in sys.stdlib_module_names or top(module) in ("builtins", "")


def is_followed(module: str | None) -> bool:
    """Whether a module's code, and what it refers to, is read; otherwise a library's name and version stand for it.

    >>> is_followed("my_models.resnet"), is_followed("torch.nn"), is_followed("json")
    (True, False, False)
    """
    first = top(module)
    known = first in UNVERSIONED or first in VERSIONED or first in TOOLS or first == OWN_NAME
    return not known and not is_standard(module)


@functools.cache
def is_installed(module: str | None) -> bool:
    """Whether a module that is followed lies among installed packages: of its globals, code and plain values count."""
    try:
        spec = importlib.util.find_spec(top(module)) if top(module) else None
    except ValueError:  # __main__, and modules made at run time
        return False
    places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
    return any(f"{name}-packages" in Path(place).parts for place in places for name in ("site", "dist"))


def version_of(module: str) -> str:
    """What stands for a library's code: its version; for ntkscope, that of the room's numbers."""
    first, _, rest = module.partition(".")
    if first == OWN_NAME:
        return numerics(rest.partition(".")[0] or OWN_NAME)
    return _installed_version(first) if first in VERSIONED else ""


@functools.cache
def _installed_version(package: str) -> str:
    try:
        return metadata.version({"PIL": "pillow", "sklearn": "scikit-learn"}.get(package, package))
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", ""))


def imported_files(level: int, name: str, taken: Iterable[str], package: str | None) -> Iterator[Path]:
    """The source files of a module that is followed and of the submodules taken from it, found without running them."""
    try:
        whole = importlib.util.resolve_name("." * level + name, package or "") if level else name
    except ImportError:
        return
    for each in (whole, *(f"{whole}.{item}" for item in taken)):
        if is_followed(each) and not is_installed(each):
            try:
                spec = importlib.util.find_spec(each)
            except (ImportError, ValueError, AttributeError):  # no such module: the code that asks for it says so
                continue
            if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
                yield Path(spec.origin)
