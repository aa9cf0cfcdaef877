"""Olivetti faces labelled for glasses: 400 grey images of 64x64, ten of each of 40 people. Samaria, Harter (1994)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Int64, UInt8

from ntkscope.core import Split, UsageError, numpy_generator
from ntkscope.core.checked import Tolerance
from ntkscope.core.errors import DataCorrupt
from ntkscope.data._files import Root, check_sha256, find_folder, places
from ntkscope.data._npz import read_npz
from ntkscope.data.normalise import Normalise
from ntkscope.data.registry import DATASETS
from ntkscope.data.subsets import Images, Subset, image_split

FILE = "olivetti_faces_glasses.npz"
SHA256 = "7c2717c6cee78d6022932e66bb50843d691b77665dc87d5066a97f478570a31f"  # of images, person, glasses in a row
STANDARD = ((0.5192,), (0.1637,))
ARRAYS = {"images": ("u1", (400, 64, 64)), "person": ("u1", (400,)), "glasses": ("u1", (400,))}
REMEDY = (
    f"put {FILE} into a folder olivetti/: an archive of images uint8 (400, 64, 64), the AT&T faces in scikit-learn's"
    " order (sklearn.datasets.fetch_olivetti_faces), person uint8 (400,) = 0 ... 39 and glasses uint8 (400,) = 0 or 1."
)


def held_out_people(
    glasses: UInt8[np.ndarray, " n"], person: UInt8[np.ndarray, " n"], fraction: float, seed: int
) -> Int64[np.ndarray, " k"]:
    """About `fraction` of the people who wear glasses always, sometimes and never, of each kind at least one."""
    worn = np.array([glasses[person == who].mean() for who in range(40)])
    chosen: list[int] = []
    for kind, members in enumerate((worn == 1, (worn > 0) & (worn < 1), worn == 0)):
        people = np.flatnonzero(members)
        order = numpy_generator(seed, "olivetti", "people", kind).permutation(len(people))
        chosen.extend(people[order[: max(1, round(fraction * len(people)))]])
    return np.sort(np.array(chosen, dtype=np.int64))


def held_out_images(labels: UInt8[np.ndarray, " n"], fraction: float, seed: int) -> Int64[np.ndarray, " k"]:
    """About `fraction` of the images of every label, whoever is on them."""
    chosen = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = numpy_generator(seed, "olivetti", "images", int(label)).permutation(len(members))
        chosen.append(members[order[: max(1, round(fraction * len(members)))]])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


@DATASETS.register("olivetti")
def olivetti(
    *,
    root: Root = None,
    seed: int = 0,
    target: Literal["glasses", "person"] = "glasses",
    split: Literal["person", "random"] = "person",
    test_fraction: Tolerance = 0.25,
    normalise: Normalise = "standard",
    verify: bool = True,
) -> Split:
    """Olivetti: x float32 (n, 1, 64, 64); y 1 with glasses, or the person; extras `person` and `glasses` per image.

    `split="person"` puts all images of a person on one side, drawn by `seed` from those who wear glasses always (8),
    sometimes (7) and never (25). `split="random"` draws images: then the same people are on both sides and recognising
    them is enough. `target="person"` needs the latter.
    """
    if target == "person" and split == "person":
        raise UsageError("target='person' with split='person' tests on people never seen; pass split='random'")
    folder = find_folder("Olivetti faces with glasses", places(root, ["olivetti"]), [(FILE,)], REMEDY)
    arrays = read_npz(folder / FILE, ARRAYS)
    images, person, glasses = (arrays[name] for name in ARRAYS)
    for name, most in (("person", 39), ("glasses", 1)):
        if len(wrong := np.flatnonzero(arrays[name] > most)):
            raise DataCorrupt(
                f"{folder / FILE}: {name} is {arrays[name][wrong[0]]} at place {wrong[0]}, expected 0 ... {most}"
            )
    if verify:
        check_sha256(b"".join(array.tobytes() for array in (images, person, glasses)), SHA256, str(folder / FILE))

    y = arrays[target]
    if split == "person":
        held_out = np.isin(person, held_out_people(glasses, person, test_fraction, seed))
    else:
        held_out = np.isin(np.arange(400), held_out_images(y, test_fraction, seed))

    def part(mask: np.ndarray) -> Images:
        extras = {"person": person[mask].astype(np.int64), "glasses": glasses[mask].astype(np.int64)}
        return Images(images[mask][:, None], y[mask], extras=extras)

    names = ("no glasses", "glasses") if target == "glasses" else [f"person {who}" for who in range(40)]
    options = Subset(STANDARD, seed, normalise=normalise)
    return image_split("olivetti", part(~held_out), part(held_out), names, options)
