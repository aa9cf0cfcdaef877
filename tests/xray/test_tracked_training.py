"""A tracker's record in an X-ray: shown, copied so that the page needs nothing else, refused if it is of another network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import Part, Record, UsageError
from ntkscope.core.errors import RecordError
from ntkscope.xray.sections import computed, tracked_training, weight_spectra
from ntkscope.xray.sections.tracked_training import thinned
from ntkscope.xray.tracked import tracked_training as opened
from report.fixtures.tracking import write_tracking
from xray.small import blobs, network, only, trained

OPTIONS: dict[str, Any] = {"kernels": ["ck"], "progress": False, "untrained": True}


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    """The section, its neighbours on the page, and nothing that takes longer."""
    with only(weight_spectra.SECTION, tracked_training.SECTION, computed.SECTION):
        yield


def tracked(model: nn.Module, part: Part, folder: Path, steps: int = 12) -> Path:
    """A short training of `model`, tracked."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ns.Tracker(model, part, folder, watch=("weights", "ck"), total=steps, overhead=1e6) as tracker:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(part.x), part.y)
            loss.backward()
            optimizer.step()
            tracker.step(loss)
    return folder


def test_a_tracked_training_is_on_the_page_and_the_page_needs_nothing_else(tmp_path: Path) -> None:
    train, test = blobs()
    model = network()
    folder = tracked(model, train, tmp_path / "run")
    record = ns.xray(model, train, test, tmp_path / "x", tracked=folder, **OPTIONS)
    found = tracked_training.SECTION.read(record.metrics)
    assert found is not None, record.metrics[tracked_training.SECTION.key]
    assert found.ends_here is True
    assert found.moments == len(Record.open(folder).series("moments"))
    assert found.last_step == 12
    assert {"ck", *(f"weights:{n}" for n, p in model.named_parameters() if p.ndim == 2)} == set(found.tracked)
    names = list(record.metrics["sections"])
    assert names.index("weight_spectra") < names.index("tracked_training") < names.index("computed")
    assert record.metrics["plan"]["steps"]["section tracked_training"] > 0
    copied = list(record.series("training.spectra"))
    assert copied == list(Record.open(folder).series("spectra"))
    shutil.rmtree(folder)
    page = ns.report.write_page(tmp_path / "x").read_text()
    assert 'id="player"' in page
    assert "undrawn" not in page


def test_without_one_there_is_no_such_section(tmp_path: Path) -> None:
    train, test = blobs(n=30)
    record = ns.xray(network(), train, test, tmp_path, **OPTIONS)
    assert "tracked_training" not in record.metrics["sections"]
    assert "tracked" not in record.config
    assert "section tracked_training" not in record.metrics["plan"]["steps"]


def test_another_checkpoint_of_the_run_is_said(tmp_path: Path) -> None:
    train, test = blobs(n=30)
    model = network()
    folder = tracked(model, train, tmp_path / "run")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    record = ns.xray(model, train, test, tmp_path / "x", tracked=folder, **OPTIONS)
    entry = record.metrics[tracked_training.SECTION.key]
    assert entry["data"]["ends_here"] is False
    assert "has other weights than those that were X-rayed" in entry["confidence"]
    assert "not those of the last moment, step 12" in ns.report.write_page(tmp_path / "x").read_text()


def test_one_of_another_network_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    train, test = blobs(n=30)
    other = ns.models.build("mlp", in_features=5, classes=3, widths=24, depth=1)
    folder = tracked(other, train, tmp_path / "run", steps=2)
    with pytest.raises(
        UsageError, match=r"the training of another network: there .* is 24 × 5.*; in this network .* is 16 × 5.*leave"
    ):
        ns.xray(network(), train, test, tmp_path / "x", tracked=folder, **OPTIONS)
    assert not (tmp_path / "x").exists()


def test_what_is_no_tracked_training_is_refused(tmp_path: Path) -> None:
    model = network()
    assert opened(None, model) is None
    with pytest.raises(RecordError, match=r"record\.json|no record"):
        opened(tmp_path / "nothing", model)
    Record.create(tmp_path / "other", kind="experiment").finish()
    with pytest.raises(UsageError, match="a record of kind 'experiment'; expected one of kind 'tracking'"):
        opened(tmp_path / "other", model)
    Record.create(tmp_path / "empty", kind="tracking")
    with pytest.raises(UsageError, match="holds no moment yet"):
        opened(tmp_path / "empty", model)
    with pytest.raises(UsageError, match=r"got tracked=3; expected the folder"):
        opened(3, model)


@pytest.mark.parametrize("prefix", ["model.", "_orig_mod."])
def test_a_wrappers_prefix_is_no_other_network(prefix: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    write_tracking(tmp_path / "run", moments=2, shapes={f"{prefix}0.weight": (4, 5), f"{prefix}1.weight": (3, 4)})
    found = opened(tmp_path / "run", model)
    assert found is not None
    assert list(found.last) == ["0.weight", "1.weight"]
    wrapped = nn.ModuleDict({prefix.rstrip("."): model})
    write_tracking(tmp_path / "inner", moments=2, shapes={"0.weight": (4, 5), "1.weight": (3, 4)})
    found = opened(tmp_path / "inner", wrapped)
    assert found is not None
    assert list(found.last) == [f"{prefix}0.weight", f"{prefix}1.weight"]


def test_an_xray_is_not_resumed_with_another_training(tmp_path: Path) -> None:
    train, test = blobs(n=30)
    model = network()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.ndim == 2}
    one, two = (write_tracking(tmp_path / name, moments=m, shapes=shapes) for name, m in (("one", 2), ("two", 3)))
    ns.xray(model, train, test, tmp_path / "x", tracked=one, **OPTIONS)
    said: list[str] = []
    ns.xray(model, train, test, tmp_path / "x", tracked=one, say=said.append, **OPTIONS)
    assert any("already holds this X-ray" in line for line in said)
    for other in (two, None):
        with pytest.raises(RecordError, match=r"made with another config.*tracked"):
            ns.xray(model, train, test, tmp_path / "x", tracked=other, **OPTIONS)


@pytest.mark.guard
def test_a_large_record_is_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = blobs(n=30)
    model = network()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.ndim == 2}
    folder = write_tracking(tmp_path / "run", moments=3, shapes=shapes, eigenvalues=400)
    monkeypatch.setattr(tracked_training, "BYTES", 1000)
    record = ns.xray(model, train, test, tmp_path / "x", tracked=folder, **OPTIONS)
    rows = [row for row in record.series("training.spectra") if row["of"] == "ck"]
    whole = [row for row in Record.open(folder).series("spectra") if row["of"] == "ck"]
    assert [len(row["values"]) for row in rows] == [100] * 3
    assert all(row["left_out"] == 300 for row in rows)
    assert rows[0]["values"][:50] == whole[0]["values"][:50]
    assert "100 values were copied" in ns.report.write_page(tmp_path / "x").read_text()
    assert thinned({"values": "none"}, 5) == {"values": "none"}


@pytest.mark.guard
def test_a_lost_series_is_copied_again(tmp_path: Path) -> None:
    train, test = blobs(n=30)
    _, model = trained(train)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.ndim == 2}
    folder = write_tracking(tmp_path / "run", moments=2, shapes=shapes)
    options = {"tracked": folder, "kernels": ["ck"], "progress": False}
    record = ns.xray(model, train, test, tmp_path / "x", **options)
    record.series("training.spectra").path.unlink()
    with pytest.warns(match="lost or were changed"):
        again = ns.xray(model, train, test, tmp_path / "x", **options)
    assert list(again.series("training.spectra")) == list(Record.open(folder).series("spectra"))
