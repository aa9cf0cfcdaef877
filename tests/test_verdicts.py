"""Every record of the papers is judged by today's code to the verdicts it holds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from ntkscope.core import Record

ROOT = Path(__file__).resolve().parents[1]
ARRAYS_NOT_KEPT = {"nfa-centerings", "nfa-evolution", "pca-probes"}
STOPPED = {"surrogate-kernels-smoothed"}  # which holds no claims


@pytest.fixture(name="tool", scope="module")
def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verdicts", ROOT / "tools" / "verdicts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.guard
def test_every_record_has_the_verdicts_of_todays_code(tool: ModuleType) -> None:
    count = 0
    for record in tool.records(tool.PAPERS):
        name = Path(record.folder).name
        if name not in ARRAYS_NOT_KEPT | STOPPED:
            same, other = tool.compared(record)
            assert not other, f"{name}: {other}"
            count += same
    assert count > 400


def test_another_verdict_is_noticed(tool: ModuleType) -> None:
    class Changed:
        """A record whose first verdict was written by hand."""

        def __init__(self, record: Record) -> None:
            self.record = record
            self.claims = [type(c)(**{**c.__dict__, "note": "the check does not hold"}) for c in record.claims]

        def __getattr__(self, name: str) -> object:
            return getattr(self.record, name)

    record = Record.open(tool.PAPERS / "harlev_2023/results/layer-collapse")
    assert tool.compared(record) == (1, [])
    assert tool.compared(Changed(record))[1] == [
        "probes-neural-collapse-nc4: not reproduced on a stand-in -> reproduced on a stand-in"
    ]
