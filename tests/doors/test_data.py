"""Bad data files: refused before anything of the size they claim is set aside, and never waited for."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from doors.bounds import NODES, refused
from ntkscope.data import _pickle, cifar10, cola, mnist, sentiment140
from ntkscope.data._idx import read_idx
from ntkscope.data._npz import read_npz
from ntkscope.data.image_folder import image_folder, read_image

ZEROS = zlib.compress(b"\0" * 4096)


def png(width: int, height: int, *, depth: int = 8, colour: int = 0, body: bytes = ZEROS, end: bool = True) -> bytes:
    """A PNG file with a header of our choice."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    tail = chunk(b"IEND", b"") if end else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + tail


def drawn(kind: str, mode: str = "RGB", size: tuple[int, int] = (4, 4)) -> bytes:
    out = io.BytesIO()
    Image.new(mode, size).save(out, format=kind)
    return out.getvalue()


IMAGES: dict[str, bytes] = {
    "empty": b"",
    "text": b"an image",
    "zeros": b"\0" * 300,
    "400,000 x 1": png(400_000, 1, body=zlib.compress(b"\0" * 400_001)),
    "1 x 400,000": png(1, 400_000, body=zlib.compress(b"\0" * 800_000)),
    "2^31 x 1": png((1 << 31) - 1, 1),
    "2^31 x 2^31": png((1 << 31) - 1, (1 << 31) - 1),
    "30,000 x 30,000": png(30_000, 30_000),
    "7,000 x 7,000 of 4 kB": png(7_000, 7_000),
    "0 x 0": png(0, 0),
    "0 x 9": png(0, 9),
    "no end": png(9, 9, end=False)[:-30],
    "wrong pixels": png(9, 9, body=b"zlib?"),
    "sixteen bits": png(9, 9, depth=16),
    "unknown colours": png(9, 9, colour=5),
    "unknown depth": png(9, 9, depth=3),
    "half a PNG": drawn("PNG")[:40],
    "half a JPEG": drawn("JPEG")[:100],
    "head of a JPEG": b"\xff\xd8\xff\xe0" + b"\0" * 20,
    "half a WebP": drawn("WEBP")[:20],
    "a WebP of 2^14": b"RIFF\x24\x00\x00\x00WEBPVP8L\x10\x00\x00\x00\x2f" + b"\xff" * 16,
    "a GIF": drawn("GIF"),
    "a BMP": drawn("BMP"),
    "a TIFF": drawn("TIFF"),
    "a PPM of gigabytes": b"P6 60000 60000 255\n",
    "an EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    "a pickle": pickle.dumps([1]),
    "an SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("resize", ["crop", "stretch"])
def test_images(tmp_path: Path, name: str, resize: str) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(IMAGES[name])
    if resize == "stretch" and name.endswith("400,000") | name.startswith("400,000"):
        assert read_image(path, 32, resize).shape == (3, 32, 32)  # harmless when both sides are scaled
        return
    refused(lambda: read_image(path, 224, resize))


def idx(*shape: int, kind: int = 8, zeros: int = 0, body: bytes | None = None) -> bytes:
    head = struct.pack(f">HBB{len(shape)}I", zeros, kind, len(shape), *shape)
    return head + (b"\0" * int(np.prod(shape)) if body is None else body)


IDX: dict[str, bytes] = {
    "empty": b"",
    "three bytes": b"\0\0\x08",
    "no lengths": b"\0\0\x08\x03",
    "2^32 images": idx(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, body=b""),
    "more than it holds": idx(1000, 28, 28, body=b"\0" * 784),
    "less than it holds": idx(1, 2, 2, body=b"\0" * 5),
    "one axis": idx(3),
    "four axes": idx(1, 1, 1, 1),
    "floats": idx(1, 2, 2, kind=0x0D),
    "no zeros": idx(1, 2, 2, zeros=7),
    "a pickle": pickle.dumps(np.zeros(3)),
}


@pytest.mark.parametrize("name", IDX)
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_idx(tmp_path: Path, name: str, packed: str) -> None:
    path = tmp_path / f"images{packed}"
    path.write_bytes(gzip.compress(IDX[name]) if packed else IDX[name])
    refused(lambda: read_idx(path, 3))


def bomb(suffix: str, size: int = 1 << 25) -> bytes:
    zeros = b"\0" * size
    return gzip.compress(zeros, 9) if suffix == ".gz" else lzma.compress(zeros, preset=0)


PACKED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "gzip bomb": (".gz", lambda: bomb(".gz")),
    "xz bomb": (".xz", lambda: bomb(".xz")),
    "not gzip": (".gz", lambda: b"plain text"),
    "not xz": (".xz", lambda: b"plain text"),
    "half of gzip": (".gz", lambda: gzip.compress(os.urandom(5000))[:2000]),
    "half of xz": (".xz", lambda: lzma.compress(os.urandom(5000))[:2000]),
    "damaged gzip": (".gz", lambda: gzip.compress(b"a" * 5000)[:-8] + b"\0" * 8),
    "empty gzip": (".gz", lambda: b""),
    "empty xz": (".xz", lambda: b""),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_files(tmp_path: Path, name: str) -> None:
    suffix, make = PACKED[name]
    (tmp_path / f"a{suffix}").write_bytes(make())
    refused(lambda: read_idx(tmp_path / f"a{suffix}", 1))


def npy(descr: str = "'|u1'", shape: str = "(4,)", version: bytes = b"\x01\x00", body: bytes = b"\0" * 4) -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    width = 2 if version[0] == 1 else 4
    return b"\x93NUMPY" + version + len(head).to_bytes(width, "little") + head + body


def npz(content: bytes, name: str = "a.npy", compress: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compress) as made:
        made.writestr(name, content)
    return out.getvalue()


NPZ: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"an archive",
    "half": lambda: npz(npy())[:-30],
    "no such array": lambda: npz(npy(), "b.npy"),
    "other type": lambda: npz(npy("'<f8'")),
    "other shape": lambda: npz(npy(shape="(4, 1)")),
    "gigabytes": lambda: npz(npy(shape="(4294967296, 1024)")),
    "objects": lambda: npz(npy("'|O'")),
    "no magic": lambda: npz(b"x" * 100),
    "version 2": lambda: npz(npy(version=b"\x02\x00")),
    "header of gigabytes": lambda: npz(
        b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * (1 << 26), compress=zipfile.ZIP_DEFLATED
    ),
    "fewer bytes": lambda: npz(npy(body=b"\0")),
    "code in the header": lambda: npz(npy(shape="__import__('os').getcwd()")),
    "a pickle": lambda: npz(pickle.dumps([1])),
    "nested header": lambda: npz(npy(shape="(" * 3000 + ")" * 3000)),
    "wrong checksum": lambda: npz(npy(body=b"abcd")).replace(b"abcd", b"abce"),
}


