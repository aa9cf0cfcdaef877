"""The small causal language model: its contract, against GPT-2 of Hugging Face, and trained on sequences."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import ntkscope as ns
from contracts.model import ModelContract, given
from ntkscope.core import Part, UsageError, generator
from ntkscope.models import build, sequence_inputs, sequence_log_likelihood


def ids(n: int, s: int, vocabulary: int = 11) -> Tensor:
    return torch.randint(0, vocabulary, (n, s), generator=generator(0, "gpt tests"))


class TestGPT(ModelContract):
    """Its outputs are (n, s, vocabulary): what has one row per input is the log-likelihood that is made of it."""

    name = "gpt"
    options = given(vocabulary=11, context=6, width=8, depth=2, heads=2)
    item_shape = (6,)
    classes = 1
    parameters = 11 * 8 + 6 * 8 + 2 * (12 * 64 + 13 * 8) + 2 * 8

    def build(self, **changes: Any) -> nn.Module:
        return sequence_log_likelihood(super().build(**changes))

    def inputs(self, n: int) -> Tensor:
        return ids(n, *self.item_shape)


def test_it_is_the_gpt2_of_hugging_face() -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra [text]")
    sizes = {"vocab_size": 11, "n_positions": 6, "n_embd": 8, "n_layer": 2, "n_head": 2}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)).double()
    ours = build("gpt", **TestGPT.options).double()
    names = {
        "transformer.wte.weight": "tokens.weight",
        "transformer.wpe.weight": "positions.weight",
        "transformer.ln_f": "norm",
        "lm_head.weight": "readout.weight",
        "transformer.h": "blocks",
        "ln_1": "norm1",
        "ln_2": "norm2",
        "attn.c_attn": "attention.qkv",
        "attn.c_proj": "attention.project",
        "mlp.c_fc": "expand",
        "mlp.c_proj": "contract",
    }
    weights = {}
    for key, value in theirs.state_dict().items():
        transposed = ".c_" in key and value.ndim == 2  # their linear layers hold the transposed matrix
        for old, new in names.items():
            key = key.replace(old, new)
        weights[key] = value.T if transposed else value
    ours.load_state_dict(weights)
    x = ids(3, 6)
    assert_close(ours(x), theirs.eval()(x).logits, rtol=1e-10, atol=1e-12)


def test_it_starts_as_published() -> None:
    net = build("gpt", width=64, depth=8)
    deviations = {key: float(p.detach().std()) for key, p in net.named_parameters() if p.ndim == 2}
    for key, deviation in deviations.items():
        expected = 0.02 / math.sqrt(16) if key.endswith(("project.weight", "contract.weight")) else 0.02
        assert 0.95 < deviation / expected < 1.05, (
            key
        )  # four standard errors of the smallest matrix, 4,096 numbers: 0.044
    assert net.readout.weight is net.tokens.weight
    assert build("gpt", tied=False).readout.weight.shape == (257, 64)


def test_no_token_sees_those_after_it() -> None:
    net, x = build("gpt", **TestGPT.options).double().eval(), ids(2, 6)
    other = x.clone()
    other[:, 4:] = (x[:, 4:] + 1) % 11
    assert_close(net(x)[:, :4], net(other)[:, :4], rtol=0, atol=1e-15)
    assert (net(x)[:, 4:] - net(other)[:, 4:]).abs().min(dim=-1).values.max() > 1e-6  # … and sees itself


def test_bad_options_and_inputs() -> None:
    with pytest.raises(UsageError, match="width=10 with heads=4; expected a width that the heads divide"):
        build("gpt", width=10)
    net = build("gpt", context=4, width=8)
    with pytest.raises(UsageError, match=r"shape \(1, 5\); expected \(n, s\) with s ≤ 4"):
        net(ids(1, 5))
    with pytest.raises(UsageError, match=r"shape \(5,\); expected \(n, s\)"):
        net(ids(1, 5)[0])


def test_trained_by_fit_it_learns_what_follows() -> None:
    """Three texts, two of which begin alike: once learned, each has a third of the likelihood, and what must follow all."""
    texts = ["ab.", "ac.", "de."]
    lm = build("gpt", width=16, depth=1, heads=2, context=8)
    part = Part(sequence_inputs(texts, end=256), torch.zeros(len(texts)))
    settings = {"lr": 0.01, "steps": 150, "optimizer": "adam", "loss": lambda outputs, _: -outputs[:, 0]}
    run = ns.training.fit(sequence_log_likelihood(lm, mean=True), part, **settings)
    before, after = (snapshot.metrics["loss"] for snapshot in run)
    assert before == pytest.approx(math.log(257), abs=0.05)
    entropy = math.log(3) / 4  # of a text of four tokens
    assert entropy <= after < entropy + 0.02
    with torch.no_grad():
        follows = sequence_log_likelihood(lm)(**sequence_inputs([("a", "b."), ("d", "e.")]))
    assert_close(follows.exp(), torch.tensor([[0.5], [1.0]]), rtol=0, atol=0.05)
