"""What tests of real data share: the mark that needs the real files, and writers of small files in their formats."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")

needs_data = [
    pytest.mark.data,
    pytest.mark.skipif(not os.environ.get("NTKSCOPE_DATA"), reason="set NTKSCOPE_DATA to the folder of the real data"),
]


def data_root() -> Path:
    return Path(os.environ["NTKSCOPE_DATA"])


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx_layout(folder: Path, train: int = 40, test: int = 20, compressed: bool = True) -> None:
    """Four small IDX files: random images, labels 0 ... 9 in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for which, n in (("train", train), ("t10k", test)):
        images = random.integers(0, 256, (n, 28, 28), np.uint8)
        labels = np.arange(n, dtype=np.uint8) % 10
        for name, array in ((f"{which}-images-idx3-ubyte", images), (f"{which}-labels-idx1-ubyte", labels)):
            content = idx_bytes(array)
            (folder / (name + ".gz" if compressed else name)).write_bytes(
                gzip.compress(content, 1) if compressed else content
            )


def python2_batch(labels: list[int], pixels: np.ndarray) -> bytes:
    """A CIFAR-10 batch as Python 2 pickled it: protocol 2, byte strings, `numpy.core.multiarray`."""

    def integer(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x04cnumpy\nndarray\nq\x05K\x00\x85q\x06U\x01b\x87q\x07Rq\x08"
        b"(K\x01" + integer(pixels.shape[0]) + integer(pixels.shape[1]) + b"\x86q\x09"
        b"cnumpy\ndtype\nq\x0aU\x02u1q\x0bK\x00K\x01\x87q\x0cRq\x0d"
        b"(K\x03U\x01|q\x0eNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tbq\x0f"
        b"\x89T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"q\x10tb"
    )
    names = b"".join(b"U\x08" + f"{place:04d}.png".encode() for place in range(len(labels)))
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03"
        b"U\x06labels](" + b"".join(map(integer, labels)) + b"eU\x04data" + array + b"U\x09filenames](" + names + b"eu."
    )


def write_cifar_pickles(folder: Path, records: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True)
    for batch, content in records.items():
        (folder / batch).write_bytes(python2_batch(content[:, 0].tolist(), np.ascontiguousarray(content[:, 1:])))


def write_cifar_binary(folder: Path, records: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True)
    for batch, content in records.items():
        (folder / f"{batch}.bin").write_bytes(content.tobytes())


def small_cifar_records(n: int = 30) -> dict[str, np.ndarray]:
    """Six batches of `n` random images with labels 0 ... 9 in turn."""
    random = np.random.default_rng(0)
    records = {batch: random.integers(0, 256, (n, 3073), np.uint8) for batch in BATCHES}
    for content in records.values():
        content[:, 0] = np.arange(n) % 10
    return records
