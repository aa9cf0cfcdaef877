"""CoLA and Sentiment140: the real files, small ones in their format, and damaged ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

import ntkscope.data
from contracts.dataset import DatasetContract, given
from contracts.real_data import data_root, needs_data
from ntkscope.core import Split
from ntkscope.core.errors import DataCorrupt

COLA_FILES = ("in_domain_train.tsv", "in_domain_dev.tsv", "out_of_domain_dev.tsv")


def write_cola(folder: Path, **changes: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in COLA_FILES:
        rows = [f"gj04\t{k % 2}\t{'*' if k % 2 == 0 else ''}\tSentence {k} of {name}." for k in range(12)]
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    for name, content in changes.items():
        (folder / f"{name}.tsv").write_bytes(content)


def write_sentiment(folder: Path, train: bytes | None = None, manual: bytes | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tweets = "".join(f"{4 * (k % 2)}\ttweet &quot;{k}&quot; \x85 end\n" for k in range(20))
    (folder / "train_sample_20k.tsv.gz").write_bytes(gzip.compress(tweets.encode() if train is None else train))
    rows = "".join(f'"{2 * (k % 3)}","{k}","Mon May 11","query {k}","user","text, ""{k}"""\n' for k in range(9))
    (folder / "testdata.manual.2009.06.14.csv").write_bytes(rows.encode() if manual is None else manual)


class SmallFiles(DatasetContract):
    supports_dtype = False

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def files(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        root = tmp_path_factory.mktemp("text")
        write_cola(root / "cola")
        write_sentiment(root / "sentiment140")
        cls.root = str(root)


class TestSmallCola(SmallFiles):
    name = "cola"
    options = given(verify=False, test="out-of-domain", max_train=6)
    classes = 2
    sizes = given(train=6, validation=12, test=12)
    balance = 0.0

    def check_defining_property(self, split: Split) -> None:
        assert split.test.x[3] == "Sentence 3 of out_of_domain_dev.tsv."
        assert split.test.extras["mark"][:2] == ["*", ""]
        assert split.classes == ("unacceptable", "acceptable")


class TestSmallSentiment140(SmallFiles):
    name = "sentiment140"
    options = given(verify=False, max_train=10)
    classes = 2
    sizes = given(train=10, test=6)
    balance = 0.0

    def check_defining_property(self, split: Split) -> None:
        assert split.test.x[:2] == ['text, "0"', 'text, "2"']
        assert split.test.y[:2].tolist() == [0, 1]
        assert split.test.extras["query"][:2] == ["query 0", "query 2"]
        assert all(
            text.endswith("&quot; \x85 end") for text in split.train.x
        )  # raw: entities kept, lines end at \n alone


class TestRealFiles:
    pytestmark = needs_data

    def test_cola(self) -> None:
        split = ntkscope.data.load("cola")
        assert split.train.x[0] == "Our friends won't buy this analysis, let alone the next one we propose."
        assert torch.bincount(split.train.y).tolist() == [2528, 6023]
        assert torch.bincount(split.test.y).tolist() == [162 + 162, 365 + 354]
        assert len(set(split.train.extras["source"])) == 17
        assert set(split.train.extras["mark"]) >= {"", "*"}
        assert all(isinstance(sentence, str) and sentence for sentence in split.train.x)

    def test_sentiment140(self) -> None:
        split = ntkscope.data.load("sentiment140")
        assert torch.bincount(split.train.y).tolist() == [9942, 10_057]
        assert torch.bincount(split.test.y).tolist() == [177, 182]
        assert any("&quot;" in text for text in split.train.x)
        assert not set(split.train.x) & set(split.test.x)

    def test_cola_development_files(self) -> None:
        sizes = {"both": (1043, None), "in-domain": (527, 516), "out-of-domain": (516, 527)}
        for test, (n, validation) in sizes.items():
            split = ntkscope.data.load("cola", test=test, max_train=100)
            assert len(split.test) == n
            assert (split.validation and len(split.validation)) == validation
            assert torch.bincount(split.train.y).tolist() == [30, 70]
        assert len(set(split.test.extras["source"])) == 6
        assert not set(split.test.extras["source"]) & set(split.train.extras["source"])

    def test_neutral_tweets(self) -> None:
        split = ntkscope.data.load("sentiment140", neutral=True)
        assert split.classes == ("negative", "neutral", "positive")
        assert torch.bincount(split.test.y).tolist() == [177, 139, 182]
        assert torch.bincount(split.train.y).tolist() == [9942, 0, 10_057]

    def test_time_confounded_tweets_come_with_a_warning(self) -> None:
        with pytest.warns(UserWarning, match=r"label follows from topics of the day.*prefer train='sample'"):
            split = ntkscope.data.load("sentiment140", train="time-confounded")
        assert torch.bincount(split.train.y).tolist() == [50_000, 50_000]

    def test_flipped_byte(self, tmp_path: Path) -> None:
        folder = tmp_path / "cola"
        folder.mkdir()
        for name in COLA_FILES:
            content = bytearray((data_root() / "cola" / name).read_bytes())
            content[-5] ^= 1 if name == "in_domain_dev.tsv" else 0
            (folder / name).write_bytes(content)
        with pytest.raises(DataCorrupt, match=r"in_domain_dev\.tsv.*expected 77176f6a03faa5a1"):
            ntkscope.data.load("cola", root=str(tmp_path))
        assert len(ntkscope.data.load("cola", root=str(tmp_path), verify=False).test) == 1043


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"gj04\t1\t\tGood.\ngj04\t2\t\tBad.\n", r"in_domain_dev\.tsv, line 2: got label '2', expected 0 .* or 1"),
        (b"gj04\t\t\tNo label.\n", r"line 1: got label ''"),
        (b"gj04\t1\tTwo tabs.\n", r"line 1: got 3 columns, expected 4 \(source, label, mark, sentence\)"),
        (b"", r"line 1: got 1 columns"),
        (b"gj04\t1\t\tna\xefve\n", r"in_domain_dev\.tsv: byte 10 \(line 1\) is 0xef, which is not UTF-8"),
    ],
)
def test_damaged_cola(root: Path, content: bytes, message: str) -> None:
    write_cola(root / "cola", in_domain_dev=content)
    with pytest.raises(DataCorrupt, match=message):
        ntkscope.data.load("cola", root=str(root), verify=False)


@pytest.mark.parametrize(
    ("train", "manual", "message"),
    [
        (b"0\tbad\n2\tneutral\n", None, r"train_sample_20k\.tsv\.gz, row 2: got polarity '2', expected one of 0, 4"),
        (b"0 no tab\n", None, r"row 1: got 1 columns, expected 2"),
        (b"0\tna\xefve\n", None, r"byte 4 \(line 1\) is 0xef, which is not UTF-8"),
        (None, b'"1","0","d","q","u","t"\n', r"row 1: got polarity '1', expected one of 0, 2, 4"),
        (None, b'"4","0","d","q","u"\n', r"testdata\.manual.*row 1: got 5 columns, expected 6"),
    ],
)
def test_damaged_sentiment140(root: Path, train: bytes | None, manual: bytes | None, message: str) -> None:
    write_sentiment(root / "sentiment140", train, manual)
    with pytest.raises(DataCorrupt, match=message):
        ntkscope.data.load("sentiment140", root=str(root), verify=False)
