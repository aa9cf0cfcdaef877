"""Embeddings: one vector per item, from arrays, a layer of a network, a folder with an encoder, or a function."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope import models
from ntkscope.core import Part, UsageError
from ntkscope.core.arguments import plain_array
from ntkscope.core.errors import DataCorrupt, StoreError
from ntkscope.core.types import fingerprint
from ntkscope.models.text import POOLINGS, pool_tokens
from ntkscope.tangent.certify.features import AuditedFeatures
from ntkscope.tangent.forward.stages import outputs_of, tensor_in
from ntkscope.tangent.model.batches import Batch, as_batch
from ntkscope.tangent.model.guards import check_mode
from ntkscope.tangent.model.subject import Subject

Vectors = Float64[np.ndarray, "n p"]
BATCH = 64
FILE = "embeddings.safetensors"


def embedded(
    embed: Any, a: Any, b: Any, *, layer: str | int | None = None, pooling: Any = "mean", store: Any = None
) -> tuple[Vectors, Vectors]:
    """Both samples as vectors (n, p) and (m, q) in float64.

    `embed`: None for arrays and tensors (n, …); a module, whose `layer` (a module's name, or the number of a hidden state of
    a Hugging Face model; None: its outputs) is taken in its own mode; the folder of an encoder, for texts; or a function of
    the items. Token vectors (n, tokens, width) and images (n, channels, h, w) are pooled: "mean", "max", "cls", "last" (tokens
    alone), "flatten", or a function of the tensor. `store`: a folder in which vectors of a network are kept.
    """
    if isinstance(pooling, str) and pooling not in (*POOLINGS, "flatten"):
        raise UsageError(f"got pooling={pooling!r}; expected one of {', '.join((*POOLINGS, 'flatten'))}, or a function")
    if embed is None or (callable(embed) and not isinstance(embed, nn.Module)):
        if layer is not None or store is not None:
            raise UsageError("got layer= or store= without a network; they go with a module or an encoder's folder")
        given = (x if embed is None else embed(x) for x in (a, b))
        first, second = (_rows(x, name) for x, name in zip(given, "ab"))
        return first, second
    if not isinstance(embed, nn.Module | str | os.PathLike):
        raise UsageError(
            f"got embed of type {type(embed).__name__}; expected None for arrays, a module, an encoder's folder, or a function"
        )
    if isinstance(embed, nn.Module):
        run: Callable[[Any], Tensor] = partial(layer_outputs, embed, layer=layer, pooling=pooling)
        state = fingerprint(dict(embed.state_dict()))
    else:
        encoder, tokenizer = _opened(Path(embed))
        run = partial(_texts, encoder, tokenizer, layer=layer, pooling=pooling)
        state = fingerprint(dict(encoder.state_dict()))
    samples = [x.x if isinstance(x, Part) else x for x in (a, b)]
    if store is None:
        first, second = (_rows(run(x), name) for x, name in zip(samples, "ab"))
        return first, second
    return _stored(Path(store), run, samples, f"{state} layer {layer} pooling {pooling}")


def layer_outputs(model: nn.Module, x: Any, layer: str | int | None, pooling: Any) -> Tensor:
    """Pooled outputs of one layer for every item, in blocks; of each block, some items are run alone as well."""
    run = _runner(model, layer, pooling)
    batch = as_batch(x, model)
    return torch.cat([run(batch[start : start + BATCH]) for start in range(0, len(batch), BATCH)])


def _runner(model: nn.Module, layer: str | int | None, pooling: Any) -> Callable[[Batch], Tensor]:
    """What runs one block of items after the other, on the network's device, and gives rows in float64."""
    check_mode(model)
    subject = Subject(model, still=True)
    audited = AuditedFeatures(subject, partial(_block, layer=layer, pooling=pooling))

    def rows(block: Batch) -> Tensor:
        with torch.no_grad():
            return audited(block.to(subject.device, None))[0].double().cpu()

    return rows