@pytest.mark.parametrize("name", NPZ)
def test_npz(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.npz").write_bytes(NPZ[name]())
    refused(lambda: read_npz(tmp_path / "a.npz", {"a": ("u1", (4,))}))


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
KIND = b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntb"
PICKLES: dict[str, bytes] = {
    "empty": b"",
    "no end": b"(lp0\n",
    "os.system": b"cos\nsystem\n(S'true'\ntR.",
    "eval": b"c__builtin__\neval\n(S'1'\ntR.",
    "stack global": pickle.dumps(os.getcwd, 4),
    "an instance": b"(S'true'\nios\nsystem\n.",
    "an object": b"(cos\nsystem\nS'true'\no.",
    "a new object": b"\x80\x02cos\nsystem\n)\x81.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent id": b"Pa\n.",
    "a set": pickle.dumps({1}, 4),
    "tuples in tuples": b"(" * 100_000 + b"N" + b"t" * 100_000 + b".",
    "tuples in tuples as a key": b"}N" + b"\x85" * 1_000_000 + b"Ns.",
    "lists in lists": b"](" * 50_000 + b"e" * 50_000 + b".",
    "dicts in dicts": b"}" + b"K\x01}" * 5_000 + b"s" * 5_000 + b".",
    "two at a time": b"N" + b"2\x86" * 100_000 + b".",
    "marks": b"(" * 1_000_000,
    "an array of gigabytes": ARRAY + b"(I1\n(I4294967296\nI1024\nt" + KIND + b"I00\nS'abcd'\ntb.",
    "an array of -1": ARRAY + b"(I1\n(I-1\nI-4\nt" + KIND + b"I00\nS'abcd'\ntb.",
    "an array of objects": ARRAY + b"(I1\n(I1\ntcnumpy\ndtype\n(S'O8'\nI0\nI1\ntRI00\n(lp0\ntb.",
    "an array of texts": ARRAY + b"(I1\n(S'a'\nt" + KIND + b"I00\nS'abcd'\ntb.",
    "a memo of 2^31": b"N" + b"r\xff\xff\xff\x7f" + b".",
    "a put of 2^60": b"Np1152921504606846976\n.",
    "a text of 4 GiB": b"X\xff\xff\xff\xffabc.",
    "bytes of 2^60": b"\x8e" + (1 << 60).to_bytes(8, "little") + b"abc.",
    "a frame of 2^60": b"\x80\x04\x95" + (1 << 60).to_bytes(8, "little") + b"N.",
    "an integer of megabytes": b"L" + b"9" * (1 << 20) + b"L\n.",
    "a long integer": b"\x8b\xff\xff\xff\x7f" + b"\1" * 100 + b".",
    "texts encoded again and again": b"\x80\x02c_codecs\nencode\nq\x00X" + (1 << 16).to_bytes(4, "little") + b"a" * (1 << 16)
    + b"q\x01X\x06\x00\x00\x00latin1q\x02(" + b"h\x00h\x01h\x02\x86R" * 2_000 + b"l.",
    "too little": b"t.",
    "not a pickle": b"\xff\xfe\xfd",
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
def test_pickles(name: str) -> None:
    refused(lambda: _pickle.loads(PICKLES[name]))


@pytest.mark.parametrize("name", ["pipe", "folder", "link to zeros", "zeros"])
def test_data_sets_by_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every reader of a data set, with something else in place of its files."""
    monkeypatch.delenv("NTKSCOPE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = {
        "mnist": [f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")],
        "cola": ["in_domain_train.tsv", "in_domain_dev.tsv", "out_of_domain_dev.tsv"],
        "cifar-10-batches-bin": [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"],
        "cifar-10-batches-py": [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"],
        "cifar10": [f"train_{k}.webp" for k in range(1, 6)] + ["test.webp", "labels.npz"],
        "sentiment140": ["testdata.manual.2009.06.14.csv", "train_sample_20k.tsv.gz"],
    }
    makers = NODES | {"zeros": lambda path: path.write_bytes(b"\0" * 4096)}
    for folder, names in files.items():
        (tmp_path / folder).mkdir()
        for file in names:
            makers[name](tmp_path / folder / file)
    for load in (
        lambda: mnist.mnist(root=tmp_path),
        lambda: cola.cola(root=tmp_path, verify=False),
        lambda: cifar10.cifar10(root=tmp_path, format="binary"),
        lambda: cifar10.cifar10(root=tmp_path, format="pickle"),
        lambda: cifar10.cifar10(root=tmp_path, format="mosaic"),
        lambda: sentiment140.sentiment140(root=tmp_path),
    ):
        refused(load)


def pictures(root: Path) -> Path:
    """An image folder of two classes."""
    for part in ("train", "test"):
        for name in ("a", "b"):
            (root / part / name).mkdir(parents=True)
            for k in range(2):
                (root / part / name / f"{k}.png").write_bytes(drawn("PNG"))
    return root


def sparse(path: Path) -> None:
    with path.open("wb") as handle:
        handle.truncate(3 << 30)


ODD: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "link to nothing": ("train/a/z.png", lambda path: path.symlink_to("nowhere")),
    "link to itself": ("train/a/z.png", lambda path: path.symlink_to(path)),
    "link to a text": ("train/a/z.png", lambda path: path.symlink_to("/etc/passwd")),
    "class that leads nowhere": ("train/c", lambda path: path.symlink_to("nowhere")),
    "class that leads back": ("train/c", lambda path: path.symlink_to(path.parent)),
    "empty": ("train/a/z.webp", lambda path: path.touch()),
    "half": ("train/b/z.png", lambda path: path.write_bytes(drawn("PNG")[:40])),
    "another format": ("train/b/z.png", lambda path: path.write_bytes(drawn("GIF", "P"))),
    "sixteen bits": ("train/b/z.png", lambda path: path.write_bytes(drawn("PNG", "I;16"))),
    "three gigabytes of nothing": ("train/b/z.png", sparse),
    "bomb": ("train/b/z.png", lambda path: path.write_bytes(png(60_000, 60_000))),
}


@pytest.mark.parametrize("name", ODD)
def test_image_folders_with_something_else_among_the_images(tmp_path: Path, name: str) -> None:
    """No image is left out without a word."""
    where, make = ODD[name]
    root = pictures(tmp_path / "images")
    make(root / where)
    assert where.rpartition("/")[2] in refused(lambda: image_folder(root=root))


def test_image_folders_of_links_and_other_files(tmp_path: Path) -> None:
    root = pictures(tmp_path / "images")
    (root / "train" / "a" / "z.png").symlink_to(root / "train" / "b" / "0.png")
    (root / "train" / "c").symlink_to(root / "train" / "b")
    for name in ("README.txt", ".hidden.png", "Thumbs.db"):
        (root / "train" / "a" / name).write_bytes(b"not an image")
    (root / "train" / "a" / "zeros.png").symlink_to("/dev/zero")  # no file, so no image
    (root / "train" / "a" / "folder.png").mkdir()
    with open(os.fsencode(root / "train" / "a") + b"/\xff.png", "wb") as handle:
        handle.write(drawn("PNG"))
    assert image_folder(root=root).train.y.tolist() == [0, 0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "options", [{"root": 5}, {"root": "a\0b"}, {"folder": None}, {"folder": "a\0"}, {"folder": "a" * 5000}]
)
def test_image_folders_by_names_that_are_none(tmp_path: Path, options: dict[str, Any]) -> None:
    refused(lambda: image_folder(**{"root": tmp_path, **options}))
