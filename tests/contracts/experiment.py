"""The suite every experiment inherits: name it, say how small it can be, and these tests hold it to its contract.

    class TestPoisoning(ExperimentContract):
        name = "poisoning"
        tiny = given(train_items=200, epochs=1)

`tiny` shrinks the smoke scale to the least that still goes through everything; the smoke scale itself runs nightly.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.killed import Killed, writing
from ntkscope.core import Claim
from ntkscope.core.records.claims import VERDICTS
from ntkscope_papers.framework import Experiment, Run
from ntkscope_papers.framework import experiment as _runner

TIMES = ("seconds", "fit_seconds", "kernel_seconds")


def readings(name: str, prefix: str = "") -> dict[str, Any]:
    """The statements of an experiment by their ids without `prefix`; each is called with a configuration and a record."""
    return {statement.id.removeprefix(prefix): statement for statement in ns.EXPERIMENTS[name].published()}


def made_record(folder: Path, name: str, **results: Any) -> ns.Record:
    """A record of an experiment with results made by hand."""
    record = ns.Record.create(folder, kind="experiment", name=name)
    record.put(**results)
    return record


def run_of(config: Experiment | None, record: ns.Record | None = None, seed: int = 0) -> Run:
    """For legs and `prepare` that are called by hand; without a record, of those that write no array."""
    return Run(config, record, torch.device("cpu"), None, seed, False)


def judged(record: ns.Record, config: Experiment | None = None, prefix: str = "") -> dict[str, Claim]:
    """The claims on a record by their ids without `prefix`, judged with the published settings or with others."""
    config = config or ns.EXPERIMENTS[record.name]()
    return {claim.id.removeprefix(prefix): claim for claim in config.judge(record, "")}


def without_times(value: Any) -> Any:
    """A result without what differs from run to run."""
    if isinstance(value, Mapping):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return value


class ExperimentContract:
    """Subclass, set `name` and `tiny`."""

    name: ClassVar[str]
    tiny: ClassVar[Mapping[str, Any]] = given()
    timed: ClassVar[tuple[str, ...]] = ()  # what results that are times begin with: they differ from run to run
    identities: ClassVar[tuple[str, ...]] = ()  # claims that hold or fail whatever the scale
    root: ClassVar[str | None] = None
    own: ClassVar[bool] = False  # its statements are this project's, not a paper's: they are in no ledger

    @classmethod
    def run(cls, out: Path) -> ns.Record:
        return ns.run(cls.name, "smoke", out=out, device="cpu", root=cls.root, seed=3, **cls.tiny)

    @pytest.fixture(scope="class")
    @classmethod
    def killed(cls, tmp_path_factory: pytest.TempPathFactory) -> Killed:
        return Killed(tmp_path_factory.mktemp(f"{cls.name}-killed"))

    @pytest.fixture(scope="class")
    @classmethod
    def record(cls, killed: Killed, tmp_path_factory: pytest.TempPathFactory) -> ns.Record:
        with killed.watching():
            return cls.run(tmp_path_factory.mktemp(cls.name) / "run")

    def test_it_leaves_a_finished_record(self, record: ns.Record) -> None:
        read = ns.Record.open(record.folder)
        assert read.status == "done"
        assert read.name == self.name
        assert all(stage.finished for stage in read.stages.values())

    def test_every_claim_has_a_verdict_and_none_is_reproduced_at_a_small_scale(self, record: ns.Record) -> None:
        ids = [claim.id for claim in record.claims]
        assert sorted(ids) == sorted(claim.id for claim in ns.EXPERIMENTS[self.name].published())
        verdicts = {claim.verdict for claim in record.claims if claim.id not in self.identities}
        assert verdicts <= {"stand-in", "not testable here"} < set(VERDICTS)

    def test_claims_of_our_own_say_so(self) -> None:
        claims = ns.EXPERIMENTS[self.name].published()
        assert claims
        assert all(
            (claim.id.startswith("own-"), claim.source == "this project") == (self.own, self.own) for claim in claims
        )

    def test_figures_are_drawn(self, record: ns.Record) -> None:
        files = record.metrics["figures"]
        assert files
        assert {Path(file).suffix for file in files} == {".svg", ".png"}
        for file in files:
            assert (record.folder / file).stat().st_size > 1000

    def test_scales_are_plain_values_and_differ(self) -> None:
        experiment = ns.EXPERIMENTS[self.name]
        smoke, paper = experiment.at("smoke"), experiment.at("paper")
        assert smoke != paper
        assert not paper.difference()
        for scale in (smoke, paper):
            again = json.loads(json.dumps(dataclasses.asdict(scale)))
            assert experiment.at("paper", again) == scale

    @pytest.mark.nightly
    @pytest.mark.parametrize("cut", ["last", "middle", pytest.param("first", marks=pytest.mark.long)])
    def test_a_killed_run_resumes_and_computes_nothing_again(
        self, record: ns.Record, killed: Killed, cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From the folder as a kill left it, the lost results come back as they were; the others are not written again."""
        number = {"first": min(1, len(killed) - 1), "middle": len(killed) // 2, "last": len(killed) - 1}[cut]
        folder = killed.folder(number, tmp_path / "run")
        before = {key for key, value in ns.Record.open(folder).metrics.items() if isinstance(value, Mapping)}
        results = {key: value for key, value in record.metrics.items() if isinstance(value, Mapping)}
        assert before < set(results)
        weights = {file: file.stat().st_mtime_ns for file in folder.glob("networks/*.safetensors")}
        # Figures are made of a finished record and take longer than much of what is lost; the first run draws them.
        monkeypatch.setattr(_runner, "save_figures", lambda draw, record: [])
        with writing() as written:
            again = self.run(folder)
        assert again.status == "done"
        assert before.isdisjoint(written), "computed again, though the killed run had written it"
        assert set(again.metrics) == set(record.metrics)
        assert set(again.arrays) == set(record.arrays)
        for key, value in results.items():
            if not (self.timed and key.startswith(self.timed)):
                assert without_times(again.metrics[key]) == without_times(value), f"{key} differs in the resumed run"
        assert {file: file.stat().st_mtime_ns for file in weights} == weights

    @pytest.mark.nightly
    @pytest.mark.long
    def test_the_smoke_scale_runs(self, tmp_path: Path) -> None:
        assert ns.run(self.name, "smoke", out=tmp_path / "run", device="cpu", root=self.root).status == "done"
