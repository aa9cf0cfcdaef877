"""Images in folders, one per class: `train/snake/a.png`, `test/snake/b.jpg`, or `snake/a.png`; your own, or ImageNet's."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from ntkscope.core import Split, UsageError, numpy_generator
from ntkscope.core.arguments import path_of
from ntkscope.core.checked import Count, Tolerance
from ntkscope.core.errors import DataCorrupt, DataNotFound, MemoryBudgetError, UnsafeData
from ntkscope.data._files import Root, not_found, places
from ntkscope.data.normalise import IMAGENET, MeanStd, Normalise
from ntkscope.data.registry import DATASETS
from ntkscope.data.subsets import Classes, Images, Subset, image_split, resolve_classes, spread

P = TypeVar("P")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
FORMATS = ("PNG", "JPEG", "WEBP")  # nothing else is tried, whatever the file's name says
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # eight bits; sixteen would be cut off
MAX_PIXELS = 50_000_000
FLOATS = 5  # bytes per pixel and channel: one while reading, then four beside it
TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "testing", "validation", "valid", "val", "dev")  # the first there is
STANDARD: dict[int, MeanStd] = {1: ((0.0,), (1.0,)), 3: IMAGENET}  # by channels
EXPECTED = (
    "make the folders train/CLASS/ and test/CLASS/ (or val/CLASS/), or CLASS/ alone, with .png, .jpg or .webp images"
)


def read_image(
    path: Path,
    size: int | None,
    resize: str,
    max_pixels: int = MAX_PIXELS,
    channels: int = 3,
    content: bytes | None = None,
) -> UInt8[np.ndarray, "channels h w"]:
    """One image, grey or RGB, brought to `size` by `size`; its size is checked before it is decoded, against decompression
    bombs. `content` is that of the file where it is not on disk.

    `resize="crop"`: the shorter side is scaled to `size` and the middle is kept; `"stretch"`: both sides are scaled.
    """
    if content is None and not os.path.isfile(path):  # reading a pipe would block
        raise DataNotFound(f"{path}: no such image file; expected one, with its path relative to its table or folder")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path if content is None else io.BytesIO(content), formats=FORMATS) as picture:
                if picture.width * picture.height > max_pixels:
                    raise UnsafeData(
                        f"{path}: the image claims {picture.width:,} x {picture.height:,} pixels, more than the"
                        f" {max_pixels:,} allowed; it was not decoded. Remove it, or raise max_pixels"
                    )
                if picture.mode not in MODES:
                    raise DataCorrupt(
                        f"{path}: pixels are of mode {picture.mode}, expected eight bits per channel, to which programs scale"
                        " others differently; convert the images as in training"
                    )
                image = picture.convert("RGB" if channels == 3 else "L")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnsafeData(f"{path}: {error}; it was not decoded. Remove it") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, struct.error, zlib.error, MemoryError) as error:
        if isinstance(error, (UnsafeData, DataCorrupt)):
            raise
        raise DataCorrupt(
            f"{path} is not a complete PNG, JPEG or WebP image ({error}); remove it or fetch it again"
        ) from error
    if size is not None and resize == "stretch":
        image = image.resize((size, size), Image.Resampling.BICUBIC)
    elif size is not None:
        scale = size / min(image.size)
        width, height = (max(size, round(side * scale)) for side in image.size)
        if width * height > max(max_pixels, image.width * image.height):
            raise UnsafeData(
                f"{path}: the image is {image.width:,} x {image.height:,}; with its shorter side brought to {size} it would"
                f" have {width * height:,} pixels, more than the {max_pixels:,} allowed. Remove it, or raise max_pixels"
            )
        left, top = (width - size) // 2, (height - size) // 2
        image = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))
    return np.ascontiguousarray(np.atleast_3d(np.asarray(image)).transpose(2, 0, 1))


def list_classes(folder: Path) -> dict[str, list[Path]]:
    """The image files of every class below `folder`, classes and files in the order of their names."""
    found = {}
    for name in sorted(child.name for child in _seen(folder) if child.is_dir()):
        files = [file for file in _seen(folder / name) if file.suffix.lower() in SUFFIXES and file.is_file()]
        found[name] = sorted(files, key=lambda file: file.name)
        if not found[name]:
            raise DataCorrupt(
                f"{folder / name}: no image in this class folder, expected some of {', '.join(SUFFIXES)}; add them, or remove"
                " the folder"
            )
    if not found:
        raise DataCorrupt(f"{folder}: no class folder in it, expected one for each class with images inside")
    return found


def _seen(folder: Path) -> list[Path]:
    """What is in a folder and is not hidden; a link that leads nowhere is an error, since what it stood for is lost."""
    found = [child for child in folder.iterdir() if not child.name.startswith(".")]
    lost = [child for child in found if child.is_symlink() and not os.path.exists(child)]
    if lost:
        raise DataCorrupt(
            f"{lost[0]} is a link to {os.readlink(lost[0])}, where nothing is; restore what it led to, or remove it"
        )
    return found


class _Found(NamedTuple):
    """A folder with its training and test images by class; `parts`: where they are from."""

    place: Path
    train: dict[str, list[Path]]
    test: dict[str, list[Path]]
    parts: str


def _find(root: Root, folder: str, test_fraction: float, seed: int) -> _Found:
    """The images below `root`, or else below the first of the usual places that has some."""
    seen = []
    searched = places(root, [str(path_of(folder, "folder"))])
    for place in (
        searched
        if root is None
        else [each for each in searched if each.is_relative_to(path_of(root, "root").expanduser())]
    ):
        train, test = (_below(place, names) for names in (TRAIN_NAMES, TEST_NAMES))
        if train is not None and test is not None:
            return _Found(place, list_classes(train), list_classes(test), f"{train.name}/ and {test.name}/")
        if test is None and _has_images(train or place):
            files = list_classes(train or place)
            above = "" if train is None else f"{train.name}/"
            return _Found(place, *_held_out(files, test_fraction, seed), drawn(f"{above}CLASS/", test_fraction, seed))
        lacks = f"lacks a folder {'train' if train is None else ' or '.join(TEST_NAMES)}"
        seen.append(f"  {str(place)[:300]} ({lacks if os.path.isdir(place) else 'no such folder'})")
    if root is not None:
        raise DataNotFound(f"no images by class in {'; '.join(map(str.strip, seen))}; {EXPECTED}")
    raise not_found(
        "An image folder", seen, f"{EXPECTED}, such as an unpacked ImageNet; folder= is its name below the data root."
    )


def _below(place: Path, names: Sequence[str]) -> Path | None:
    """The folder of the first of these names, whatever its capitals."""
    folders = sorted(child for child in place.iterdir() if child.is_dir()) if os.path.isdir(place) else []
    return next((child for name in names for child in folders if child.name.lower() == name), None)


def _has_images(folder: Path) -> bool:
    return os.path.isdir(folder) and any(file.suffix.lower() in SUFFIXES for file in folder.glob("*/*"))


def by_class(folder: Path) -> bool:
    """Whether the training images of `folder` lie in a folder of their own, one folder per class."""
    train = _below(folder, TRAIN_NAMES)
    return train is not None and _has_images(train)


def drawn(source: str, fraction: float, seed: int) -> str:
    """What is said of test items that were not marked as such."""
    return f"{source}, of which {100 * fraction:g} % were drawn as test items (seed {seed})"


def _held_out(
    files: dict[str, list[Path]], fraction: float, seed: int
) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """The files of each class in two parts, the second with `fraction` of them."""
    y = torch.tensor([label for label, paths in enumerate(files.values()) for _ in paths])
    flat = [(name, path) for name, paths in files.items() for path in paths]
    train, test = (
        {name: [flat[k][1] for k in index.tolist() if flat[k][0] == name] for name in files}
        for index in spread(y, fraction, seed)
    )
    return train, test


@DATASETS.register("image-folder")
def image_folder(
    *,
    root: Root = None,
    seed: int = 0,
    folder: str = ".",
    image_size: Count | None = None,
    resize: Literal["crop", "stretch"] = "crop",
    classes: Classes = None,
    max_per_class: Count | None = None,
    normalise: Normalise = "standard",
    max_pixels: Count = MAX_PIXELS,
    channels: Literal[1, 3] = 3,
    test_fraction: Tolerance = 0.2,
) -> Split:
    """An image folder: x float32 (n, channels, h, w), y the place of the class folder in the order of names.

    `folder` is looked for below `root`, or without one below $NTKSCOPE_DATA and the cache. Of class folders that are not in
    `train/` and `test/`, `test_fraction` of each class are test items, drawn by `seed`; `options["parts"]` says which it was.
    `normalise="standard"`: ImageNet's constants for three channels, values in [0, 1] for one. Without `image_size` all images
    must be of one size. Each part's `extras["path"]` has the file of every image below the folder, `train/snake/a.png`.
    `max_per_class` takes that many of each class and part, drawn by `seed`, and only those are decoded. All images are held
    in memory, a byte per pixel and channel while reading, then four.
    """
    if root is None and folder == ".":
        raise DataNotFound(
            f"got no folder of images; expected root='photos/' ({EXPECTED}), or folder=, its name below the data root"
        )
    place, train, test, parts = _find(root, folder, test_fraction, seed)
    names = list(train)
    if unknown := sorted(set(test) - set(train)):
        raise DataCorrupt(
            f"{place}: test class {unknown[0]!r} is not among those of the training images: {', '.join(names)}"
        )
    kept = resolve_classes(classes, names)

    def read(which: str, files: dict[str, list[Path]]) -> Images:
        paths, labels = list[Path](), list[int]()
        for label in kept:
            of_class = files.get(names[label], [])
            if max_per_class is not None and max_per_class < len(of_class):
                order = numpy_generator(seed, "image-folder", which, names[label]).permutation(len(of_class))
                of_class = [of_class[i] for i in sorted(order[:max_per_class])]
            paths += of_class
            labels += [label] * len(of_class)
        named = np.array([_named(path, place) for path in paths], dtype=np.str_)
        images = stack(
            paths, partial(read_image, size=image_size, resize=resize, max_pixels=max_pixels, channels=channels)
        )
        return Images(images, np.array(labels, np.int64), extras={"path": named})

    options = Subset(STANDARD[channels], seed, classes, normalise)
    split = image_split("image-folder", read("train", train), read("test", test), names, options)
    return split.replace(options={**split.options, "parts": parts})


def _named(path: Path, folder: Path) -> str:
    """The path below `folder`, the same on every system; bytes that are no text become question marks."""
    return path.relative_to(folder).as_posix().encode("utf-8", "replace").decode()


def stack(paths: Sequence[P], read: Callable[[P], np.ndarray]) -> UInt8[np.ndarray, "n c h w"]:
    """All images in one array; they must be of one size."""
    if not paths:
        raise DataCorrupt("no training or no test image of the requested classes; expected some of each")
    first = read(paths[0])
    needed = FLOATS * len(paths) * first.size
    if needed > (
        held := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else needed
    ):
        raise MemoryBudgetError(
            f"{len(paths):,} images of {first.shape[2]}x{first.shape[1]} need {needed / 2**30:,.1f} GiB, and the machine has"
            f" {held / 2**30:,.1f} GiB; pass a smaller image_size= or fewer images (max_per_class= of an image folder)"
        )
    images = np.empty((len(paths), *first.shape), np.uint8)
    for place, path in enumerate(paths):
        image = read(path)
        if image.shape != first.shape:
            raise UsageError(
                f"{path} is {image.shape[2]}x{image.shape[1]} and {paths[0]} is {first.shape[2]}x{first.shape[1]};"
                " pass image_size= to bring all images to one size (--data-option image_size=32)"
            )
        images[place] = image
    return images
