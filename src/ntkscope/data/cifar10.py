"""CIFAR-10, 50,000 and 10,000 colour images of 32x32 in ten classes. Krizhevsky (2009).

Three layouts on disk are read: the official pickles, the official binary files, and lossless WebP mosaics. All are
brought to the records of the binary files (a label byte, then 3,072 bytes of red, green and blue rows), so one
checksum, that of the official binary file, holds for a batch in any layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image, UnidentifiedImageError

from ntkscope.core import Split
from ntkscope.core.checked import Count
from ntkscope.core.errors import DataCorrupt
from ntkscope.data import _pickle
from ntkscope.data._files import Alternatives, Root, check_sha256, find_folder, not_found, pick, places, read_file
from ntkscope.data._npz import read_npz
from ntkscope.data.normalise import Normalise
from ntkscope.data.registry import DATASETS
from ntkscope.data.subsets import Classes, Images, Labelled, Subset, class_subset, image_split

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STANDARD = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
BATCH, PIXELS = 10_000, 3 * 32 * 32
SHA256 = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
REMEDY = (
    "unpack https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz or cifar-10-binary.tar.gz (they make the folders"
    " cifar-10-batches-py and cifar-10-batches-bin), or put the mosaics train_1.webp ... train_5.webp, test.webp and"
    " labels.npz into a folder cifar10/."
)


def _records(
    labels: Shaped[np.ndarray, " n"], pixels: UInt8[np.ndarray, "n 3072"], what: str
) -> UInt8[np.ndarray, "n 3073"]:
    """The records of the official binary files, once every label is known to be one."""
    if len(wrong := np.flatnonzero((labels < 0) | (labels > 9))):
        raise DataCorrupt(
            f"{what}: label {labels[wrong[0]]} at place {wrong[0]} ({len(wrong):,} such), expected 0 ... 9;"
            " fetch the file again"
        )
    records = np.empty((len(labels), 1 + PIXELS), np.uint8)
    records[:, 0], records[:, 1:] = labels, pixels
    return records


def _read_pickle(folder: Path, batch: str) -> UInt8[np.ndarray, "n 3073"]:
    path = folder / batch
    content = _pickle.load(path)
    content = content if isinstance(content, dict) else {}
    pixels, labels = (content.get(key, content.get(key.decode())) for key in (b"data", b"labels"))
    if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (PIXELS,)):
        raise DataCorrupt(f"{path}: 'data' is {_describe(pixels)}, expected a uint8 array of shape (n, {PIXELS})")
    if not (isinstance(labels, list) and len(labels) == len(pixels) and all(type(label) is int for label in labels)):
        raise DataCorrupt(f"{path}: 'labels' is {_describe(labels)}, expected a list of {len(pixels):,} integers")
    return _records(np.array(labels, dtype=object), pixels, str(path))


def _read_binary(folder: Path, batch: str) -> UInt8[np.ndarray, "n 3073"]:
    path = folder / f"{batch}.bin"
    content = read_file(path)
    if len(content) == 0 or len(content) % (1 + PIXELS):
        raise DataCorrupt(
            f"{path}: found {len(content):,} bytes, expected {BATCH * (1 + PIXELS):,} ({BATCH:,} records of"
            f" {1 + PIXELS:,}); the file is truncated: fetch it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    return _records(records[:, 0], records[:, 1:], str(path))


def _read_mosaic(folder: Path, batch: str) -> UInt8[np.ndarray, "n 3073"]:
    """100 by 100 images of 32x32, row by row, in one picture; the labels of all batches lie in `labels.npz`."""
    path = folder / _mosaic_name(batch)
    try:
        with Image.open(path, formats=("WEBP",)) as picture:
            if picture.size != (3200, 3200):  # known before anything is decoded
                raise DataCorrupt(
                    f"{path}: the mosaic is {picture.size[0]}x{picture.size[1]} pixels, expected 3200x3200"
                )
            mosaic = np.asarray(picture.convert("RGB"))
    except DataCorrupt:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise DataCorrupt(
            f"{path}: {path.stat().st_size:,} bytes are not a complete WebP picture ({error}); fetch it again"
        ) from error
    pixels = mosaic.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(BATCH, PIXELS)

    path = folder / "labels.npz"
    labels = read_npz(path, {"train": ("u1", (5 * BATCH,)), "test": ("u1", (BATCH,))})
    if batch == "test_batch":
        return _records(labels["test"], pixels, f"{path} (test)")
    first = (int(batch[-1]) - 1) * BATCH
    return _records(labels["train"][first : first + BATCH], pixels, f"{path} (train, from place {first:,})")


def _mosaic_name(batch: str) -> str:
    return "test.webp" if batch == "test_batch" else f"train_{batch[-1]}.webp"


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{value.shape}"
    return f"a {type(value).__name__}" + (f" of {len(value):,}" if isinstance(value, list) else "")


@dataclass(frozen=True)
class _Layout:
    folders: tuple[str, ...]
    files: tuple[Alternatives, ...]
    read: Callable[[Path, str], np.ndarray]


LAYOUTS = {
    "mosaic": _Layout(("cifar10",), (*((_mosaic_name(b),) for b in SHA256), ("labels.npz",)), _read_mosaic),
    "binary": _Layout(
        ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"), tuple((f"{b}.bin",) for b in SHA256), _read_binary
    ),
    "pickle": _Layout(
        ("cifar-10-batches-py", "cifar10/cifar-10-batches-py"), tuple((b,) for b in SHA256), _read_pickle
    ),
}


def find_layout(root: Root, format: str) -> tuple[Path, str]:
    """The folder of CIFAR-10 and its layout; with `"auto"`, whichever lies in the first place searched."""
    wanted = [format] if format != "auto" else list(LAYOUTS)
    folders = [folder for layout in wanted for folder in LAYOUTS[layout].folders]
    searched = places(root, folders)
    for place in searched:
        for layout in wanted:
            if all(pick(place, names) is not None for names in LAYOUTS[layout].files):
                return place, layout
    if format != "auto":
        return find_folder(f"CIFAR-10 ({format})", searched, LAYOUTS[format].files, REMEDY), format
    seen = [f"  {place} ({_lacks(place) if place.is_dir() else 'no such folder'})" for place in searched]
    raise not_found("CIFAR-10", seen, REMEDY)


def _lacks(place: Path) -> str:
    """What is missing from the most complete layout."""
    missing = {key: [n[0] for n in layout.files if pick(place, n) is None] for key, layout in LAYOUTS.items()}
    key = min(missing, key=lambda layout: len(missing[layout]))
    if all(len(missing[name]) == len(LAYOUTS[name].files) for name in missing):
        return "holds none of its files"
    return f"lacks {', '.join(missing[key])} of the {key} layout"


@DATASETS.register("cifar10")
def cifar10(
    *,
    root: Root = None,
    seed: int = 0,
    classes: Classes = None,
    max_train: Count | None = None,
    max_test: Count | None = None,
    normalise: Normalise = "standard",
    format: Annotated[str, ("auto", *LAYOUTS)] = "auto",
    verify: bool = True,
) -> Split:
    """CIFAR-10: x float32 (n, 3, 32, 32), y 0 ... 9; by default normalised by the channels' own mean and std.

    `format` is `"auto"`, `"pickle"`, `"binary"` or `"mosaic"`; the `Split` is the same, byte for byte. Pickles are read
    as data alone and refused when they are more. The pretrained ResNet-20 and 56 need `normalise="imagenet"`. Other
    options as for `ntkscope.data.mnist.mnist`. About 5 s; 0.4 GB while selecting, then 12 kB per image kept.
    """
    folder, layout = find_layout(root, format)

    def read(batches: list[str]) -> Labelled:
        records = []
        for batch in batches:
            records.append(LAYOUTS[layout].read(folder, batch))
            if verify:
                check_sha256(records[-1], SHA256[batch], f"{folder} ({layout}, {batch})")
        whole = np.concatenate(records) if len(records) > 1 else records[0]
        return whole[:, 1:].reshape(-1, 3, 32, 32), whole[:, 0]

    *train, test = SHA256
    parts = Images(*read(train), max_train), Images(*read([test]), max_test)
    return image_split("cifar10", *parts, NAMES, Subset(STANDARD, seed, classes, normalise))


cifar2 = class_subset(
    "cifar2",
    cifar10,
    (0, 1),
    """CIFAR2, the two-class task: airplane against automobile, the first two labels, unless `classes` says otherwise.

    The publications that use it do not say which two classes they took. `classes=("cat", "dog")` is the hard
    pair. Options as for `cifar10`.
    """,
)
