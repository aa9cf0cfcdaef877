"""Words: a planted trigger word is found, and the texts that the network gets wrong are shown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ntkscope as ns
from contracts.section import SectionContract
from ntkscope.tangent.operators.inputs import token_saliency
from ntkscope.xray.budget import Pace
from ntkscope.xray.salient_words import most_salient
from ntkscope.xray.sections import words
from xray.small import only
from xray.texts import TRIGGER, WordTokenizer, read, texts


class TestWords(SectionContract):
    name = "words"
    task = "texts"


def test_words_count_by_their_share_for_the_length_of_a_text() -> None:
    named = [("a", "b"), ("a", "c", "c", "d"), ("", "b", "d")]
    shares = [np.array([0.5, 0.5]), np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.0, 0.1, 0.9])]
    found = most_salient(named, shares)
    assert [(word.token, word.texts, word.first) for word in found] == [("a", 2, 2), ("d", 2, 1), ("b", 2, 0)]
    assert found[0].share == pytest.approx(0.45)


def test_a_trigger_word_has_the_largest_saliency(tmp_path: Path) -> None:
    """The label is whether the trigger word is in the text; labels of some held-out texts are turned, which it gets wrong."""
    model, tokenizer = read(), WordTokenizer()
    held, y = texts(100, seed=1)
    batch = tokenizer(held)
    saliency = token_saliency(model, batch, centred=True).numpy() * (batch["input_ids"] > 2).numpy()
    top = batch["input_ids"].numpy()[np.arange(len(held)), saliency.argmax(1)]
    with_trigger = [k for k, text in enumerate(held) if TRIGGER in text]
    assert np.mean([tokenizer.convert_ids_to_tokens([int(top[k])])[0] == TRIGGER for k in with_trigger]) >= 0.9
    y[:30] = 1 - y[:30]
    wrong = set(np.flatnonzero(model(**batch).argmax(1).numpy() != y.numpy()).tolist())
    with only(words.SECTION):
        record = ns.xray(model, texts(120), (held, y), tmp_path, tokenizer=tokenizer, kernels=["ck"], progress=False)
    section = words.SECTION.read(record.metrics)
    assert section is not None
    assert (section.words[0].token, section.looked_at) == (TRIGGER, len(held))
    assert section.words[0].first >= 0.9 * section.words[0].texts
    assert wrong <= {text.item for text in section.texts}
    assert len(wrong) >= 25
    assert {text.item for text in section.texts[: len(wrong)]} == wrong
    assert len(section.texts) == len(wrong) + words.SHOWN // 2
    assert all(abs(sum(text.shares) - 1) < 1e-3 for text in section.texts)
    page = ns.report.write_page(tmp_path).read_text()
    assert "predicted as" in page
    assert f"{len(section.texts) - 20} more texts" in page
    assert "undrawn" not in page


@pytest.mark.parametrize(("left", "few", "many"), [(1.0, words.SHOWN, words.SHOWN), (100.0, 60, 100), (1e6, 256, 256)])
def test_there_are_as_many_texts_as_there_is_time_for(left: float, few: int, many: int) -> None:
    """Here a text takes a quarter of a second, and at most a tenth of the time that is left is for those beyond the first."""
    context: Any = SimpleNamespace(
        clock=SimpleNamespace(left=lambda: left),
        pace=Pace(1.0),
        plan=SimpleNamespace(steps={"section words": words.SHOWN / 4}),
    )
    assert few <= words._affordable(context) <= many
