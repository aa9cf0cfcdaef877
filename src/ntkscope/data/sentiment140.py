"""Sentiment140 tweets, labelled by their emoticons (train) and by hand (test). Go, Bhayani, Huang (2009)."""

from __future__ import annotations

import csv
import io
import warnings
from pathlib import Path
from typing import Annotated

import torch

from ntkscope.core import Part, Split
from ntkscope.core.checked import Count
from ntkscope.core.errors import DataCorrupt
from ntkscope.data._files import Root, find_folder, pick, places, read_text
from ntkscope.data.registry import DATASETS
from ntkscope.data.subsets import stratified

MANUAL = ("testdata.manual.2009.06.14.csv",)
TRAIN = {  # the same names without compression are taken too
    "sample": ("train_sample_20k.tsv.gz", "train_sample_20k.tsv"),
    "time-confounded": ("tweets_100k_time_confounded.tsv.xz", "tweets_100k_time_confounded.tsv"),
}
SHA256 = {  # of the uncompressed files
    "manual": "c77669cc86ae85d3807d65fc13fed0c395266db518d4eaa0ff1f19bf6efbbdd3",
    "sample": "b3eec11d5e9172b66ab8eea60318af9ab209d2730083c290993d650084d42e53",
    "time-confounded": "33becaa1279f10392f2ecd4786987c52c71192510f2fce2f71bde20c6c77c889",
}
POLARITY = {"0": "negative", "2": "neutral", "4": "positive"}
REMEDY = (
    "put testdata.manual.2009.06.14.csv (from trainingandtestdata.zip of the authors) and the training tweets"
    " train_sample_20k.tsv.gz (UTF-8 lines of polarity 0 or 4, a tab, the text; with verify=False any such file) into a"
    " folder sentiment140/."
)


def read_rows(path: Path, sha256: str | None) -> list[list[str]]:
    """The rows of the hand-labelled test set, a CSV file of polarity, id, date, query, user, text; or of a training file,
    lines of polarity, a tab and the text."""
    text, by_hand = read_text(path, sha256), path.suffix == ".csv"
    columns, known = (6, ["0", "2", "4"]) if by_hand else (2, ["0", "4"])
    if by_hand:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    else:
        rows = [line.removesuffix("\r").split("\t") for line in text.removesuffix("\n").split("\n")]
    for number, row in enumerate(rows, start=1):
        if len(row) != columns:
            raise DataCorrupt(f"{path}, row {number}: got {len(row)} columns, expected {columns}; fetch the file again")
        if row[0] not in known:
            raise DataCorrupt(f"{path}, row {number}: got polarity {row[0]!r}, expected one of {', '.join(known)}")
    return rows


@DATASETS.register("sentiment140")
def sentiment140(
    *,
    root: Root = None,
    seed: int = 0,
    train: Annotated[str, tuple(TRAIN)] = "sample",
    neutral: bool = False,
    max_train: Count | None = None,
    max_test: Count | None = None,
    verify: bool = True,
) -> Split:
    """Sentiment140: x a list of raw tweets (handles, links and HTML entities unchanged), y 0 negative, 1 positive.

    Train: 19,999 tweets spread over the corpus's whole time. Test: the 359 hand-labelled tweets that are not neutral;
    with `neutral=True` all 498, and y is 0 negative, 1 neutral, 2 positive (no training tweet is neutral). The test
    part's extras are `query` and `date`. `train="time-confounded"` takes 100,000 tweets in which the two classes come
    from different weeks, so that a classifier may learn the weeks.
    """
    folder = find_folder("Sentiment140", places(root, ["sentiment140", "Sentiment140"]), [MANUAL, TRAIN[train]], REMEDY)
    if train == "time-confounded":
        warnings.warn(
            "sentiment140: negatives of the time-confounded file are of April and May 2009, positives of June, so the"
            " label follows from topics of the day and accuracies inside the file are too good; prefer train='sample'",
            UserWarning,
            stacklevel=2,
        )
    names = tuple(name for name in POLARITY.values() if neutral or name != "neutral")

    def part(rows: list[list[str]], which: str, limit: int | None, extras: dict[str, int]) -> Part:
        rows = [row for row in rows if POLARITY[row[0]] in names]
        y = torch.tensor([names.index(POLARITY[row[0]]) for row in rows])
        whole = Part([row[-1] for row in rows], y, {key: [row[at] for row in rows] for key, at in extras.items()})
        return whole.take(torch.from_numpy(stratified(y.numpy(), limit, seed, "sentiment140", which)))

    def read(names: tuple[str, ...], which: str) -> list[list[str]]:
        path = pick(folder, names)
        assert path is not None  # find_folder saw it
        return read_rows(path, SHA256[which] if verify else None)

    return Split(
        train=part(read(TRAIN[train], train), "train", max_train, {}),
        test=part(read(MANUAL, "manual"), "test", max_test, {"query": 3, "date": 2}),
        classes=names,
        name="sentiment140",
    )
