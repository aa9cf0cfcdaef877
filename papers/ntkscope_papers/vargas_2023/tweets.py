"""Sentiment140 as two samples, P labelled by emoticons and M by hand: as tokens, and as pooled hidden states of encoders.

Made-up sentences are for smoke runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from ntkscope import data, models
from ntkscope.core import Part, UsageError, derive_seed, generator, numpy_generator
from ntkscope.core.model.tree import length as count_items
from ntkscope.models.text import pool_tokens
from ntkscope.models.text import text as text_model
from ntkscope.training.transfer.redraw import redraw_network
from ntkscope_papers.shared.sentences import WORDS, _folder, _transformers, build_encoder

HANDLE = re.compile(r"(?<!\w)@\w+")
MASK = "USERNAME"
Vectors = Float64[np.ndarray, "n d"]
SIZES: dict[str, tuple[int, int, int, int]] = {  # layers, width, heads, inner width
    "1x8": (1, 8, 2, 16),
    "2x16": (2, 16, 2, 32),
    "2x128": (2, 128, 2, 512),
    "4x256": (4, 256, 4, 1024),
    "6x384": (6, 384, 12, 1536),
    "12x768": (12, 768, 12, 3072),
}


@dataclass(frozen=True, eq=False)
class Tweets:
    """P and M: tokens, labels (0 negative, 1 positive), and under `extras["text"]` what the tweets said before masking."""

    processed: Part
    manual: Part


def masked(text: str) -> str:
    """The tweet with every handle replaced by one word.

    >>> masked("@anna me too, ask a@b.org and @_tom!")
    'USERNAME me too, ask a@b.org and USERNAME!'
    """
    return HANDLE.sub(MASK, text)


def handle_only(text: str) -> bool:
    """Whether a tweet says nothing but one handle.

    >>> handle_only(" @anna "), handle_only("@anna hello"), handle_only("@anna @tom")
    (True, False, False)
    """
    return HANDLE.fullmatch(text.strip()) is not None


def first_of_each(texts: Sequence[str]) -> Int64[np.ndarray, " k"]:
    """The places at which a text occurs for the first time.

    >>> first_of_each(["a", "b", "a"]).tolist()
    [0, 1]
    """
    return np.sort(np.unique(np.array(texts, dtype=object), return_index=True)[1]).astype(np.int64)


def tweets(dataset: str, encoder: str, *, root: str | None, length: int, limit: int | None = None) -> Tweets:
    """P (each text once) and M; handles masked, tweets padded or cut to `length` tokens. `limit`: tweets of P at most."""
    if dataset == "made-up":
        return Tweets(_made_up(limit or 200, length, "processed"), _made_up(72, length, "manual"))
    split = data.load(dataset, root=root, max_train=limit)
    tokenizer = _transformers().AutoTokenizer.from_pretrained(
        _folder(encoder), local_files_only=True, trust_remote_code=False
    )

    def part(given: Part) -> Part:
        texts = list(given.x)
        made = tokenizer(
            [masked(text) for text in texts],
            padding="max_length",
            truncation=True,
            max_length=length,
            return_tensors="pt",
        )
        return Part({key: made[key] for key in ("input_ids", "attention_mask")}, given.y, {"text": texts})

    once = split.train.take(torch.from_numpy(first_of_each(split.train.x)))
    return Tweets(part(once), part(split.test))


def _made_up(count: int, length: int, which: str) -> Part:
    """Sentences of random words, positive where words of the lower third outnumber those of the middle one; sentences of M
    have more words of the upper third."""
    draw = generator(0, "made-up tweets", which)
    third = WORDS // 3
    words = torch.randint(1, 2 * third + 1, (count, length), generator=draw)
    other = torch.rand(count, length, generator=draw) < (0.5 if which == "manual" else 0.2)
    words = torch.where(other, torch.randint(2 * third + 1, WORDS + 1, (count, length), generator=draw), words)
    sizes = torch.randint(max(1, length // 2), length + 1, (count,), generator=draw)
    mask = (torch.arange(length) < sizes[:, None]).long()
    good, bad = (((words - 1) // third == k).logical_and(mask == 1).sum(1) for k in (0, 1))
    y = torch.where(good == bad, torch.arange(count) % 2, (good > bad).long())
    texts = [" ".join(map(str, row[:size].tolist())) for row, size in zip(words, sizes)]
    return Part({"input_ids": words * mask, "attention_mask": mask}, y, {"text": texts})


def balanced(y: Tensor, counts: Sequence[int], seed: int, *purpose: str) -> list[Int64[np.ndarray, " k"]]:
    """Disjoint random samples with `counts` items of each class, in ascending order.

    >>> first, second = balanced(torch.tensor([0, 1, 0, 1, 1]), [1, 1], 0)
    >>> len(first), len(second), set(first) & set(second)
    (2, 2, set())
    """
    labels, draw = y.numpy(), numpy_generator(seed, "tweets", *purpose)
    found: list[list[int]] = [[] for _ in counts]
    for label in np.unique(labels):
        order = draw.permutation(np.flatnonzero(labels == label))
        if len(order) < sum(counts):
            raise UsageError(
                f"got {len(order)} tweets of class {int(label)}; expected at least {sum(counts)} for samples of"
                f" {', '.join(map(str, counts))} per class"
            )
        ends = np.cumsum([0, *counts])
        for sample, start, end in zip(found, ends, ends[1:]):
            sample.extend(order[start:end].tolist())
    return [np.sort(np.array(sample, dtype=np.int64)) for sample in found]


def manual_split(y: Tensor, per_class: int, seed: int) -> tuple[Int64[np.ndarray, " k"], Int64[np.ndarray, " m"]]:
    """`per_class` tweets of each class to train on, all others to test on."""
    (train,) = balanced(y, [per_class], seed, "manual")
    return train, np.setdiff1d(np.arange(len(y)), train).astype(np.int64)


def classifier(encoder: str, pooling: str, seed: int) -> nn.Module:
    """The encoder under a two-class readout of its pooled token vectors."""
    if encoder == "tiny":
        model = build_encoder(encoder, seed)
        model.pooling = pooling  # type: ignore[assignment]
        return model.eval()
    made = models.build("text", encoder=_folder(encoder), classes=2, pooling=pooling, seed=seed)
    return made.float().eval()  # weights may be stored in half precision


def pretrained(encoder: str, device: torch.device) -> nn.Module:
    """The encoder alone, in evaluation mode."""
    if encoder == "tiny":
        return build_encoder("tiny", 0).get_submodule("encoder").to(device).eval()
    return text_model(_folder(encoder)).get_submodule("encoder").float().to(device).eval()


def untrained(encoder: str, size: str, std: float, seed: int, device: torch.device) -> nn.Module:
    """An encoder of the given size with the vocabulary of `encoder` and fresh weights."""
    if size not in SIZES:
        raise UsageError(f"got an encoder of size {size!r}; expected one of {', '.join(SIZES)}")
    transformers = _transformers()
    words, places = WORDS + 1, 64
    if encoder != "tiny":
        known = transformers.AutoConfig.from_pretrained(
            _folder(encoder), local_files_only=True, trust_remote_code=False
        )
        words, places = known.vocab_size, known.max_position_embeddings
    layers, width, heads, inner = SIZES[size]
    config = transformers.BertConfig(
        vocab_size=words,
        max_position_embeddings=places,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=inner,
    )
    model = transformers.BertModel(config)
    return redraw_network(model, derive_seed(seed, "untrained", size), std).to(device).eval()


def hidden_states(
    encoder: nn.Module,
    x: Mapping[str, Any],
    *,
    layers: Iterable[int] | None = None,
    poolings: Iterable[str] = ("mean",),
    batch: int = 256,
) -> dict[tuple[int, str], Vectors]:
    """Pooled hidden states of every item, by layer (0: the embedding; negative from the end) and pooling; one forward pass."""
    device = next(encoder.parameters()).device
    part, wanted = Part(dict(x), torch.zeros(count_items(x))), tuple(poolings)
    rows: dict[tuple[int, str], list[np.ndarray]] = {}
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for start in range(0, len(part), batch):
            piece = part.take(torch.arange(start, min(start + batch, len(part)))).to(device).x
            states = encoder(**piece, output_hidden_states=True).hidden_states
            for layer in range(len(states)) if layers is None else layers:
                for pooling in wanted:
                    pooled = pool_tokens(states[layer], piece["attention_mask"], pooling)
                    rows.setdefault((layer, pooling), []).append(pooled.double().cpu().numpy())
    return {key: np.concatenate(several) for key, several in rows.items()}
