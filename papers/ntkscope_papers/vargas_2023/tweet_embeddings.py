"""Tweets as vectors: pooled hidden states of every layer of an encoder, trained or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import nn

from ntkscope.core import Part, UsageError, derive_seed
from ntkscope.core.tree import length
from ntkscope.models.text import pool_tokens, text
from ntkscope.training.redraw import redraw_network
from ntkscope_papers.shared.sentences import WORDS, _folder, _transformers, build_encoder

Vectors = Float64[np.ndarray, "n d"]
SIZES: dict[str, tuple[int, int, int, int]] = {  # layers, width, heads, inner width
    "1x8": (1, 8, 2, 16),
    "2x16": (2, 16, 2, 32),
    "2x128": (2, 128, 2, 512),
    "4x256": (4, 256, 4, 1024),
    "6x384": (6, 384, 12, 1536),
    "12x768": (12, 768, 12, 3072),
}


def pretrained(encoder: str, device: torch.device) -> nn.Module:
    """The encoder alone, in evaluation mode."""
    if encoder == "tiny":
        return build_encoder("tiny", 0).get_submodule("encoder").to(device).eval()
    return text(_folder(encoder)).get_submodule("encoder").float().to(device).eval()


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
    part, wanted = Part(dict(x), torch.zeros(length(x))), tuple(poolings)
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
