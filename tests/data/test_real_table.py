"""Tables of texts and images: which columns, parts and labels they have; what is broken is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import ntkscope.data
from contracts.dataset import DatasetContract, given
from ntkscope.core import Split, UsageError
from ntkscope.core.errors import DataCorrupt, DataNotFound

HEAD = ["id", "text", "label"]
ROWS = [[f"{k}", f'a "quoted", {word}\ntext {k}', word] for k, word in enumerate(["good", "bad"] * 10)]


def write(path: Path, rows: list[list[str]], head: list[str] = HEAD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([head, *rows])
    return path


def load(root: Path, **options: Any) -> Split:
    return ntkscope.data.load("table", root=root, **options)


class TestTable(DatasetContract):
    name = "table"
    supports_dtype = False
    classes = 2
    sizes = given(train=16, test=4)
    balance = 0.0

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def files(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.root = str(write(tmp_path_factory.mktemp("tables") / "reviews.csv", ROWS))

    def check_defining_property(self, split: Split) -> None:
        assert split.classes == ("bad", "good")
        for part in (split.train, split.test):
            assert all(split.classes[y] in x for x, y in zip(part.x, part.y.tolist()))
            assert all(int(where.split()[-1]) == int(x.split()[-1]) + 1 for x, where in zip(part.x, part.extras["id"]))


@pytest.mark.parametrize("files", [("train.csv", "test.csv"), ("data/train-0.tsv", "data/validation-0.tsv")])
def test_files_named_after_the_parts(tmp_path: Path, files: tuple[str, str]) -> None:
    write(tmp_path / files[0], ROWS[:6])
    write(tmp_path / files[1], ROWS[6:10])
    split = load(tmp_path)
    assert (split.train.x, split.test.x) == ([row[1] for row in ROWS[:6]], [row[1] for row in ROWS[6:10]])


@pytest.mark.parametrize(
    ("labels", "dtype"), [("0 1 2 1", torch.int64), ("-1 1 1 -1", torch.int64), ("0.5 1 2 3", torch.float32)]
)
def test_numbers_stay_the_numbers_they_are(tmp_path: Path, labels: str, dtype: torch.dtype) -> None:
    rows = [["", f"text {k}", label] for k, label in enumerate(labels.split())]
    for name in ("train.csv", "test.csv"):
        write(tmp_path / name, rows)
    split = load(tmp_path)
    assert torch.equal(split.train.y, torch.tensor([float(label) for label in labels.split()]).to(dtype))
    assert split.classes == ()


@pytest.mark.parametrize("channels", [1, 3])
def test_paths_of_images(tmp_path: Path, channels: int) -> None:
    (tmp_path / "images").mkdir()
    for k in range(10):
        Image.new("L", (4, 4), 51 * (k % 2)).save(tmp_path / "images" / f"{k}.png")
    rows = [[f"images/{k}.png", ["dark", "light"][k % 2]] for k in range(10)]
    split = load(write(tmp_path / "labels.csv", rows, ["file_name", "class"]), channels=channels, normalise="unit")
    assert split.train.x.shape == (8, channels, 4, 4)
    assert torch.equal(split.train.x[:, 0, 0, 0] > 0.1, split.classes.index("light") == split.train.y)
    assert split.train.extras["id"][0].startswith("images/")


REFUSED: dict[str, tuple[list[list[str]], list[str], str]] = {
    "no such column": (
        ROWS,
        ["id", "review", "label"],
        r"has the columns id, review, label; expected one of text, .*input=",
    ),
    "no label": ([*ROWS, ["20", "more", ""]], HEAD, r"item 21: nothing in column 'label'"),
    "ragged": ([*ROWS, ["20"]], HEAD, r"item 21: got 1 columns, expected 3"),
    "one item": (ROWS[:1], HEAD, r"1 training and 0 test items"),
    "no item": ([], HEAD, r"has 1 rows; expected a header"),
    "long": ([["0", "a" * 200_000, "good"]], HEAD, r"not a table of columns \(field larger"),
    "numbers": ([["0", "no.png", "good"]] * 9, HEAD, r"no\.png"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(tmp_path: Path, name: str) -> None:
    rows, head, message = REFUSED[name]
    with pytest.raises((UsageError, DataCorrupt, DataNotFound), match=message):
        load(write(tmp_path / "t.csv", rows, head))


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"no table at root=.*expected a file \.csv"):
        load(tmp_path)
    write(tmp_path / "train.csv", ROWS)
    write(tmp_path / "test.csv", [["0", "text", "ugly"]])
    with pytest.raises(DataCorrupt, match="'ugly' is not among those of training items: bad, good"):
        load(tmp_path)
    assert len(load(tmp_path / "train.csv", input="id").train.x[0]) <= 2


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match="pip install pyarrow"):
        load(tmp_path)


@pytest.mark.parametrize("form", ["parquet", "stream", "file"])
def test_a_hugging_face_data_set_on_disk(tmp_path: Path, form: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    features = {"text": {"dtype": "string"}, "label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for part, n in (("train", 6), ("test", 4)):
        table = pyarrow.table({"text": [f"{part} {k}" for k in range(n)], "label": [k % 2 for k in range(n)]})
        table = table.replace_schema_metadata(metadata)
        (tmp_path / part).mkdir()
        if form == "parquet":
            parquet.write_table(table, tmp_path / part / "0000.parquet")
            continue
        kind = pyarrow.ipc.new_stream if form == "stream" else pyarrow.ipc.new_file
        with kind(str(tmp_path / part / "data-00000-of-00001.arrow"), table.schema) as writer:
            writer.write_table(table)
    split = load(tmp_path)
    assert (len(split.train), len(split.test), split.classes) == (6, 4, ("neg", "pos"))
    assert split.test.x[3] == "test 3"
    for path in tmp_path.glob("*/*"):
        path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataCorrupt, match="not a complete table"):
        load(tmp_path)
