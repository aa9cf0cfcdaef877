"""The suite every experiment inherits: name it, say how small it can be, and these tests hold it to its contract.

    class TestPoisoning(ExperimentContract):
        name = "poisoning"
        tiny = given(train_items=200, epochs=1)
        kept = "square/0/trntk"

`tiny` shrinks the smoke scale to the least that still goes through everything; the smoke scale itself runs at night.
`kept` is a result that a run gone on with must not compute again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

import ntkscope as ns
from contracts.dataset import given
from ntkscope.core.claims import VERDICTS
from ntkscope.experiments._runner import configured

PREFIXES = ("surrogate-", "conjugate-", "shift-", "probes-", "spectra-", "relu-", "ntkreview-", "linearized-", "nfa-")
TIMES = ("seconds", "fit_seconds", "kernel_seconds")


def without_times(value: Any) -> Any:
    """A result without what differs from run to run."""
    if isinstance(value, Mapping):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return value


class ExperimentContract:
    """Subclass, set `name`, `tiny` and `kept`."""

    name: ClassVar[str]
    tiny: ClassVar[Mapping[str, Any]] = given()
    kept: ClassVar[str]
    timed: ClassVar[tuple[str, ...]] = ()  # what results that are times begin with: they differ from run to run
    identities: ClassVar[tuple[str, ...]] = ()  # claims that hold or fail whatever the scale
    root: ClassVar[str | None] = None
    own: ClassVar[bool] = False  # its statements are this project's, not a paper's: they are in no ledger

    @classmethod
    def run(cls, out: Path) -> ns.Record:
        return ns.run(cls.name, "smoke", out=out, device="cpu", root=cls.root, seed=3, **cls.tiny)

    @pytest.fixture(scope="class")
    @classmethod
    def record(cls, tmp_path_factory: pytest.TempPathFactory) -> ns.Record:
        return cls.run(tmp_path_factory.mktemp(cls.name) / "run")

    def test_it_leaves_a_finished_record(self, record: ns.Record) -> None:
        read = ns.Record.open(record.folder)
        assert read.status == "done"
        assert read.name == self.name
        assert all(stage.finished for stage in read.stages.values())

    def test_every_claim_has_a_verdict_and_none_is_reproduced_at_a_small_scale(self, record: ns.Record) -> None:
        ids = [claim.id for claim in record.claims]
        assert sorted(ids) == sorted(claim.id for claim in ns.EXPERIMENTS[self.name].published)
        verdicts = {claim.verdict for claim in record.claims if claim.id not in self.identities}
        assert verdicts <= {"stand-in", "not testable here"} < set(VERDICTS)

    def test_claims_have_ids_of_the_ledger(self) -> None:
        ids = [claim.id for claim in ns.EXPERIMENTS[self.name].published]
        assert ids
        assert len(set(ids)) == len(ids)
        assert all(name.startswith("own-") == self.own for name in ids)
        if self.own:
            assert {claim.source for claim in ns.EXPERIMENTS[self.name].published} == {"this project"}
            return
        assert all(name.startswith(PREFIXES) for name in ids)
        ledger = Path(os.environ.get("NTKSCOPE_DATA", "/nowhere")).parent / "claims"
        if ledger.is_dir():
            text = "\n".join(path.read_text(encoding="utf-8") for path in ledger.glob("*.yaml"))
            missing = [name for name in ids if f"- id: {name}\n" not in text]
            assert not missing, f"not in the ledger: {', '.join(missing)}"

    def test_figures_are_drawn(self, record: ns.Record) -> None:
        files = record.metrics["figures"]
        assert files
        assert {Path(file).suffix for file in files} == {".svg", ".png"}
        for file in files:
            assert (record.folder / file).stat().st_size > 1000

    def test_scales_are_plain_values_and_differ(self) -> None:
        config = ns.EXPERIMENTS[self.name].config
        smoke, paper = config.smoke(), config.paper()
        assert smoke != paper
        assert not ns.EXPERIMENTS[self.name].difference(paper)
        for scale in (smoke, paper):
            again = json.loads(json.dumps(dataclasses.asdict(scale)))  # type: ignore[call-overload]
            assert configured(ns.EXPERIMENTS[self.name], "paper", again) == scale

    @pytest.mark.nightly
    def test_a_killed_run_goes_on_and_computes_nothing_again(self, record: ns.Record) -> None:
        """Half of the results are taken away and one of the others is marked: the mark must survive, the rest come back."""
        before = dict(record.metrics)
        results = [key for key, value in before.items() if isinstance(value, Mapping) and key != self.kept]
        lost = [key for key in results if not key.startswith("training/")][::2]
        assert lost
        whole = {key.split("/")[0] for key in lost}  # a leg's own result comes after its parts
        lost += [key for key in results if key in whole and key not in lost]
        path = record.folder / "record.json"
        document = json.loads(path.read_text())
        for key in lost:
            del document["metrics"][key]
        document["metrics"][self.kept]["mark"] = "kept"
        document["status"] = "running"
        path.write_text(json.dumps(document))
        weights = {file: file.stat().st_mtime_ns for file in record.folder.glob("networks/*")}
        again = self.run(record.folder)
        assert again.status == "done"
        assert again.metrics[self.kept]["mark"] == "kept"
        for key in lost:
            if not (self.timed and key.startswith(self.timed)):
                assert without_times(again.metrics[key]) == without_times(before[key]), (
                    f"{key} differs when computed again"
                )
        assert {file: file.stat().st_mtime_ns for file in record.folder.glob("networks/*")} == weights

    @pytest.mark.nightly
    @pytest.mark.long
    def test_the_smoke_scale_runs(self, tmp_path: Path) -> None:
        assert ns.run(self.name, "smoke", out=tmp_path / "run", device="cpu", root=self.root).status == "done"
