"""Salient words: how much each token of a text matters to the network, and which words matter most in all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.tangent.model.batches import as_batch
from ntkscope.tangent.operators.inputs import real_tokens, token_ids, token_saliency
from ntkscope.xray.context import Context
from ntkscope.xray.items import Items
from ntkscope.xray.result import Result
from ntkscope.xray.task import CLASSIFICATION

WORDS = 15  # in the list
LONGEST = 120  # tokens of a shown text
SPECIAL = {"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<bos>", "<eos>", "<|endoftext|>"}


@dataclass(frozen=True)
class Text(Result):
    """One text of a part: its tokens, and the share of each in the sum of their saliencies."""

    item: int
    tokens: tuple[str, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Word(Result):
    """A token, its mean share where it occurs, in how many of the texts it does, and in how many it is the first."""

    token: str
    share: float
    texts: int
    first: int


@dataclass(frozen=True)
class Salient(Result):
    """Some texts, the most salient words, and how many texts those were looked for in."""

    texts: tuple[Text, ...]
    words: tuple[Word, ...]
    looked_at: int


def salient_words(context: Context, part: Items, shown: int) -> Salient:
    """Saliency of every token of `part`; the first `shown` of them whole, `item` counting within it."""
    saliency = token_saliency(
        context.model, part.x, centred=context.task is CLASSIFICATION, device=context.device
    ).numpy()
    named = token_names(context, part)
    shares = [_shares(row, tokens) for row, tokens in zip(saliency, named, strict=True)]
    texts = tuple(
        Text(i, tokens[:LONGEST], tuple(round(float(v), 5) for v in row[: len(tokens)][:LONGEST]))
        for i, (tokens, row) in enumerate(zip(named[:shown], shares[:shown], strict=True))
    )
    return Salient(texts, most_salient(named, shares), len(named))


def token_names(context: Context, part: Items) -> list[tuple[str, ...]]:
    """What stands at the positions of each text, up to its last token; "" for what is not of the text."""
    batch = as_batch(part.x, context.model)
    ids = token_ids(batch)
    if ids is None:
        return [() for _ in range(len(part))]
    lengths = _lengths(real_tokens(batch, ids))
    texts = part.texts or ("",) * len(part)
    return [
        pieces(context.settings.tokenizer, text, row[:length].tolist())
        for text, row, length in zip(texts, ids, lengths, strict=True)
    ]


def _lengths(real: Tensor) -> list[int]:
    """Positions up to the last token of each text."""
    places = torch.arange(1, real.shape[1] + 1, device=real.device)
    return [int(v) for v in (real * places).amax(1)]


def _shares(saliency: Float64[np.ndarray, " positions"], tokens: Sequence[str]) -> Float64[np.ndarray, " positions"]:
    """Each token's part of the sum; what is not of the text has none."""
    mine = np.zeros(len(saliency))
    own = [k for k, token in enumerate(tokens) if token]
    mine[own] = saliency[own]
    total = mine.sum()
    return mine / total if total > 0 else mine


def most_salient(
    named: Sequence[Sequence[str]], shares: Sequence[Float64[np.ndarray, " positions"]]
) -> tuple[Word, ...]:
    """The words with the largest mean share among those of at least two texts, or one in a hundred.

    A long text leaves each word less, so a share counts relative to that of an average token of its text.
    """
    held: dict[str, list[tuple[float, float]]] = defaultdict(list)
    first: dict[str, int] = defaultdict(int)
    for tokens, row in zip(named, shares, strict=True):
        if not any(tokens) or not row.any():
            continue
        first[tokens[int(np.argmax(row[: len(tokens)]))]] += 1
        count = sum(bool(token) for token in tokens)
        largest: dict[str, float] = {}
        for token, share in zip(tokens, row, strict=False):
            if token:
                largest[token] = max(largest.get(token, 0.0), float(share))
        for token, share in largest.items():
            held[token].append((share * count, share))
    least = max(2, len(named) // 100)
    often = {token: pairs for token, pairs in held.items() if len(pairs) >= min(least, len(named))}
    order = sorted(often, key=lambda token: -float(np.mean([pair[0] for pair in often[token]])))
    return tuple(
        Word(token, float(np.mean([pair[1] for pair in often[token]])), len(often[token]), first[token])
        for token in order[:WORDS]
    )


def pieces(tokenizer: Any, text: str, ids: Sequence[int]) -> tuple[str, ...]:
    """The token at each of `ids`; "" for one that is not of the text, such as [CLS].

    A Hugging Face tokenizer names its tokens. Of any other, the words of the text are taken where there are as many, else the
    numbers.

    >>> pieces(None, "a fine day", [4, 9, 2]), pieces(None, "a fine day", [101, 4, 9, 2, 102])
    (('a', 'fine', 'day'), ('', 'a', 'fine', 'day', ''))
    >>> pieces(None, "undoable", [4, 9])
    ('#4', '#9')
    """
    named = getattr(tokenizer, "convert_ids_to_tokens", None)
    if callable(named):
        special = set(map(str, getattr(tokenizer, "all_special_tokens", ()))) | SPECIAL
        return tuple("" if str(name) in special else readable(str(name)) for name in named(list(ids)))
    words = text.split()
    if len(words) == len(ids):
        return tuple(words)
    if len(words) + 2 == len(ids):
        return ("", *words, "")
    return tuple(f"#{number}" for number in ids)


def readable(name: str) -> str:
    """A token without the marks by which vocabularies say that it begins a word ("Ġ", "▁") or continues one ("##").

    >>> [readable(name) for name in ("Ġthe", "▁the", "##ing", "Ġ")]
    ['the', 'the', '-ing', '␣']
    """
    if name.startswith("##"):
        return f"-{name[2:]}"
    bare = name.replace("Ġ", "").replace("▁", "").replace("Ċ", "↵")
    return bare or "␣"
