"""Tokens as people read them: what stands at each position of a text, as far as the tokenizer can tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SPECIAL = {"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<bos>", "<eos>", "<|endoftext|>"}


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
