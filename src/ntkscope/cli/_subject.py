"""What a command is about: a network with its weights, its tokenizer, and the data; `kernel` and `xray` read it alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

import ntkscope as ns
from ntkscope.cli._factories import data_of, imported, model_of, options, tokenizer_of
from ntkscope.core import UsageError
from ntkscope.core.identity import identity


@dataclass(frozen=True, eq=False)
class Subject:
    """A network, data as their factory made them, and `made_with`: the factory, its code and its options, which are part of the
    network's identity: another one is another network."""

    network: Any
    tokenizer: Any
    train: Any
    test: Any
    classes: tuple[str, ...]
    made_with: Mapping[str, Any]


def subject_of(
    model: str,
    weights: Path | None,
    data: str,
    model_option: list[str] | None,
    data_option: list[str] | None,
    data_root: Path | None,
    tokenizer: str | None,
    seed: int,
) -> Subject:
    """Everything these options name, made and loaded; a network's factory may bring its tokenizer along."""
    factory = identity(imported(model, "model")) if ":" in model else ""
    told = {
        "factory": model,
        "code": factory,
        **{f"model {key}": value for key, value in options(model_option).items()},
    }
    network, words = model_of(model, options(model_option)), tokenizer_of(tokenizer)
    if isinstance(network, tuple) and len(network) == 2:
        network, words = network[0], words or network[1]
    if not isinstance(network, nn.Module):
        raise UsageError(
            f"--model {model!r} made an object of type {type(network).__name__}; expected a torch.nn.Module, or (module,"
            " tokenizer)"
        )
    if any(tensor.is_meta for tensor in (*network.parameters(), *network.buffers())):
        raise UsageError(
            f"--model {model!r} made a network on the device meta, which holds no numbers; expected one with weights: build it"
            " on the CPU"
        )
    if weights is not None:
        ns.models.load_weights(network, weights)
    root = None if data_root is None else str(data_root)
    train, test, classes = data_of(data, options(data_option), root, seed, network)
    return Subject(network, words, train, test, classes, told)
