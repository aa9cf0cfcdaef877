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
        r"column 'review' holds text; to use the numbers: .*input=\('id',\).*; to use a text: .*input=review",
    ),
    "no label": ([*ROWS, ["20", "more", ""]], HEAD, r"item 21: nothing in column 'label'"),
    "ragged": ([*ROWS, ["20"]], HEAD, r"item 21: got 1 columns, expected 3"),
    "one item": (ROWS[:1], HEAD, r"1 training and 0 test items"),
    "no item": ([], HEAD, r"has 1 rows; expected a header"),
    "long": ([["0", "a" * 200_000, "good"]], HEAD, r"not a table of columns \(field larger"),
    "no image": ([["0", "no.png", "good"]] * 9, HEAD, r"no\.png: no such image file"),
    "no text": (
        [["0", "p/1.bmp", "good"]] * 9,
        ["id", "file", "label"],
        r"'p/1\.bmp' in column 'file'; expected texts",
    ),
    "a number that is missing": (
        [["0", "text", "NA" if k == 3 else f"{k / 7}"] for k in range(9)],
        HEAD,
        r"item 4: the label is NA, and others are numbers",
    ),
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
    with pytest.raises(UsageError, match=r'pip install "ntkscope\[arrow\]"'):
        load(tmp_path)


