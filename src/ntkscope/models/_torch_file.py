"""PyTorch files checked before PyTorch reads them: that they claim no more than they hold.

`torch.load(weights_only=True)` runs no foreign code, but it trusts a file's own numbers: a compressed archive may hold
gigabytes, a storage may be said to be larger than its bytes (which are then read beyond their end), and `bytearray(10**12)`
or `torch.FloatTensor(10**12)` are among the calls it makes. Here the pickles of a file are run with stand-ins that only
record what would be called and which storages are requested.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ntkscope.core.errors import DataCorrupt, UnsafeData
from ntkscope.core.files.pickles import instructions
from ntkscope.core.files.safe_files import regular_file

LARGEST_PICKLE = 1 << 26  # bytes of the pickle beside the storages
MOST_CALLS = 1_000_000
LEGACY_PICKLES = 5  # magic number, protocol, system, what was saved, names of storages; their bytes follow
DIRECTORY = 0x10  # of a member's attributes: PyTorch then reads nothing, and takes what is in its memory
TAR_MEMBERS = (b"sys_info", b"pickle", b"storages", b"tensors")
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_REBUILD = {
    "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor", "_rebuild_parameter",
    "_rebuild_parameter_with_state",
}  # fmt: skip
_CALLED = {f"torch._utils.{name}" for name in _REBUILD} | {
    "collections.OrderedDict", "collections.Counter", "torch.Size", "torch.device", "torch._tensor._rebuild_from_type_v2",
    "torch.serialization._get_layout", "_codecs.encode", "builtins.set", "builtins.complex", "__builtin__.set",
}  # fmt: skip
_SIZES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "ComplexDouble": 16, "ComplexFloat": 8, "Untyped": 1, "QInt8": 1, "QUInt8": 1, "QInt32": 4, "QUInt4x2": 1, "QUInt2x4": 1,
}  # fmt: skip


def check_torch_file(path: Path) -> None:
    """Raise `UnsafeData` or `DataCorrupt` if PyTorch would be made to call, or to hold, more than the file's tensors."""
    try:
        with regular_file(path, DataCorrupt) as (handle, size):
            start = handle.read(512)
            if start.startswith(b"PK\x03\x04"):
                _check_archive(handle, size)
            elif start[257:262] == b"ustar" or start[:100].rstrip(b"\0") in TAR_MEMBERS:
                raise DataCorrupt(
                    "is a tar archive, which PyTorch wrote before its version 0.1.10 and no longer checks as it reads; expected"
                    " a file of today's torch.save: load it with the PyTorch that wrote it and save its state dict again"
                )
            else:
                _check_legacy(handle, size)
    except (UnsafeData, DataCorrupt) as error:
        raise type(error)(f"{path} {error}") from None
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError,
            TypeError, AttributeError, LookupError, OverflowError, MemoryError) as error:  # fmt: skip
        raise DataCorrupt(
            f"{path} is not a complete PyTorch file ({type(error).__name__}: {error}); copy or download it again"
        ) from error


def _check_archive(handle: BinaryIO, size: int) -> None:
    with zipfile.ZipFile(handle) as archive:
        members = archive.infolist()
        if any(member.filename.endswith("/constants.pkl") for member in members):
            raise UnsafeData(
                "is a TorchScript program, which is not run; expected a state dict: write"
                " torch.save(torch.jit.load(path).state_dict(), 'weights.pt')"
            )
        if any(
            member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size for member in members
        ):
            raise UnsafeData(
                "is a compressed archive, which PyTorch does not write: its bytes may become any number; refused before"
                " anything was read. Write it again with torch.save"
            )
        names = [member.filename for member in members if not member.external_attr & DIRECTORY]
        folders = {name.partition("/")[0] for name in names}
        if len({name.lower() for name in names}) < len(members) or len(folders) != 1 or archive.comment:
            raise DataCorrupt(
                "is not a complete PyTorch file (the names in its archive are not those torch.save writes)"
            )
        sizes = {member.filename: member.file_size for member in members}
        if sum(sizes.values()) > size:
            raise DataCorrupt(
                f"is not a complete PyTorch file (its parts have {sum(sizes.values()):,} bytes, it has {size:,})"
            )
        folder = folders.pop()
        main = f"{folder}/data.pkl"
        if sizes.get(main, LARGEST_PICKLE + 1) > LARGEST_PICKLE:
            raise DataCorrupt(f"is not a complete PyTorch file (no data.pkl of at most {LARGEST_PICKLE:,} bytes)")
        census = _census(archive.read(main))
        damaged = archive.testzip()  # PyTorch compares no checksums
        if damaged is not None:
            raise DataCorrupt(f"was changed after it was written ({damaged} differs from its checksum); copy it again")
    for (key, *_), claimed in census.storages.items():
        held = sizes.get(f"{folder}/data/{key}")
        if held is None or claimed > held:
            raise DataCorrupt(
                f"is not a complete PyTorch file: storage {key!r:.40} claims to have {claimed:,} bytes but has {held}"
            )


