"""Fashion-MNIST, 60,000 and 10,000 images of 28x28 in ten classes of clothing. Xiao, Rasul, Vollgraf (2017)."""

from __future__ import annotations

from ntkscope.core import Split
from ntkscope.core.checked import Count
from ntkscope.data._files import Root, find_folder, places
from ntkscope.data.mnist import alternatives, read_layout
from ntkscope.data.normalise import Normalise
from ntkscope.data.registry import DATASETS
from ntkscope.data.subsets import Classes, Images, class_subset, image_split

NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
STANDARD = ((0.2860,), (0.3530,))
SYSTEM = "/usr/share/datasets/fashion-mnist"  # Debian's package dataset-fashion-mnist
SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
REMEDY = (
    "on Debian and Ubuntu `apt-get install dataset-fashion-mnist`; elsewhere put the four files of"
    " https://github.com/zalandoresearch/fashion-mnist (data/fashion) into a folder fashion-mnist/."
)


@DATASETS.register("fashion-mnist")
def fashion_mnist(
    *,
    root: Root = None,
    seed: int = 0,
    classes: Classes = None,
    max_train: Count | None = None,
    max_test: Count | None = None,
    normalise: Normalise = "standard",
    verify: bool = True,
) -> Split:
    """Fashion-MNIST: x float32 (n, 1, 28, 28), y 0 ... 9; by default `(byte/255 - 0.2860) / 0.3530`.

    Options as for `ntkscope.data.mnist.mnist`. About 1 s and 0.3 GB for everything.
    """
    searched = places(root, ["fashion-mnist", "fashion_mnist", "FashionMNIST/raw"], [SYSTEM])
    folder = find_folder("Fashion-MNIST", searched, [alternatives(name) for name in SHA256], REMEDY)
    train, test = read_layout(folder, SHA256 if verify else None)
    return image_split(
        "fashion-mnist",
        Images(*train, max_train),
        Images(*test, max_test),
        NAMES,
        standard=STANDARD,
        seed=seed,
        classes=classes,
        normalise=normalise,
    )


fmnist2 = class_subset(
    "fmnist2",
    fashion_mnist,
    (0, 1),
    """FMNIST2, the two-class task: T-shirt against trouser, the first two labels, unless `classes` says otherwise.

    The publications that use it do not say which two classes they took. Options as for `fashion_mnist`.
    """,
)
