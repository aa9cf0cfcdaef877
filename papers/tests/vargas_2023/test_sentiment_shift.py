"""Shift within Sentiment140: the contract, measurements against plain definitions, verdicts that can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record
from ntkscope.core import Part, Record
from ntkscope_papers.vargas_2023 import shift_measures as measure
from ntkscope_papers.vargas_2023 import tweets as _tweets
from ntkscope_papers.vargas_2023.sentiment_shift import SentimentShift
from ntkscope_papers.vargas_2023.tweets import hidden_states, pretrained, untrained

CPU = torch.device("cpu")


@pytest.mark.guard
class TestSentimentShift(ExperimentContract):
    name = "sentiment-shift"
    tiny = given(items=40, sizes=["1x8"], permutations=59, filters=1, pairs=1, poolings=["mean"])

    @pytest.fixture(autouse=True)
    def needed(self) -> None:
        pytest.importorskip("transformers")


def test_hidden_states_are_pooled_over_real_tokens() -> None:
    """Whatever stands in the padding, and in whichever batches: layers and poolings of one pass against single tweets."""
    pytest.importorskip("transformers")
    found = _tweets.tweets("made-up", "tiny", root=None, length=6)
    encoder = pretrained("tiny", CPU)
    x = {key: value[:9] for key, value in found.manual.x.items()}
    states = hidden_states(encoder, x, poolings=("mean", "cls", "last"), batch=4)
    assert sorted({layer for layer, _ in states}) == [0, 1, 2]
    for i in range(9):
        size = int(x["attention_mask"][i].sum())
        with torch.no_grad():
            alone = encoder(input_ids=x["input_ids"][i : i + 1, :size], output_hidden_states=True).hidden_states
        for layer, hidden in enumerate(alone):
            expected = {"mean": hidden[0].mean(0), "cls": hidden[0, 0], "last": hidden[0, -1]}
            for pooling, value in expected.items():
                assert states[layer, pooling][i] == pytest.approx(value.numpy(), abs=1e-5)
    assert hidden_states(encoder, x, layers=[-1])[-1, "mean"] == pytest.approx(states[2, "mean"], abs=1e-6)


def test_untrained_encoders_have_the_published_weights() -> None:
    pytest.importorskip("transformers")
    one, two = (untrained("tiny", "2x16", 0.02, seed, CPU) for seed in (0, 1))
    weights = {name: value for name, value in one.named_parameters() if value.ndim == 2}
    assert max(float(value.detach().abs().max()) for value in weights.values()) <= 0.04
    assert not torch.equal(*(each.get_parameter("embeddings.word_embeddings.weight") for each in (one, two)))


def test_energy_distance_against_its_definition() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(13, 3)), random.normal(size=(7, 3)) + 1

    def mean(x: np.ndarray, y: np.ndarray, same: bool) -> float:
        values = [np.linalg.norm(p - q) for i, p in enumerate(x) for j, q in enumerate(y) if not (same and i == j)]
        return float(np.mean(values))

    expected = 2 * mean(a, b, False) - mean(a, a, True) - mean(b, b, True)
    assert measure.energy_distance(a, b, CPU) == pytest.approx(expected, rel=1e-12)


def test_the_filter_keeps_what_its_probe_confirms() -> None:
    """Labels of P of which a third are wrong: kept tweets are right more often, and training on them helps."""
    random = np.random.default_rng(0)
    y_M, true = np.arange(80) % 2, np.arange(600) % 2
    M = random.normal(size=(80, 5)) + 1.5 * (2 * y_M[:, None] - 1)
    P = random.normal(size=(600, 5)) + 1.5 * (2 * true[:, None] - 1) + 0.5
    wrong = random.random(600) < 0.33
    y_P = np.where(wrong, 1 - true, true)
    found, _ = measure.filtered(P, M, y_P, y_M, 0.6, 0, CPU)
    assert found["kept that the probe agrees with"] > 0.95
    assert found["kept"] == 2 * int(0.6 * np.bincount(y_P).min())
    assert found["accuracy on M"]["filtered"] >= found["accuracy on M"]["as many at random"] - 0.02
    distances = found["energy distance to P"]["in PC1–2"]
    assert abs(distances["as many at random"]) < distances["M"]


def test_accepted_tweets_look_like_the_others_in_the_plane_alone() -> None:
    """The first two components carry one difference, a direction of small variance another: only the first goes away."""
    random = np.random.default_rng(0)
    scale = np.array([6.0, 4.0, 1.0, 1.0, 0.5])
    P, M = random.normal(size=(1200, 5)) * scale, random.normal(size=(200, 5)) * scale
    M[:, 0] += 5.0
    M[:, -1] += 1.0
    y_P, y_M = np.arange(1200) % 2, np.arange(200) % 2
    found = measure.subsample(P, M, y_P, y_M, 0)
    assert found["AUC in PC1–2 before"][0] > 0.65
    assert abs(found["AUC in PC1–2"][0] - 0.5) < 0.1  # three standard errors of about 150 against 200
    assert abs(found["AUC in PC1–2, tweets of M not used"][0] - 0.5) < 0.13
    assert found["AUC in all dimensions"][0] > 0.85
    assert 50 < found["accepted"] < 800


def test_handles_are_counted_by_class() -> None:
    part = _tweets.tweets("made-up", "tiny", root=None, length=6).processed.take(range(4))
    texts = ["@anna", "@tom", "@tom  hello", "good morning"]
    both = [Part(part.x, torch.tensor(labels), {"text": texts}) for labels in ([0, 1, 1, 0], [0, 1, 1, 1])]
    found = measure.counts(*both)
    assert found["one handle and nothing else, negative and positive"] == [1, 1]
    assert found["inputs with both labels"] == 1
    assert found["for example"] == ["USERNAME"]
    assert found["negative and positive"] == {"P": [2, 2], "M": [1, 3]}


PAPER = SentimentShift()


def effects(auc: float, plane: float) -> dict[str, Any]:
    names = {"auc": auc, "auc_pc12": plane, "auc_pc12_qda": plane, "ks": 0.3}
    found: dict[str, Any] = {name: [value, value - 0.02, min(1.0, value + 0.02)] for name, value in names.items()}
    return {**found, "p": {"c2st": 5e-4, "holm": 1e-3}, "verdict": "shift"}


def made_up(folder: Path, **changes: Any) -> Record:
    rows: dict[str, Any] = {
        "counts": {
            "negative and positive": {"P": [9930, 10050], "M": [177, 182]},
            "one handle and nothing else, negative and positive": [18, 21],
            "inputs with both labels": 3,
        },
        "identity": {"largest difference": 1e-13},
        "one-sided": {"pairs": 10, "found in PC1–2": 1, "found by C2ST": 10},
        "plane": {"first component": {"auc": [0.7, 0.6, 0.8], "ks": [0.3, 0.2, 0.4], "p": 5e-4}},
        "linear": {"balanced accuracy": 0.9, "labels shuffled": 0.51},
        "subsample": {"AUC in PC1–2": [0.52, 0.48, 0.56], "AUC in all dimensions": [0.95, 0.9, 0.97]},
    }
    rows |= {f"layer/{k}": {how: effects(0.95, 0.7) for how in PAPER.poolings} for k in range(PAPER.blocks + 1)}
    rows |= {f"untrained/{size}/{d}": effects(0.9, 0.6) for size in PAPER.sizes for d in range(PAPER.draws)}
    rows |= {
        f"filter/{s}": {
            "kept": 13700,
            "of": 19980,
            "accuracy on M": {"filtered": 0.80, "as many at random": 0.81},
            "energy distance to P": {
                "in PC1–2": {"filtered": 0.001, "as many at random": 0.0, "M": 0.02},
                "in all dimensions": {"filtered": 0.001, "M": 0.04},
            },
        }
        for s in range(PAPER.filters)
    }
    for key, change in changes.items():
        rows[key] = {**rows[key], **change}
    return made_record(folder, "sentiment-shift", **rows)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return judged(made_up(tmp_path_factory.mktemp("good") / "run"))


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        (
            "conjugate-fig12-first-pc-shift",
            {"plane": {"first component": {"auc": [0.5, 0.4, 0.6], "ks": [0.1, 0.0, 0.2], "p": 0.02}}},
        ),
        ("shift-dataset-sizes", {"counts": {"negative and positive": {"P": [1, 1], "M": [182, 177]}}}),
        ("shift-embedded-kernel-pca-identity", {"identity": {"largest difference": 1e-6}}),
        ("shift-linear-separability", {"linear": {"balanced accuracy": 0.7, "labels shuffled": 0.5}}),
        ("shift-linear-separability", {"linear": {"balanced accuracy": 0.9, "labels shuffled": 0.6}}),
        (
            "shift-label-noise-identical-inputs",
            {"counts": {"one handle and nothing else, negative and positive": [0, 21]}},
        ),
        ("shift-fig15-models", {"layer/6": {"mean": effects(0.95, 0.9)}}),
        ("shift-pca-one-sided", {"one-sided": {"found in PC1–2": 3}}),
        ("shift-pca-one-sided", {"one-sided": {"found by C2ST": 9}}),
        ("shift-pca-filter", {"subsample": {"AUC in PC1–2": [0.6, 0.5, 0.7]}}),
    ],
)
def test_a_verdict_follows_what_was_measured(
    claim: str, changes: dict[str, Any], good: dict[str, Any], tmp_path: Path
) -> None:
    bad = judged(made_up(tmp_path, **changes))
    assert (good[claim].holds, bad[claim].holds) == (True, False)


def test_a_filter_that_changes_much_is_told(good: dict[str, Any], tmp_path: Path) -> None:
    near = {"in PC1–2": {"filtered": 0.01, "as many at random": 0.0, "M": 0.02}, "in all dimensions": {"M": 1.0}}
    moved = {
        f"filter/{s}": {"energy distance to P": near, "accuracy on M": {"filtered": 0.70, "as many at random": 0.81}}
        for s in range(PAPER.filters)
    }
    bad = judged(made_up(tmp_path, **moved))
    for claim in ("shift-fig14-filter-no-change", "shift-filter-downstream"):
        assert (good[claim].holds, bad[claim].holds) == (True, False)
