"""Every section keeps the contract."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from contracts.section import SectionContract, watched
from ntkscope.xray import registry
from ntkscope.xray.registry import SECTIONS
from ntkscope.xray.result import Result
from ntkscope.xray.sections import explain
from xray.small import only, xrayed


class TestSummary(SectionContract):
    name = "summary"


class TestConfusion(SectionContract):
    name = "confusion"


class TestSurrogates(SectionContract):
    name = "surrogates"


class TestExplain(SectionContract):
    name = "explain"


class TestProblems(SectionContract):
    name = "problems"


class TestKernel(SectionContract):
    name = "kernel"


class TestTangent(SectionContract):
    name = "tangent"


class TestLayers(SectionContract):
    name = "layers"


class TestLayerFeatures(SectionContract):
    name = "layer_features"


class TestComputed(SectionContract):
    name = "computed"


class OfRegression(SectionContract):
    task = "regression"


class TestOutputSummary(OfRegression):
    name = "output_summary"


class TestSpectra(SectionContract):
    name = "weight_spectra"


class TestRepresentations(SectionContract):
    name = "representations"


class TestTraining(SectionContract):
    name = "tracked_training"


class TestSpectraOfRegression(OfRegression):
    name = "weight_spectra"


class TestLayerFeaturesOfRegression(OfRegression):
    name = "layer_features"


class TestOutputSurrogates(OfRegression):
    name = "output_surrogates"


class TestOutputExplain(OfRegression):
    name = "output_explain"


class TestOutputProblems(OfRegression):
    name = "output_problems"


class TestKernelOfRegression(OfRegression):
    name = "kernel"


class TestLayersOfRegression(OfRegression):
    name = "layers"


def test_canary_a_field_that_is_none_is_noticed() -> None:
    @dataclass(frozen=True)
    class Row(Result):
        tau: float

    strange: list[str] = []
    (row,) = watched([{"tau": 0.5}], tuple[Row, ...], strange)
    assert (row["tau"], row.get("tua"), strange) == (0.5, None, ["Row.tua"])


def test_only_a_sections_own_file_names_it() -> None:
    """Neither the job, nor the plan, nor another section tests for a section by its name."""
    room = Path(registry.__file__).parent
    named = {
        f"{file.name}: {name}"
        for file in [*room.glob("*.py"), *room.glob("sections/*.py")]
        for name, section in SECTIONS.items()
        if file.stem not in (section.run.__module__.rpartition(".")[2], "__init__")
        and re.search(f"(?<!method=)[\"']({name}|section:{name})[\"']", file.read_text())
    }
    assert named == set()


def test_points_without_which_a_class_scores_lower(tmp_path: Path) -> None:
    """As a ridge regression on the labels, fitted again without the point, says."""
    with only(explain.SECTION):
        record = xrayed(tmp_path)
    data = record.metrics["section:explain"]["data"]
    K, near = (np.asarray(record.arrays[f"kernels.trntk0.{side}"], dtype=np.float64) for side in ("train", "test"))
    own = np.sqrt(np.diag(K))
    K, near = K / np.outer(own, own), near / np.outer(np.sqrt(record.arrays["kernels.trntk0.test_diagonal"]), own)
    labels = np.asarray(record.arrays["labels.train"])
    y = np.eye(labels.max() + 1)[labels]
    alpha = np.diag(K).mean()
    index, value, chosen = (
        np.asarray(record.arrays[f"explain.{n}"]) for n in ("influence_index", "influence_value", "chosen")
    )
    for t, item in list(enumerate(data["items"]))[:3]:
        c, i = chosen[t, 0], index[t, 0, 0]
        rest = np.delete(np.arange(len(K)), i)
        whole = near[item] @ np.linalg.solve(K + alpha * np.eye(len(K)), y[:, c])
        part = near[item, rest] @ np.linalg.solve(K[np.ix_(rest, rest)] + alpha * np.eye(len(rest)), y[rest, c])
        assert value[t, 0, 0] == pytest.approx(whole - part, abs=2e-6)