FEATURES = {"text": {"dtype": "string", "_type": "Value"}, "label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}


def arrow(items: dict[str, Any], features: dict[str, Any]) -> Any:
    """A table with what Hugging Face writes beside the columns."""
    table = pytest.importorskip("pyarrow").table(items)
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def save_to_disk(folder: Path, table: Any, shards: int = 1) -> Path:
    """What `Dataset.save_to_disk` of Hugging Face's datasets 5.2 writes."""
    pyarrow = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{k:05d}-of-{shards:05d}.arrow" for k in range(shards)]
    size = -(-len(table) // shards)
    for k, name in enumerate(names):
        with pyarrow.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table.slice(k * size, size))
    (folder / "dataset_info.json").write_text(json.dumps({"citation": "", "features": FEATURES}))
    files = [{"filename": name} for name in names]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_format_type": None, "_split": None}))
    return folder


def reviews(part: str, n: int, labels: list[Any] | None = None) -> Any:
    return arrow({"text": [f"{part} {k}" for k in range(n)], "label": labels or [k % 2 for k in range(n)]}, FEATURES)


@pytest.mark.parametrize("form", ["parquet", "save_to_disk", "file"])
def test_a_hugging_face_data_set_on_disk(tmp_path: Path, form: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for part, n in (("train", 6), ("test", 4)):
        (tmp_path / part).mkdir()
        if form == "parquet":
            parquet.write_table(reviews(part, n), tmp_path / part / "0000.parquet")
        elif form == "file":
            with pyarrow.ipc.new_file(str(tmp_path / part / "0.arrow"), reviews(part, n).schema) as writer:
                writer.write_table(reviews(part, n))
        else:
            save_to_disk(tmp_path / part, reviews(part, n), shards=2)
            (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    split = load(tmp_path)
    assert (len(split.train), len(split.test), split.classes) == (6, 4, ("neg", "pos"))
    assert split.test.x[3] == "test 3"
    assert split.test.y.tolist() == [0, 1, 0, 1]
    assert len({*split.train.extras["id"], *split.test.extras["id"]}) == 10
    for path in [*tmp_path.glob("*/*.arrow"), *tmp_path.glob("*/*.parquet")]:
        path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataCorrupt, match="not a complete table"):
        load(tmp_path)


def test_shards_are_those_that_are_listed(tmp_path: Path) -> None:
    save_to_disk(tmp_path, reviews("earlier", 30), shards=3)
    save_to_disk(tmp_path, reviews("now", 20))
    split = load(tmp_path)
    assert (len(split.train), len(split.test)) == (16, 4)
    assert all(text.startswith("now") for text in split.train.x + split.test.x)
    (tmp_path / "data-00001-of-00003.arrow").unlink()
    save_to_disk(tmp_path, reviews("now", 30), shards=3)
    (tmp_path / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(DataCorrupt, match=r"lists data-00001-of-00003\.arrow, which is not there"):
        load(tmp_path)
    (tmp_path / "state.json").write_text("[]")
    with pytest.raises(DataCorrupt, match="not what save_to_disk writes"):
        load(tmp_path)


def test_a_test_part_without_labels_is_passed_over(tmp_path: Path) -> None:
    for part, labels in (("train", None), ("validation", None), ("test", [-1] * 4)):
        save_to_disk(tmp_path / part, reviews(part, 4, labels))
    split = load(tmp_path)
    assert split.test.x[0] == "validation 0"
    assert "validation/data" in split.options["parts"]
    write(tmp_path / "kaggle" / "train.csv", ROWS)
    write(tmp_path / "kaggle" / "test.csv", [["0", "text"]], ["id", "text"])
    with pytest.raises(UsageError, match=r"test\.csv has no labels; expected some: pass .*train\.csv alone"):
        load(tmp_path / "kaggle")
    assert len(load(tmp_path / "kaggle" / "train.csv").test) == 4


@pytest.mark.parametrize("form", ["struct", "bytes", "path"])
def test_images_in_a_data_set(tmp_path: Path, form: str) -> None:
    files = []
    for k in range(10):
        Image.new("L", (4, 4), 255 * (k % 2)).save(tmp_path / f"{k}.png")
        files.append((tmp_path / f"{k}.png").read_bytes())
    structs = {
        "struct": [{"bytes": content, "path": None} for content in files],
        "bytes": files,
        "path": [{"bytes": None, "path": str(tmp_path / f"{k}.png")} for k in range(10)],
    }
    items = {"image": structs[form], "label": [k % 2 for k in range(10)]}
    features = {"image": {"_type": "Image"}, "label": {"names": ["dark", "light"], "_type": "ClassLabel"}}
    split = load(save_to_disk(tmp_path / "saved", arrow(items, features)), channels=1)
    assert (split.train.x.shape, split.test.x.shape) == ((8, 1, 4, 4), (2, 1, 4, 4))
    for part in (split.train, split.test):
        assert torch.equal(part.x[:, 0, 0, 0].long(), part.y)
    empty = [{"bytes": None, "path": None}] * 10
    with pytest.raises(DataCorrupt, match="item 1: nothing in column 'image'"):
        load(save_to_disk(tmp_path / "saved", arrow({**items, "image": empty}, features)))


def test_numbers_are_the_input_where_all_other_columns_are(tmp_path: Path) -> None:
    rows = [[f"{k}", f"{k / 2}", f"{k / 4}"] for k in range(20)]
    path = write(tmp_path / "t.csv", rows, ["age", "target", "bmi"])
    split = load(path)
    assert (split.options["input"], split.options["label"]) == (("age", "bmi"), "target")
    assert torch.equal(split.train.x, torch.stack([2 * split.train.y, split.train.y / 2], dim=1))
    assert float(split.test.y.max() - split.test.y.min()) > 5  # items of all the range
    assert load(path, input=("bmi",)).train.x.shape == (16, 1)
    assert load(path, input="bmi", label="age").train.y.dtype == torch.int64
    with pytest.raises(DataCorrupt, match="item 3: nothing in column 'bmi'"):
        load(write(path, [*rows[:2], ["1", "2", ""], *rows], ["age", "target", "bmi"]))
    table = arrow({"vector": [[k, 1.0, 2.0] for k in range(10)], "label": [k / 3 for k in range(10)]}, {})
    assert load(save_to_disk(tmp_path / "saved", table)).train.x.shape == (8, 3)
    towns = [["1", "Bern", "2", "0.5"], ["3", "Rome", "4", "0.7"]]
    with pytest.raises(UsageError, match=r"""column 'city' holds text; to use the .* "input=\('age', 'bmi'\)\""""):
        load(write(tmp_path / "towns.csv", towns, ["age", "city", "bmi", "target"]))
    with pytest.raises(UsageError, match="no numbers in column 'text'"):
        load(write(tmp_path / "texts.csv", ROWS), input=("id", "text"))


ODD: dict[str, tuple[str, list[str]]] = {
    "semicolons": ("text;label\n", ["a, b;good\n", "c, d;bad\n"]),
    "capitals": ("Text,LABEL\n", ["a,good\n", "b,bad\n"]),
    "spaces": ("text , label\n", ["a,good\n", "b,bad\n"]),
    "byte order mark": ("\ufefftext,label\n", ["a,good\n", "b,bad\n"]),
    "carriage returns": ("text,label\r", ["a,good\r", "b,bad\r"]),
    "a text that ends as a path": ("text,label\n", ["see a.png,good\n", "b,bad\n"]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tables(tmp_path: Path, name: str) -> None:
    head, rows = ODD[name]
    (tmp_path / "t.csv").write_text(head + "".join(rows * 10), newline="")
    split = load(tmp_path / "t.csv")
    assert (len(split.train), len(split.test), split.classes) == (16, 4, ("bad", "good"))
    assert set(split.train.x) == {row.strip().rpartition(";" if name == "semicolons" else ",")[0] for row in rows}


@pytest.mark.parametrize("kind", [list, dict], ids=["csv", "parquet"])
def test_columns_named_twice(tmp_path: Path, kind: type) -> None:
    path = write(tmp_path / "t.csv", [["a", "good", "b"]] * 9, ["text", "label", "text"])
    if kind is dict:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "t.parquet"
        parquet.write_table(pyarrow.table([["a"], ["good"], ["b"]], names=["text", "label", "text"]), path)
    with pytest.raises(DataCorrupt, match="has 2 columns 'text', expected one"):
        load(path)


def test_a_folder_of_several_data_sets_is_refused(tmp_path: Path) -> None:
    for name in ("de", "en"):
        write(tmp_path / name / "train.csv", ROWS)
    with pytest.raises(UsageError, match=r"tables in several folders, such as de/train\.csv to en/train\.csv"):
        load(tmp_path)


def test_a_pipe_instead_of_an_image(tmp_path: Path) -> None:
    __import__("os").mkfifo(tmp_path / "a.png")
    with pytest.raises(DataNotFound, match=r"a\.png: no such image file"):
        load(write(tmp_path / "t.csv", [["a.png", "good"]] * 9, ["file", "label"]))
