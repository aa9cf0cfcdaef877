"""Certificates of the kernels of an X-ray: one for each, whole also when the run was stopped between check and kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ntkscope.core import Record
from ntkscope.core.errors import RecordError
from ntkscope.report import write_page
from ntkscope.report.certificates import Checks
from ntkscope.xray.sections import layers
from xray.small import only, xrayed

KEPT = {
    "trntk0": {"all"},
    "ck": {"all"},
    "initial.trntk0": {"all"},
    "initial.ck": {"all"},
    "layers.trntk0": {"train"},
}


def counted(record: Record) -> dict[str, tuple[int, int, int]]:
    found = Checks.of(record.metrics, record.arrays)
    assert found.missing == ()
    return {name: (one.checked, one.blocks, one.alone) for name, one in found.by_kernel.items()}


@pytest.mark.guard
def test_every_kernel_has_one_also_when_stopped_between_check_and_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = xrayed(tmp_path / "whole", kernels=["ck"])
    assert {name: set(parts) for name, parts in whole.metrics["certificates"].items()} == KEPT
    real, stopped = Record.array, set[str]()

    def array(self: Record, name: str, value: Any) -> Any:
        if name.startswith("kernels.") and name.endswith((".train", ".test")) and name not in stopped:
            stopped.add(name)
            raise KeyboardInterrupt
        return real(self, name, value)

    monkeypatch.setattr(Record, "array", array)
    attempts = 0
    while True:
        attempts += 1
        try:
            record = xrayed(tmp_path / "stopped", kernels=["ck"])
            break
        except KeyboardInterrupt:
            continue
    assert attempts == 9  # four kernels of two arrays each
    assert counted(record) == counted(whole)
    assert Checks.of(record.metrics, record.arrays).state == "checked"


def test_nothing_is_called_checked_that_was_not(tmp_path: Path) -> None:
    with only(layers.SECTION):
        record = xrayed(tmp_path, kernels=["ck"], initial=None, certify=False)
    assert {checked for checked, _, _ in counted(record).values()} == {0}
    page = write_page(tmp_path).read_text()
    assert "not checked" in page
    assert "was compared with PyTorch&#x27;s own autograd" in page.replace("&#39;", "&#x27;")
    with pytest.raises(RecordError, match=r"another config \(certify: False -> 'every'\)"):
        xrayed(tmp_path, kernels=["ck"], initial=None)
