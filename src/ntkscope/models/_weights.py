"""Weights on disk: safetensors, or PyTorch files that hold nothing but tensors."""

from __future__ import annotations

import difflib
import os
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from ntkscope.core import Params, UsageError
from ntkscope.core.errors import DataCorrupt, DataNotFound, UnsafeData
from ntkscope.core.files.atomic import write_file
from ntkscope.core.files.safe_files import check_safetensors
from ntkscope.core.types import fingerprint
from ntkscope.models._torch_file import check_torch_file

M = TypeVar("M", bound=nn.Module)
PICKLED = (".pt", ".pth", ".th", ".ckpt")
CHECKSUM = "ntkscope checksum"  # the only key of the metadata: safetensors writes several in any order
MARK = f'"{CHECKSUM}":"'.encode()  # in the head of a safetensors file of ours
SHOWN = 8  # names an error lists before it counts the rest


def save_weights(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the state dict of `model` to a safetensors file, atomically; tied tensors are written twice.

    Examples:
        >>> save_weights(model, folder + ".safetensors")
        >>> list(read_weights(folder + ".safetensors")) == sorted(model.state_dict())
        True
    """
    save_tensors(model.state_dict(), path)


def save_tensors(tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Write tensors by name to a safetensors file, atomically, where `read_weights` finds them.

    Examples:
        >>> save_tensors({"w": torch.arange(3.0)}, folder + ".safetensors")
        >>> read_weights(folder + ".safetensors")["w"]
        tensor([0., 1., 2.])
    """
    if Path(path).suffix != ".safetensors":
        raise UsageError(f"got {path} for weights; expected a name that ends in .safetensors")
    state = {key: value.detach().cpu().clone().contiguous() for key, value in tensors.items()}
    said = {CHECKSUM: fingerprint(state)}
    write_file(path, safetensors.torch.save(state, metadata=said), over=MARK)


def load_weights(model: M, path: str | os.PathLike[str], strict: bool = True) -> M:
    """Load a safetensors file, or a .pt / .pth / .ckpt through `weights_only=True`, into `model` and return it.

    A `state_dict` inside a checkpoint is found, and so are the weights of `model` under a prefix (`module.` of DataParallel,
    `model.` of a LightningModule that holds it); hyper-parameters and optimizer states are ignored. Nothing is loaded unless
    every shape agrees and, with `strict`, every name; `strict=False` loads the names both sides have.

    Examples:
        >>> save_weights(model, folder + ".safetensors")
        >>> again = load_weights(ns.models.mlp(2, classes=2, widths=[4], seed=1), folder + ".safetensors")
        >>> again(x).equal(model(x))
        True
    """
    own = model.state_dict()
    empty = [key for key, value in own.items() if isinstance(value, Tensor) and value.is_meta]
    if empty:
        raise UsageError(
            f"the model has parameters on the device meta, which holds no numbers: {_some(empty)}; build it on the CPU, or give"
            " them memory with model.to_empty(device='cpu') first"
        )
    state = without_prefix(read_weights(path), own)
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in own]
    shapes = [
        f"{key} is {tuple(state[key].shape)} in the file and {tuple(own[key].shape)} in the model"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    lost = [
        f"{key}, {state[key].dtype} in the file and {own[key].dtype} in the model"
        for key in own
        if key in state and not shapes and not _survives(state[key], own[key].dtype)
    ]
    complaints = [f"shapes differ: {_some(shapes)}"] if shapes else []
    if lost:
        complaints.append(f"numbers of the file are lost in the model's type: {_some(lost)}")
    if strict and missing:
        complaints.append(f"missing from the file: {_some(missing)}")
    if strict and unexpected:
        complaints.append(f"unexpected in the file: {_some(unexpected)}")
    if complaints:
        remedy = "build the model with the options it was trained with" + (
            ", or load only the names both have where you build it: ntkscope.models.load_weights(model, path, strict=False)"
            if not (shapes or lost)
            else ""
        )
        raise UsageError(
            f"{path} does not fit {type(model).__name__}: {'; '.join(complaints)}; expected {len(own)} tensors;"
            f" {remedy}"
        )
    model.load_state_dict({key: value for key, value in state.items() if key in own}, strict=False)
    return model


def read_weights(path: str | os.PathLike[str]) -> Params:
    """The tensors in a weights file by name, on the CPU; a file that would run code is refused before it can.

    Examples:
        >>> save_tensors({"w": torch.arange(3.0)}, folder + ".safetensors")
        >>> read_weights(folder + ".safetensors")
        {'w': tensor([0., 1., 2.])}
    """
    path = Path(path)
    if not os.path.isfile(path):
        beside = [each.name for each in path.parent.glob("*") if each.suffix in (".safetensors", *PICKLED)]
        near = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.75)
        hint = f"; did you mean {path.parent / near[0]}?" if near else ""
        raise DataNotFound(f"no weights at {path}; expected a file ending in .safetensors, {', '.join(PICKLED)}{hint}")
    if path.suffix == ".safetensors":
        check_safetensors(path)
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                said = (file.metadata() or {}).get(CHECKSUM)
            loaded: Any = safetensors.torch.load_file(path)
        except (safetensors.SafetensorError, OSError, KeyError, RuntimeError, ValueError, MemoryError) as error:
            raise DataCorrupt(
                f"{path} is not a complete safetensors file ({error}); copy or download it again"
            ) from error
        if said is not None and said != fingerprint(loaded):
            raise DataCorrupt(f"{path} was changed after it was written (its checksum differs); copy it again")
    elif path.suffix in PICKLED:
        loaded = _unpickle(path)
    else:
        raise UsageError(f"{path} ends in {path.suffix!r}; expected .safetensors, {', '.join(PICKLED)}")
    return _state_dict(path, loaded)


