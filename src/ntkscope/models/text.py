"""A classifier around any Hugging Face encoder."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, Share
from ntkscope.core.errors import DataCorrupt, DataNotFound
from ntkscope.core.files.safe_files import check_safetensors, parse_json, read_bytes
from ntkscope.models._init import seeded
from ntkscope.models.registry import MODELS

LARGEST_CONFIG = 1 << 24  # bytes of a config.json
MOST_PARTS = 10_000  # layers, heads, …
LARGEST_SIZE = 1 << 24  # of a vocabulary, a layer, …
POOLINGS = ("cls", "mean", "max", "last")


def pool_tokens(hidden: Float[Tensor, "n s d"], mask: Int[Tensor, "n s"] | None, pooling: str) -> Float[Tensor, "n d"]:
    """One vector per text from its token vectors: the first, the mean or maximum over real tokens, or the last real one.

    >>> hidden = torch.tensor([[[1.0], [3.0], [99.0]]])
    >>> mask = torch.tensor([[1, 1, 0]])
    >>> [pool_tokens(hidden, mask, how).item() for how in POOLINGS]
    [1.0, 2.0, 3.0, 3.0]
    """
    if pooling == "cls":
        return hidden[:, 0]
    if mask is None:
        mask = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
    real = mask.unsqueeze(-1).to(hidden.dtype)  # (n, s, 1)
    match pooling:
        case "mean":
            return (hidden * real).sum(1) / real.sum(1).clamp(min=1)
        case "max":
            return hidden.masked_fill(real == 0, -torch.inf).amax(1)
        case _:
            positions = torch.arange(mask.shape[1], device=mask.device)
            last = (mask * positions).argmax(1)  # right for padding on either side
            return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2])).squeeze(1)


class TextClassifier(nn.Module):
    """readout(pool(encoder(tokens))): call it with tensors, with keywords, or with a tokenizer's output as it is."""

    def __init__(self, encoder: nn.Module, hidden: int, classes: int, pooling: str, dropout: float) -> None:
        super().__init__()
        self.pooling = pooling
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.readout = nn.Linear(hidden, classes)

    def forward(
        self, input_ids: Any = None, attention_mask: Tensor | None = None, **inputs: Any
    ) -> Float[Tensor, "n c"]:
        if isinstance(input_ids, Mapping):  # a dict or a tokenizer's BatchEncoding
            inputs = {**input_ids, **inputs}
        elif input_ids is not None:
            inputs["input_ids"] = input_ids
        if attention_mask is not None:
            inputs["attention_mask"] = attention_mask
        output = self.encoder(**inputs)
        tokens = output if isinstance(output, Tensor) else output[0]  # (n, s, d)
        return self.readout(self.dropout(pool_tokens(tokens, inputs.get("attention_mask"), self.pooling)))

    def extra_repr(self) -> str:
        return f"pooling={self.pooling!r}"


@MODELS.register("text")
def text(
    encoder: nn.Module | str | Path,
    *,
    classes: Count = 2,
    pooling: Annotated[str, POOLINGS] = "mean",
    hidden: Count | None = None,
    dropout: Share = 0,
    pretrained: bool = True,
    attention: str = "eager",
    seed: int | None = 0,
) -> TextClassifier:
    """A linear readout on the pooled token vectors of `encoder`: a module, or a folder `save_pretrained` wrote.

    Nothing is downloaded. `pooling` is cls, mean, max or last; `hidden` the size of a token vector (by default the
    encoder's `config.hidden_size`). `pretrained=False` keeps the folder's architecture and draws fresh weights.
    `attention="eager"` is the implementation that every differentiation mode of PyTorch supports.

    Examples:
        >>> class Encoder(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed = nn.Embedding(100, 8)
        ...     def forward(self, input_ids, attention_mask=None):
        ...         return self.embed(input_ids)
        >>> text(Encoder(), hidden=8, classes=3)(torch.tensor([[5, 7, 2]])).shape
        torch.Size([1, 3])
    """
    with seeded(seed, "text"):
        if not isinstance(encoder, nn.Module):
            encoder = _open_encoder(Path(encoder), pretrained, attention)
        if hidden is None:
            hidden = getattr(getattr(encoder, "config", None), "hidden_size", None)
        if hidden is None:
            raise UsageError(
                f"{type(encoder).__name__} has no config.hidden_size; give hidden=, the size of its token vectors"
            )
        return TextClassifier(encoder, hidden, classes, pooling, dropout)


def _open_encoder(folder: Path, pretrained: bool, attention: str) -> nn.Module:
    """The encoder stored in `folder`, with its weights or with fresh ones."""
    if not (folder / "config.json").is_file():
        raise DataNotFound(
            f"no encoder at {folder}: expected a folder with config.json and model.safetensors, as"
            " encoder.save_pretrained(folder) writes it; names are not downloaded"
        )
    try:
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise UsageError(
            "an encoder given as a folder needs the package transformers, which is not installed;"
            ' run: pip install "ntkscope[text]"'
        ) from error
    check_config(folder, pretrained)
    try:
        if pretrained:
            encoder: nn.Module = transformers.AutoModel.from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                attn_implementation=attention,
                trust_remote_code=False,
            )
        else:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            encoder = transformers.AutoModel.from_config(config, attn_implementation=attention, trust_remote_code=False)
    except Exception as error:  # a folder that is damaged, or asks for code of its own, fails in many ways
        raise DataCorrupt(
            f"no encoder can be built from {folder} ({type(error).__name__}: {error}); expected a folder that save_pretrained"
            " wrote, without code of its own (which is never run): write it again with save_pretrained"
        ) from error
    return encoder


def check_config(folder: Path, pretrained: bool) -> None:
    """Raise `DataCorrupt` if a `config.json` specifies more or larger layers than an encoder has, or than its weights hold."""
    path = folder / "config.json"
    config = parse_json(read_bytes(path, DataCorrupt, limit=LARGEST_CONFIG), str(path), DataCorrupt)
    if not isinstance(config, dict):
        raise DataCorrupt(f"{path} holds a {type(config).__name__}; expected a mapping, as save_pretrained writes it")
    numbers = {key: value for key, value in config.items() if isinstance(value, int)}
    wrong = [key for key, value in numbers.items() if abs(value) > (MOST_PARTS if _counts(key) else LARGEST_SIZE)]
    if wrong:
        raise DataCorrupt(
            f"{path}: {wrong[0]} is {numbers[wrong[0]]:,}; expected at most {MOST_PARTS:,} parts of at most {LARGEST_SIZE:,}"
        )
    if pretrained:
        for weights in folder.glob("*.safetensors"):
            check_safetensors(weights)
        held = sum(weights.stat().st_size for weights in folder.glob("*.safetensors"))
        others = ("vocab_size", "intermediate_size", "max_position_embeddings", "type_vocab_size")
        table = abs(numbers.get("hidden_size", 0)) * max(abs(numbers.get(name, 0)) for name in others)
        if table > held + (1 << 20):  # at least one byte per number, in any type
            raise DataCorrupt(
                f"{path}: its largest layer has {table:,} numbers, but the weights beside it have {held:,} bytes; expected"
                " the weights of this configuration: write both again with save_pretrained"
            )


def _counts(key: str) -> bool:
    return key.startswith(("num_", "n_")) or key.endswith(("_layers", "_heads", "_groups"))
