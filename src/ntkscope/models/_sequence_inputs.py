"""Prompts and continuations as the inputs of a language model: token ids and two masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import instance
from ntkscope.core.checked import Count, CountOrZero


class ByteTokenizer:
    """Texts as their UTF-8 bytes, 0 to 255, behind a start token, 256, which also ends them; called as Hugging Face's are.

    Examples:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer("Hé"), tokenizer.decode([256, 72, 195, 169])
        ({'input_ids': [256, 72, 195, 169]}, 'Hé')
    """

    vocab_size = 257
    bos_token_id = eos_token_id = 256

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        instance(text, "a text", str, "one text at a time, a str")
        return {"input_ids": [self.bos_token_id] * add_special_tokens + list(text.encode())}

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids, without marks of start and end; broken characters are shown as �."""
        return bytes(int(i) for i in ids if 0 <= int(i) < 256).decode(errors="replace")


def sequence_inputs(
    texts: Sequence[str | tuple[str, str]],
    tokenizer: Callable[..., Any] | None = None,
    *,
    start: CountOrZero | None = None,
    end: CountOrZero | None = None,
    apart: bool = False,
    length: Count | None = None,
) -> dict[str, Tensor]:
    """The inputs of `sequence_log_likelihood`, of pairs (prompt, continuation); a text alone is a continuation of no prompt.

    `tokenizer`: one of Hugging Face, or what is called like it; `ByteTokenizer()` by default. A prompt and its continuation
    are tokenized as one text, whose first tokens must be those of the prompt alone: where a token crosses the boundary, the
    pair is refused. `apart=True` tokenizes the two apart and joins them, always possible, but not how the model has seen text.

    `start`: the token before each text, by default what the tokenizer itself begins with, if it is its `bos_token_id`. `end`:
    a token behind each continuation. Rows are padded on the right to the longest one, or to `length`; no text is cut.

    Examples:
        >>> x = sequence_inputs([("a", "bc"), "d"], end=256)
        >>> x["input_ids"].tolist(), x["continuation"].int().tolist()
        ([[256, 97, 98, 99, 256], [256, 100, 256, 0, 0]], [[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    """
    if not len(texts):
        raise UsageError("got no texts; expected at least one text or pair (prompt, continuation)")
    tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
    if start is None:
        own = _ids(tokenizer, "", True)[:1]
        before = own if own == [getattr(tokenizer, "bos_token_id", None)] else []
    else:
        before = [start]
    after = [] if end is None else [end]
    rows = []
    for number, text in enumerate(texts):
        prompt, continuation = ("", text) if isinstance(text, str) else text
        head, tail = _parted(tokenizer, prompt, continuation, apart, number)
        if not tail or not before + head:
            raise UsageError(
                f"texts[{number}]: got {'no continuation' if not tail else 'a continuation that nothing precedes'} in {text!r};"
                " expected at least one token to score and one before it: give a prompt, or start=, the id of a start token"
            )
        rows.append((before + head, tail + after))
    sizes = [len(head) + len(tail) for head, tail in rows]
    longest = max(sizes) if length is None else length
    if max(sizes) > longest:
        number = sizes.index(max(sizes))
        raise UsageError(
            f"texts[{number}] has {sizes[number]} tokens; expected at most length={longest}: leave it out or shorten it"
        )
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask, scored = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    for row, (head, tail) in enumerate(rows):
        ids[row, : sizes[row]] = torch.tensor(head + tail)
        mask[row, : sizes[row]] = True
        scored[row, len(head) : sizes[row]] = True
    return {"input_ids": ids, "attention_mask": mask, "continuation": scored}


def _parted(tokenizer: Any, prompt: str, continuation: str, apart: bool, number: int) -> tuple[list[int], list[int]]:
    """The tokens of a prompt and of its continuation."""
    head = _ids(tokenizer, prompt)
    if apart or not prompt or not continuation:
        return head, _ids(tokenizer, continuation)
    whole = _ids(tokenizer, prompt + continuation)
    if whole[: len(head)] == head:
        return head, whole[len(head) :]
    raise UsageError(
        f"texts[{number}]: a token crosses the boundary of {prompt[-20:]!r} and {continuation[:20]!r} (got {whole}; the prompt"
        f" alone is {head}); expected the boundary between two tokens: move a space from the end of the prompt to the"
        " continuation, or pass apart=True"
    )


def _ids(tokenizer: Any, text: str, special: bool = False) -> list[int]:
    encoding = tokenizer(text, add_special_tokens=special)
    try:
        return [int(i) for i in encoding["input_ids"]]
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise UsageError(
            f"the tokenizer returned {type(encoding).__name__} for a text; expected a mapping whose 'input_ids' is a list of"
            " token ids, as a tokenizer of Hugging Face returns"
        ) from error