def without_prefix(state: Params, names: Iterable[str]) -> Params:
    """The tensors of one module among those of a larger one that holds it: `names` under the only prefix that has them all.

    Unchanged if some of `names` are there as they are, or if no prefix, or more than one, has all of them.

    >>> one = torch.ones(1)
    >>> list(without_prefix({"model.weight": one, "loss.weight": one, "model.bias": one}, ["weight", "bias"]))
    ['weight', 'bias']
    """
    wanted = [name for name in names if not name.endswith("num_batches_tracked")]
    if not wanted or any(name in state for name in wanted):
        return state
    starts = {key.removesuffix(wanted[0]) for key in state if key.endswith(f".{wanted[0]}")}
    found = [start for start in starts if all(f"{start}{name}" in state for name in wanted)]
    if len(found) != 1:
        return state
    return {key.removeprefix(found[0]): value for key, value in state.items() if key.startswith(found[0])}


def _unpickle(path: Path) -> Any:
    check_torch_file(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafeData(
            f"{path} holds more than tensors and was refused before anything in it ran; expected a state dict."
            " If you trust its source, load it there and write it again with ntkscope.models.save_weights"
        ) from error
    except OSError:
        raise
    except Exception as error:  # bytes that are not a pickle fail in many ways
        raise DataCorrupt(f"{path} is not a complete PyTorch file ({error}); copy or download it again") from error


def _state_dict(path: Path, loaded: Any) -> Params:
    """The flat mapping of names to tensors, unwrapped from a checkpoint and stripped of `module.`."""
    for key in ("state_dict", "model_state_dict"):  # as Lightning and PyTorch's own tutorials name it
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping):
        raise UsageError(f"{path} holds a {type(loaded).__name__}; expected a state dict, names to tensors")
    others = [str(key) for key, value in loaded.items() if not isinstance(value, Tensor)]
    if others:
        raise UsageError(f"{path} holds entries that are not tensors: {_some(others)}; expected a state dict")
    state = {str(key).removeprefix("module."): value for key, value in loaded.items()}
    claims = [key for key, value in state.items() if not _is_plain(value)]
    if claims:
        raise DataCorrupt(
            f"{path} holds tensors that are sparse, quantised, on another device, or claim more numbers than the file has:"
            f" {_some(claims)}; expected plain dense tensors: write them again with ntkscope.models.save_weights"
        )
    broken = [key for key, value in state.items() if value.is_floating_point() and not _is_finite(value)]
    if broken:
        raise DataCorrupt(f"{path} holds NaN or infinity in {_some(broken)}; expected finite weights")
    return state


def _is_plain(value: Tensor) -> bool:
    """Whether a tensor's numbers are all in its memory: stride 0 makes any number of them from one."""
    if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized or value.is_nested:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _is_finite(value: Tensor) -> bool:
    try:
        return bool(value.isfinite().all())
    except (RuntimeError, NotImplementedError):  # an eight-bit type without this operation
        return bool(value.float().isfinite().all())


def _survives(value: Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor of finite numbers is still that in another type: not cut to real parts or whole numbers, not infinite,
    not all zero; rounding is no loss."""
    if value.dtype == dtype:
        return True
    if value.is_complex() != dtype.is_complex:
        return dtype.is_complex
    cast = value.to(dtype)
    if value.is_floating_point() and dtype.is_floating_point:
        return _is_finite(cast) and (bool(cast.count_nonzero()) or not bool(value.count_nonzero()))
    return torch.equal(cast.to(value.dtype), value)


def _some(names: list[str]) -> str:
    """The first few of `names` and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
