"""An X-ray whose files are lost or changed is repaired by running again, as its errors say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ntkscope.core import Record
from ntkscope.core.errors import RecordError
from ntkscope.core.records.record import FILE
from ntkscope.core.records.soundness import DamageWarning
from ntkscope.xray.resuming import check_metrics, check_recipe
from xray.small import copied, xrayed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("xray") / "run", tmp_path_factory).folder


QUICK = [("kernels.trntk0.test_diagonal", "gone")]
SLOW = [
    ("kernels.trntk0.train", "changed"),
    ("kernels.trntk0.test", "gone"),
    ("kernels.ck.train", "gone"),
    ("surrogates.coef.trntk", "changed"),
    ("labels.train", "changed"),
    ("explain.probability", "gone"),
]


@pytest.mark.parametrize(("name", "harm"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.guard) for case in SLOW)])
def test_a_damaged_array_is_computed_again(whole: Path, tmp_path: Path, name: str, harm: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    before = {key: np.array(value) for key, value in Record.open(whole).arrays.items()}
    file = folder / Record.open(folder).to_json()["arrays"][name]["file"]
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    with pytest.warns(DamageWarning, match="computes them again"):
        again = xrayed(folder, kernels=["ck"])
    assert again.status == "done"
    assert {again.metrics[f"section:{key}"]["status"] for key in again.metrics["sections"]} <= {"done", "skipped"}
    after = Record.open(folder).arrays
    assert set(after) == set(before)
    for key in before:
        np.testing.assert_allclose(after[key], before[key], rtol=1e-6, atol=1e-9, err_msg=key)
    if harm != "changed":  # a file that was changed may be someone else's: it stays beside the new one
        assert not {path.name for path in folder.glob("*.npy")} - {
            e["file"] for e in again.to_json()["arrays"].values()
        }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("plan", {"kernels": "all"}),
        ("plan", []),
        ("timings", [3]),
        ("section:summary", "done"),
        ("section:summary", {"status": 3}),
        ("surrogate_fits", {"ck": None}),
        ("certificates", {"ck": 1}),
    ],
)
def test_a_record_that_no_xray_wrote_is_refused(tmp_path: Path, key: str, value: object) -> None:
    record = Record.create(tmp_path, kind="xray")
    record.put(**{key: value})
    with pytest.raises(RecordError, match=r"is not an X-ray that can be resumed: .*metrics\."):
        check_metrics(record)


def test_a_kill_after_any_write_leaves_what_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, write = list[bytes](), Record._write

    def kept(record: Record, *args: Any, **changes: Any) -> None:
        write(record, *args, **changes)
        written.append((record.folder / FILE).read_bytes())

    monkeypatch.setattr(Record, "_write", kept)
    xrayed(tmp_path / "run", kernels=["ck"])
    assert any(b'"recipe_checksum"' in each for each in written)
    assert not all(b'"recipe_checksum"' in each for each in written)
    for each in written:
        (tmp_path / "run" / FILE).write_bytes(each)
        check_recipe(Record.open(tmp_path / "run"))