def _check_legacy(handle: BinaryIO, size: int) -> None:
    """Pickles one after the other, then the bytes of the storages."""
    handle.seek(0)
    total = 0
    for number in range(LEGACY_PICKLES):
        start = handle.tell()
        if start >= size:
            break
        for _ in instructions(handle):
            if handle.tell() - start > LARGEST_PICKLE:
                raise DataCorrupt(f"is not a complete PyTorch file (a pickle of more than {LARGEST_PICKLE:,} bytes)")
        end = handle.tell()
        handle.seek(start)
        census = _census(handle.read(end - start), checked=True)
        if number == 0 and census.result != LEGACY_MAGIC:
            raise DataCorrupt("is not a complete PyTorch file (it does not begin as one); copy or download it again")
        total += sum(census.storages.values())
    if total > size:
        raise DataCorrupt(
            f"is not a complete PyTorch file: its storages claim to have {total:,} bytes; it has {size:,}"
        )


def _census(content: bytes, checked: bool = False) -> _Census:
    if not checked:
        for _ in instructions(content):
            pass
    census = _Census(content)
    try:
        census.result = census.load()
    except pickle.UnpicklingError as error:
        if "NEWOBJ" not in str(error):  # a stand-in is no class, of which an object could be made
            raise
        whole = b"_parameters" in content and b"_modules" in content  # what every nn.Module has
        raise UnsafeData(_whole(census.named) if whole else _more(census.named)) from None
    return census


class _Census(pickle.Unpickler):
    """Runs a pickle in which nothing is what it is called: names become stand-ins, and calls are recorded."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.storages: dict[tuple[Any, ...], int] = {}
        self.result: Any = None
        self.named = ""  # what the pickle named last
        self._room = len(content)
        self._calls = 0

    def find_class(self, module: str, name: str) -> Any:
        self.named = f"{module}.{name}"
        return _Named(self, self.named)

    def persistent_load(self, pid: Any) -> Any:
        kind = pid[0].decode() if isinstance(pid, tuple) and pid and isinstance(pid[0], bytes) else None
        if (
            isinstance(pid, tuple) and pid and (kind or pid[0]) == "module"
        ):  # the class and its source, as PyTorch wrote models before version 1.6
            raise UnsafeData(_whole(self.named))
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or (kind or pid[0]) != "storage":
            raise UnsafeData(_more("a persistent id that is no storage"))
        _, storage, key, _, numel, *_ = pid
        whole = storage.name.rpartition(".")[2] if isinstance(storage, _Named) else ""
        size = _SIZES.get(whole.removesuffix("Storage")) if whole.endswith("Storage") else None
        if size is None or isinstance(numel, bool) or not isinstance(numel, int) or numel < 0:
            raise UnsafeData(_more(f"a storage of type {whole!r:.60} with {numel!r:.40} numbers"))
        text = key.decode("latin1") if isinstance(key, bytes) else key
        if not isinstance(text, (str, int)):
            raise UnsafeData(_more("a storage without a name"))
        self.storages[(text,)] = max(self.storages.get((text,), 0), size * numel)
        return _Made()

    def called(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """What a call returns: a mapping for a mapping, else something inert."""
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise UnsafeData(_more(f"more than {MOST_CALLS:,} calls"))
        if name not in _CALLED and name not in _trusted():
            raise UnsafeData(_more(name))
        if name == "torch._tensor._rebuild_from_type_v2":
            inner = arguments[0].name if arguments and isinstance(arguments[0], _Named) else ""
            if inner.rpartition(".")[2] not in _REBUILD:
                raise UnsafeData(_more(f"{name} of {inner:.60}"))
        if name == "_codecs.encode":
            self._room -= len(arguments[0]) if arguments and isinstance(arguments[0], str) else 0
            if self._room < 0:
                raise UnsafeData(_more("texts that are encoded again and again"))
        return _Mapping() if name in ("collections.OrderedDict", "collections.Counter") else _Made()


class _Named:
    """Stands for anything a pickle names."""

    __slots__ = ("census", "name")

    def __init__(self, census: _Census, name: str) -> None:
        self.census, self.name = census, name

    def __call__(self, *arguments: Any) -> Any:
        return self.census.called(self.name, arguments)


class _Made:
    """Stands for the result of a call."""

    def __setstate__(self, state: Any) -> None:
        """Keeps nothing."""


class _Mapping(dict[Any, Any]):
    """Stands for a mapping that a call returned."""

    def __setstate__(self, state: Any) -> None:
        """Keeps nothing."""


def _trusted() -> set[str]:
    """What the caller told PyTorch to trust."""
    named = torch.serialization.get_safe_globals()
    pairs = ((entry[1] if isinstance(entry, tuple) else entry) for entry in named)
    return {pair if isinstance(pair, str) else f"{pair.__module__}.{pair.__qualname__}" for pair in pairs}


def _whole(name: str) -> str:
    return (
        f"holds a whole pickled model ({name:.200}), as torch.save(model) writes it, which can be read only by running code; it"
        " was refused before anything in it ran. Expected its weights alone: load it where its class is defined, and write"
        " torch.save(model.state_dict(), 'weights.pt')"
    )


def _more(what: str) -> str:
    return (
        f"holds more than tensors ({what}) and was refused before anything in it ran; expected a state dict. If you trust its"
        " source, load it there and write it again with ntkscope.models.save_weights"
    )