def _block(subject: Subject, batch: Batch, layer: str | int | None, pooling: Any) -> list[Tensor]:
    mask = batch.entry("attention_mask")
    if isinstance(layer, int):
        batch = Batch(batch.args, {**batch.kwargs, "output_hidden_states": True})
    with outputs_of(subject.model, [layer] if isinstance(layer, str) else []) as seen:
        whole = subject.run(batch)
    if isinstance(layer, str):
        calls = seen.get(layer, [])
        if len(calls) != 1:
            raise UsageError(f"layer {layer!r} was called {len(calls)} times; expected once: choose another layer")
        value = calls[0]
    elif isinstance(layer, int):
        states = getattr(whole, "hidden_states", None)
        if states is None or not -len(states) <= layer < len(states):
            raise UsageError(
                f"got layer={layer} for a model with {0 if states is None else len(states)} hidden states; expected the name of"
                " a module, or the number of a hidden state of a Hugging Face model"
            )
        value = states[layer]
    else:
        value = whole if isinstance(whole, Tensor) else getattr(whole, "logits", None)
        value = tensor_in(whole) if value is None else value
    if value is None or value.dim() < 2 or len(value) != len(batch):
        shape = None if value is None else tuple(value.shape)
        raise UsageError(
            f"layer {layer!r} gives {shape} for {len(batch)} items; expected one row each: choose another layer"
        )
    return [pooled(value, mask, pooling)]


def pooled(value: Tensor, mask: Tensor | None, pooling: Any) -> Tensor:
    """One vector (n, p) per item from what a layer gives.

    >>> pooled(torch.arange(8.0).reshape(1, 2, 2, 2), None, "mean")
    tensor([[1.5000, 5.5000]])
    """
    if callable(pooling):
        return pooling(value).flatten(1)
    if value.dim() == 2 or pooling == "flatten":
        return value.flatten(1)
    if value.dim() == 3:
        return pool_tokens(value, mask if mask is not None and mask.shape == value.shape[:2] else None, pooling)
    if pooling not in ("mean", "max"):
        raise UsageError(
            f"got pooling={pooling!r} for a layer of shape {tuple(value.shape)}; expected mean, max or flatten where there are"
            " no tokens"
        )
    flat = value.flatten(2)
    return flat.mean(2) if pooling == "mean" else flat.amax(2)


def _opened(folder: Path) -> tuple[nn.Module, Any]:
    """The encoder and the tokenizer of a folder that `save_pretrained` wrote; nothing is downloaded, no code of it is run."""
    encoder = models.build("text", encoder=folder).encoder
    assert isinstance(encoder, nn.Module)
    try:
        tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a damaged folder fails in many ways
        raise DataCorrupt(
            f"no tokenizer can be loaded from {folder} ({type(error).__name__}: {error}); expected a folder in which"
            " tokenizer.save_pretrained wrote it beside the encoder"
        ) from error
    return encoder.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def _texts(encoder: nn.Module, tokenizer: Any, texts: Any, layer: str | int | None, pooling: Any) -> Tensor:
    """Vectors of texts, those of similar length run together."""
    words = list(texts)
    if not all(isinstance(text, str) for text in words):
        raise UsageError("got items that are not texts for an encoder's folder; expected a list of strings")
    order = sorted(range(len(words)), key=lambda i: len(words[i]))
    parts, run = [], _runner(encoder, layer, pooling)
    for start in range(0, len(order), BATCH):
        some = [words[i] for i in order[start : start + BATCH]]
        tokens = tokenizer(some, padding=True, truncation=True, return_tensors="pt")
        parts.append(run(as_batch(dict(tokens), encoder)))
    found = torch.cat(parts)
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return found[back]


def _rows(values: Any, name: str) -> Vectors:
    if isinstance(values, Part):
        values = values.x
    rows = plain_array(values, name)
    if rows.dtype.kind not in "fiub":
        raise UsageError(
            f"got {name} of type {type(values).__name__}; expected numbers (n, …), one row per item: pass embed= for anything"
            " else"
        )
    if rows.ndim < 1 or not len(rows):
        raise UsageError(f"got {name} of shape {rows.shape}; expected (n, …), one row per item")
    return rows.astype(np.float64, copy=False).reshape(len(rows), -1)


def _stored(folder: Path, run: Callable[[Any], Tensor], samples: list[Any], what: str) -> tuple[Vectors, Vectors]:
    """The vectors kept in `folder`, if they are of these items and this network; else computed and kept."""
    identity = fingerprint(what, samples)
    path = folder / FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = {name: run(x) for name, x in zip("ab", samples)}
        models.save_tensors({**made, identity: torch.zeros(0)}, path)
    held = models.read_weights(path)
    if identity not in held or not {"a", "b"} <= set(held):
        raise StoreError(
            f"{path} holds embeddings of other items, another network, layer or pooling; choose another folder, or remove it"
        )
    return _rows(held["a"], "a"), _rows(held["b"], "b")
