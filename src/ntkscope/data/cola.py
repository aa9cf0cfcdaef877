"""CoLA, the Corpus of Linguistic Acceptability: is a sentence well formed? Warstadt, Singh, Bowman (2019)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from ntkscope.core import Part, Split
from ntkscope.core.checked import Count
from ntkscope.core.errors import DataCorrupt
from ntkscope.data._files import Root, find_folder, places, read_text
from ntkscope.data.registry import DATASETS
from ntkscope.data.subsets import stratified

SHA256 = {
    "in_domain_train.tsv": "f320a10f92d3bce6b29152fde322a362eac39238e50d8de0c8815457fdf4fc12",
    "in_domain_dev.tsv": "77176f6a03faa5a1c4f23c69971fc1bff565931112fb65af47b2d6e24b7f42f7",
    "out_of_domain_dev.tsv": "201b9c57b2a20f1282242eec0ed8995729e3be19c29a46c047b3727338836c05",
}
# which development files are the test part, and which is the validation part
PARTS = {
    "both": (("in_domain_dev.tsv", "out_of_domain_dev.tsv"), None),
    "in-domain": (("in_domain_dev.tsv",), "out_of_domain_dev.tsv"),
    "out-of-domain": (("out_of_domain_dev.tsv",), "in_domain_dev.tsv"),
}
REMEDY = (
    "take cola_public_1.1.zip from https://nyu-mll.github.io/CoLA/ and put in_domain_train.tsv, in_domain_dev.tsv and"
    " out_of_domain_dev.tsv (its folder raw) into a folder cola/."
)


def read_tsv(path: Path, sha256: str | None) -> Part:
    """The sentences and labels of one file: lines of source, label, the author's mark and the sentence, by tabs."""
    rows = []
    for number, line in enumerate(read_text(path, sha256).removesuffix("\n").split("\n"), start=1):
        fields = line.removesuffix("\r").split("\t")
        if len(fields) != 4:
            raise DataCorrupt(
                f"{path}, line {number}: got {len(fields)} columns, expected 4 (source, label, mark, sentence);"
                " fetch the file again"
            )
        if fields[1] not in ("0", "1"):
            raise DataCorrupt(
                f"{path}, line {number}: got label {fields[1]!r}, expected 0 (unacceptable) or 1 (acceptable)"
            )
        rows.append(fields)
    sources, labels, marks, sentences = map(list, zip(*rows))
    return Part(sentences, torch.tensor(list(map(int, labels))), {"source": sources, "mark": marks})


def _join(parts: list[Part]) -> Part:
    extras = {key: [item for part in parts for item in part.extras[key]] for key in parts[0].extras}
    return Part([sentence for part in parts for sentence in part.x], torch.cat([part.y for part in parts]), extras)


@DATASETS.register("cola")
def cola(
    *,
    root: Root = None,
    seed: int = 0,
    test: Annotated[str, tuple(PARTS)] = "both",
    max_train: Count | None = None,
    max_test: Count | None = None,
    verify: bool = True,
) -> Split:
    """CoLA: x a list of 8,551 sentences, y 1 when acceptable; extras `source` (publication) and `mark` (`*` or none).

    The authors' test set is not public. `test="both"`: the test part is both development files, 1,043 sentences, which
    GLUE calls the validation set. `"out-of-domain"`: 516 sentences of other sources test, the 527 in-domain ones
    validate; `"in-domain"`: the other way round. Samples keep the share of acceptable sentences.
    """
    folder = find_folder(
        "CoLA", places(root, ["cola", "CoLA", "cola_public/raw"]), [(name,) for name in SHA256], REMEDY
    )

    def read(name: str) -> Part:
        return read_tsv(folder / name, SHA256[name] if verify else None)

    def sample(part: Part, which: str, limit: int | None) -> Part:
        return part.take(torch.from_numpy(stratified(part.y.numpy().astype(np.int64), limit, seed, "cola", which)))

    tests, validation = PARTS[test]
    return Split(
        train=sample(read("in_domain_train.tsv"), "train", max_train),
        test=sample(_join([read(name) for name in tests]), "test", max_test),
        validation=None if validation is None else read(validation),
        classes=("unacceptable", "acceptable"),
        name="cola",
    )
