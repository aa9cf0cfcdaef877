"""Legs: several runs, one record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ntkscope.core import Record, UsageError
from ntkscope.core.errors import RecordError
from ntkscope.core.numerics import NUMERICS
from ntkscope.core.records.stage import OpenStage
from ntkscope.report.result import result
from ntkscope_papers.framework import Experiment, Run, leg
from ntkscope_papers.framework.again import again, unlike
from ntkscope_papers.framework.experiment import _trusting
from ntkscope_papers.framework.gather import gather
from ntkscope_papers.framework.legs import Leg, chosen, run_legs, showing
from ntkscope_papers.framework.provenance import source
from ntkscope_papers.framework.results import once


@dataclass(frozen=True)
class Tiny(Experiment):
    name = "tiny"
    items: int = 3
    smoke = {"items": 2}

    @leg("part/{}", over=lambda self: ("a", "b", "c"), optional=lambda self, case: case == "c")
    def part(self, run: Run, case: str) -> dict[str, Any]:
        return {"value": f"{case}{self.items}"}


def test_runs_of_different_legs_fill_one_record_and_other_settings_are_refused(tmp_path: Path) -> None:
    first = dict(Tiny.run(out=tmp_path, legs=["part/a"]).metrics)
    assert first["part/a"]["value"] == "a2"
    second = Tiny.run(out=tmp_path)
    assert [key for key in second.metrics if "/" in key] == ["part/a", "part/b"]  # the optional one is not named
    assert second.metrics["part/a"] == first["part/a"]
    assert "legs" not in second.config
    with pytest.raises(RecordError, match="items"):
        Tiny.run(out=tmp_path, items=4)
    assert Tiny.run(out=tmp_path / "other", legs=["part/c"]).metrics["part/c"]["value"] == "c2"


def test_progress_names_the_leg_and_nothing_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(OpenStage, "message", lambda stage, text: said.append(text))
    Tiny.run(out=tmp_path, progress=True)
    assert said == ["leg part/a", "leg part/b", ""]


def test_legs_run_into_records_of_their_own_are_gathered_with_their_environments(tmp_path: Path) -> None:
    parts = [Tiny.run(out=tmp_path / name, legs=[f"part/{name}"]) for name in "ab"]
    whole = Tiny.run(out=tmp_path / "whole", gather_from=[tmp_path / name for name in "ab"])
    for name, part in zip("ab", parts):
        assert (
            whole.metrics[f"part/{name}"] == part.metrics[f"part/{name}"]
        )  # the seconds too: nothing was computed again
    assert [source["legs"] for source in whole.metrics["provenance"]] == [["part/a"], ["part/b"]]
    assert whole.metrics["provenance"][0]["environment"] == parts[0].environment
    again = Tiny.run(out=tmp_path / "again", gather_from=[tmp_path / "whole"])
    assert again.metrics["provenance"] == whole.metrics["provenance"]
    with pytest.raises(UsageError, match="config"):
        Tiny.run(out=tmp_path / "x", gather_from=[tmp_path / "a"], items=4)


def test_every_result_says_where_it_was_made(tmp_path: Path) -> None:
    Tiny.run(out=tmp_path / "a", legs=["part/a"])
    record = Tiny.run(out=tmp_path / "a")
    (entry,) = record.metrics["provenance"]  # one process
    assert entry["legs"] == list(entry["beside"]) == ["part/a", "part/b"]
    assert all(cores is None or cores >= 0 for cores in entry["beside"].values())
    assert entry["command"] == record.command
    assert entry["environment"] == record.environment
    assert entry["numerics"] == NUMERICS
    assert entry["source"] == source()
    assert re.fullmatch("[0-9a-f]{16}", source())
    assert "Others kept busy" in str(result(record))


@pytest.mark.parametrize(
    "odd", [3, [3], {"a": 1}, [{"legs": 3, "beside": 4, "seconds": "x", "environment": 5}], [{"seconds": float("inf")}]]
)
def test_a_page_shows_whatever_a_record_says_of_its_sources(odd: object, tmp_path: Path) -> None:
    with Record.create(tmp_path / "run", kind="experiment", name="x") as record:
        record.put(provenance=odd)
    assert "How this was computed" in str(result(record))


def test_a_gathered_record_shows_where_its_legs_were_made_not_where_they_were_gathered(tmp_path: Path) -> None:
    other = Tiny.run(out=tmp_path / "a", legs=["part/a"])
    (entry,) = other.metrics["provenance"]
    elsewhere = {**entry, "source": "0" * 16, "command": "elsewhere", "environment": {"device": "a GPU"}}
    with Record.resume(tmp_path / "a") as record:
        record.put(provenance=[elsewhere])
    whole = Tiny.run(out=tmp_path / "whole", gather_from=[tmp_path / "a"])
    first, second = whole.metrics["provenance"]
    assert first == elsewhere
    assert (second["legs"], second["source"]) == (["part/b"], source())


@pytest.mark.parametrize(
    ("value", "within", "lines"),
    [("a2", 0.0, 0), ("a3", 0.0, 1), (1.0, 0.0, 1), (1.0 + 1e-9, 1e-6, 1)],
)
def test_legs_computed_again_are_compared_with_the_record(
    value: object, within: float, lines: int, tmp_path: Path
) -> None:
    Tiny.run(out=tmp_path)
    with Record.resume(tmp_path) as record:
        record.put(**{"part/a": {"seconds": 5.0, "value": value}})
    compared, found = again(Record.open(tmp_path), ["part/a"], experiment=Tiny, within=within)
    assert (compared, len(found)) == (["part/a"], lines)


def test_what_the_record_does_not_have_is_not_compared(tmp_path: Path) -> None:
    Tiny.run(out=tmp_path, legs=["part/a"])
    with pytest.raises(UsageError, match="holds no result of part/b"):
        again(Record.open(tmp_path), ["part/b"], experiment=Tiny)


@pytest.mark.parametrize(
    ("before", "now", "within", "same"),
    [
        (1.0, 1.0 + 1e-9, 1e-8, True),
        (1.0, 1.0 + 1e-7, 1e-8, False),
        (float("nan"), float("nan"), 0.0, True),
        (1, True, 0.0, False),
        ([1.0], [1.0, 2.0], 1.0, False),
        ({"fit_seconds": 1.0}, {"fit_seconds": 2.0}, 0.0, True),
        ({"a": 1.0}, {}, 1.0, False),
        (np.ones(2), np.array([1.0, 1.1]), 0.2, True),
        (np.ones(2), np.array([1.0, 1.1]), 0.0, False),
    ],
)
def test_differences(before: object, now: object, within: float, same: bool) -> None:
    assert (list(unlike(before, now, within, "x")) == []) is same


def test_a_memory_budget_does_not_keep_records_apart_and_is_listed(tmp_path: Path) -> None:
    small = Record.create(tmp_path / "small", kind="experiment", name="x", config={"memory": "1GiB", "items": 3})
    small.put(leg={"seconds": 1.0, "value": 2})
    large = Record.create(tmp_path / "large", kind="experiment", name="x", config={"memory": "2GiB", "items": 3})
    gather(large, [tmp_path / "small"])
    assert large.metrics["leg"]["value"] == 2
    assert [source["memory"] for source in large.metrics["provenance"]] == ["1GiB"]
    other = Record.create(tmp_path / "other", kind="experiment", name="x", config={"memory": "1GiB", "items": 4})
    with pytest.raises(UsageError, match="config"):
        gather(other, [tmp_path / "small"])


def test_a_record_kept_without_its_arrays_gives_its_results_and_a_damaged_array_is_refused(tmp_path: Path) -> None:
    one, two, three = (
        Record.create(tmp_path / name, kind="experiment", name="legs") for name in ("one", "two", "three")
    )
    one.put(leg={"found": 1, "seconds": 0.5})
    for name in ("kept", "lost"):
        one.array(name, np.arange(3.0))
    (tmp_path / "one" / "lost.npy").unlink()
    gather(two, [tmp_path / "one"])
    assert two.metrics["leg"]["found"] == 1
    assert list(two.arrays) == ["kept"]
    assert two.arrays["kept"].tolist() == [0, 1, 2]
    assert two.metrics["provenance"][0]["arrays not kept"] == ["lost"]
    (tmp_path / "one" / "kept.npy").write_bytes(b"damaged")
    with pytest.raises(RecordError, match="kept"):
        gather(three, [tmp_path / "one"])


def test_a_leg_that_does_not_exist_is_refused_and_a_beginning_is_a_whole_word() -> None:
    legs = [Leg("train/x1/a", dict), Leg("train/x10/a", dict)]
    assert [leg.key for leg in chosen(legs, ["train/x1"])] == ["train/x1/a"]
    with pytest.raises(UsageError, match=r"expected the beginning of one of: train/x1/a, train/x10/a"):
        chosen(legs, ["train/x2"])


@pytest.mark.parametrize("progress", [True, False])
def test_a_leg_knows_whether_its_run_shows_progress_and_afterwards_nothing_does(tmp_path: Path, progress: bool) -> None:
    def fails() -> dict[str, float]:
        raise RuntimeError(str(showing()))

    record = Record.create(tmp_path / "run", kind="experiment")
    run_legs(record, [Leg("one", lambda: {"showing": showing()})], (), progress=progress)
    assert record.metrics["one"]["showing"] is progress
    with pytest.raises(RuntimeError, match=str(progress)):
        run_legs(record, [Leg("two", fails)], (), progress=progress)
    assert not showing()


ODD: list[object] = [5, "abc", None, [1], [{}], [{"legs": 5}], {"legs": ["leg"]}]


@pytest.mark.parametrize(
    "metrics",
    [
        *({"provenance": value} for value in ODD),
        {"provenance": [{"legs": [[1]], "environment": {}, "seconds": 1}]},
        {"leg": {"seconds": "x"}},
        {"leg": {"seconds": float("nan")}},
        {"leg": {"seconds": -1}},
    ],
    ids=repr,
)
def test_what_no_run_gathered_is_refused(tmp_path: Path, metrics: dict[str, object]) -> None:
    with Record.create(tmp_path / "theirs", kind="experiment", name="x") as theirs:
        theirs.put(**metrics)
    with Record.create(tmp_path / "ours", kind="experiment", name="x") as ours:
        with pytest.raises(RecordError, match="was not written by a run"):
            gather(ours, [tmp_path / "theirs"])
        assert not ours.metrics


@pytest.mark.parametrize("value", [5, None, [1], "x"])
def test_what_is_no_result_is_refused_when_a_run_resumes(tmp_path: Path, value: object) -> None:
    record = Record.create(tmp_path, kind="experiment")
    record.put(leg=value)
    with pytest.raises(RecordError, match="expected a result"):
        once(record, "leg", dict)


def test_errors_are_blamed_on_earlier_results_only_where_there_are_some(tmp_path: Path) -> None:
    record = Record.create(tmp_path, kind="experiment", name="x")
    with pytest.raises(KeyError), _trusting(record):
        raise KeyError("value")
    record.put(leg={"seconds": 1.0})
    with pytest.raises(RecordError, match="KeyError: 'value'"), _trusting(record):
        raise KeyError("value")
