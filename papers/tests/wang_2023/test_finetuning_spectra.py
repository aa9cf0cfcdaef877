"""The conjugate kernel during fine-tuning: the contract, moments against plain features, resuming, verdicts that can fail."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record
from ntkscope.core import Part, Record
from ntkscope_papers.shared.sentences import build_encoder, sentences
from ntkscope_papers.wang_2023 import finetuning_spectra as experiment
from ntkscope_papers.wang_2023.finetuning_spectra import FinetuningSpectra

pytest.importorskip("transformers")
CPU = torch.device("cpu")


@pytest.mark.guard
class TestFinetuningSpectra(ExperimentContract):
    name = "finetuning-spectra"
    tiny = given(train_items=64, points=24, epochs=2)


def test_moments_are_fractions_of_an_epoch() -> None:
    moments = FinetuningSpectra(train_items=4000, batch=32, epochs=10, per_epoch=10).moments
    assert (moments[0], moments[-1], len(moments)) == (0, 1250, 101)
    assert max(b - a for a, b in pairwise(moments)) <= 13


def test_a_moment_is_that_of_the_pooled_features() -> None:
    """CK = Z Zᵀ of the readout's inputs in evaluation mode, by a hook; alignments with labels ±1; the model keeps its mode."""
    split = sentences("made-up", "tiny", root=None, train=30, test=5, length=6)
    model = build_encoder("tiny", 0).train()
    caught: list[Any] = []
    hook = model.get_submodule("readout").register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    with torch.no_grad():
        model.eval()(split.train.x)
    hook.remove()
    model.train()
    Z = caught[0].double()
    values, vectors = torch.linalg.eigh(Z @ Z.T)
    y = split.train.y.double() * 2 - 1
    found = experiment.moment(model, Part(split.train.x, split.train.y), CPU)
    assert model.training
    assert found["values"][:5] == pytest.approx(values.flip(0)[:5].tolist(), rel=1e-5)
    aligned = (y @ vectors).abs().flip(0) / y.norm()
    assert found["alignments"][:3] == pytest.approx(aligned[:3].tolist(), rel=1e-3, abs=1e-4)
    assert found["positive"] <= Z.shape[1]


@pytest.mark.parametrize("seed", range(3))
def test_a_power_law_is_told_from_an_exponential(seed: int) -> None:
    random = np.random.default_rng(seed)
    assert experiment.upper_tenth(1 + random.pareto(1.5, 2000))["ratio"] > 2
    assert experiment.upper_tenth(random.exponential(size=2000))["ratio"] < 1
    assert experiment.upper_tenth(1 + random.pareto(1.5, 2000))["points"] == 200


@pytest.mark.guard
def test_a_run_killed_at_a_moment_continues_to_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between checkpoints: the moments it took stay, the others are those of a run that was left alone."""
    small = {"train_items": 64, "points": 24, "epochs": 2, "per_epoch": 2}
    whole = ns.run("finetuning-spectra", "smoke", out=tmp_path / "whole", device="cpu", **small)
    real, count = experiment.moment, 0

    def dies(*args: Any) -> dict[str, Any]:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(experiment, "moment", dies)
    with pytest.raises(KeyboardInterrupt):
        ns.run("finetuning-spectra", "smoke", out=tmp_path / "run", device="cpu", **small)
    monkeypatch.setattr(experiment, "moment", real)
    again = ns.run("finetuning-spectra", "smoke", out=tmp_path / "run", device="cpu", **small)
    for key, row in whole.metrics.items():
        if key.startswith(("moment/", "accuracy/")):
            other = {name: value for name, value in again.metrics[key].items() if name != "seconds"}
            assert other == {name: value for name, value in row.items() if name != "seconds"}, key
    assert not list((tmp_path / "run").glob("checkpoints*"))


def made_up(
    folder: Path,
    *,
    test: float = 0.84,
    first: Any = (10.0, 5.0, 9.0),
    end: float = 0.8,
    median: float = 0.1,
    ratio: float = 1.0,
) -> Record:
    record = made_record(folder, "finetuning-spectra", **{"accuracy/0": {"train": 0.96, "test": test}})
    for step, value in enumerate(first):
        along = 0.1 if step < len(first) - 1 else end
        tail = {"alpha": 2.0, "ratio": ratio, "p": 0.1, "points": 30}
        row = {"step": step, "values": [value, 1.0], "alignments": [0.2, along], "median": median, "tail": tail}
        record.put(**{f"moment/0/{step}": row})
    return record


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        ("fig23-accuracies", {"test": 0.7}),
        ("fig23-eigen-evolution", {"first": (10.0, 9.0, 5.0)}),
        ("fig23-eigen-evolution", {"first": (5.0, 4.99, 9.0)}),
        ("fig23-alignment", {"end": 0.25}),
        ("pretrained-ck-heavy-tail", {"median": 2.0}),
        ("pretrained-ck-heavy-tail", {"ratio": -0.1}),
    ],
)
def test_a_verdict_follows_what_was_measured(claim: str, changes: dict[str, Any], tmp_path: Path) -> None:
    good, bad = judged(made_up(tmp_path / "good")), judged(made_up(tmp_path / "bad", **changes))
    assert all(one.holds for one in good.values())
    assert bad[f"spectra-{claim}"].holds is False
