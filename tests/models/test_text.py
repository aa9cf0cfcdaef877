"""The text classifier: pooling, the ways it is called, encoders from folders."""

from __future__ import annotations

import sys
from collections import UserDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from contracts.model import ModelContract
from ntkscope.core import UsageError, generator
from ntkscope.core.errors import DataNotFound
from ntkscope.models import build, text
from ntkscope.models.text import POOLINGS, pool_tokens


class Encoder(nn.Module):
    """Token embeddings, in the shape of a Hugging Face output; the mask must not be needed to run it."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=6)
        self.embedding = nn.Embedding(11, 6)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor]:
        return (self.embedding(input_ids),)


class TestText(ModelContract):
    """Around an encoder that is given, whose weights no seed draws."""

    name = "text"
    item_shape = (5,)
    classes = 3
    parameters = 11 * 6 + 6 * 3 + 3

    def build(self, **changes: Any) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            encoder = Encoder()
        return build("text", **{"encoder": encoder, "classes": self.classes, **changes})

    def inputs(self, n: int) -> Tensor:
        return torch.randint(0, 11, (n, *self.item_shape), generator=generator(0, "model contract"))


IDS = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8], [9, 0, 0, 0, 0]])
MASK = (IDS != 0).long()


def naive_pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    rows = []
    for vectors, real in zip(hidden, mask):
        kept = vectors[real.bool()]
        rows.append({"cls": vectors[0], "mean": kept.mean(0), "max": kept.max(0).values, "last": kept[-1]}[pooling])
    return torch.stack(rows)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("flip", [False, True])
def test_pooling_against_the_naive_one(pooling: str, flip: bool) -> None:
    hidden = torch.randn(3, 5, 6, generator=generator(0, "hidden"), dtype=torch.float64)
    mask = MASK.flip(1) if flip else MASK  # padding after or before the text
    assert_close(pool_tokens(hidden, mask, pooling), naive_pool(hidden, mask, pooling), rtol=1e-14, atol=1e-14)
    everything = torch.ones_like(mask)
    assert_close(pool_tokens(hidden, None, pooling), naive_pool(hidden, everything, pooling), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_does_not_matter(pooling: str) -> None:
    model = text(Encoder(), pooling=pooling, classes=3).eval()
    longer = torch.nn.functional.pad(IDS, (0, 4))
    assert_close(model(IDS, MASK), model(longer, (longer != 0).long()), rtol=1e-6, atol=1e-6)


def test_the_ways_to_call_it_agree() -> None:
    model = text(Encoder(), classes=4).eval()
    expected = model(IDS, MASK)
    batch: dict[str, Any] = {"input_ids": IDS, "attention_mask": MASK}
    assert expected.shape == (3, 4)
    assert torch.equal(model(**batch), expected)
    assert torch.equal(model(batch), expected)
    assert torch.equal(model(UserDict(batch)), expected)  # what a tokenizer returns is one
    assert not torch.equal(model(IDS), expected)  # without a mask every token counts


def test_seed_draws_the_readout_and_leaves_the_encoder() -> None:
    encoder = Encoder()
    before = encoder.embedding.weight.clone()
    first, second, other = (text(encoder, seed=seed) for seed in (0, 0, 1))
    assert first.encoder is encoder
    assert torch.equal(encoder.embedding.weight, before)
    assert torch.equal(first.readout.weight, second.readout.weight)
    assert not torch.equal(first.readout.weight, other.readout.weight)


def test_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="pooling='sum'; expected one of 'cls', 'mean', 'max', 'last'"):
        text(Encoder(), pooling="sum")
    with pytest.raises(UsageError, match=r"Embedding has no config.hidden_size; give hidden="):
        text(nn.Embedding(3, 4))
    with pytest.raises(UsageError, match="text needs the option 'encoder'"):
        build("text")
    with pytest.raises(DataNotFound, match=r"no encoder at bert-base-uncased.*names are not downloaded"):
        text("bert-base-uncased")
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(UsageError, match=r'pip install "ntkscope\[text\]"'):
        text(tmp_path)


def test_an_encoder_that_returns_a_tensor() -> None:
    class Plain(nn.Module):
        def forward(self, input_ids: Tensor) -> Tensor:
            return nn.functional.one_hot(input_ids, 11).float()

    assert text(Plain(), hidden=11)(IDS).shape == (3, 2)


def test_a_real_bert_from_a_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra [text]")
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    encoder = transformers.BertModel(config)
    encoder.save_pretrained(tmp_path)
    batch = transformers.BatchEncoding({"input_ids": IDS, "attention_mask": MASK})
    opened = build("text", encoder=tmp_path, classes=3, pooling="cls").eval()
    given = build("text", encoder=encoder, classes=3, pooling="cls").eval()
    assert_close(opened(batch), given(**batch), rtol=1e-6, atol=1e-6)
    fresh = [build("text", encoder=str(tmp_path), pretrained=False, seed=s).eval()(batch) for s in (0, 0, 1)]
    assert torch.equal(fresh[0], fresh[1])
    assert not torch.equal(fresh[0], fresh[2])
    alone = torch.cat([opened(IDS[i : i + 1], MASK[i : i + 1]) for i in range(3)])
    assert_close(opened(batch), alone, rtol=1e-5, atol=1e-6)
