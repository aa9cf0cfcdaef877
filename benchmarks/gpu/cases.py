"""The five networks that are timed on a GPU, with random weights and inputs: images and token ids, the same in every process.

The two transformers are written out in plain PyTorch (no fused attention), so that `torch.func` can transform them and no
other package is needed where they are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import generator
from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.kernel.plan import Footprint
from ntkscope.tangent.model.batches import as_batch
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.probed import Probed


class Layer(nn.Module):
    """One layer of an encoder; `before`: norms stand before the two branches (ViT), else after them (BERT)."""

    def __init__(self, width: int, heads: int, inner: int, before: bool) -> None:
        super().__init__()
        self.heads, self.before = heads, before
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def widen(self, x: Tensor) -> Tensor:
        return self.outer(nn.functional.gelu(self.inner(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            x = x + self.attend(self.norm1(x))
            return x + self.widen(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.widen(x))


class VisionTransformer(nn.Module):
    """ViT for 32 × 32 images in patches of 4: 64 tokens and one for the class."""

    def __init__(self, width: int = 192, depth: int = 12, heads: int = 3, tokens: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, tokens + 1, width))
        self.layers = nn.Sequential(*(Layer(width, heads, 4 * width, before=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.norm(self.layers(tokens))[:, 0])


class TextEncoder(nn.Module):
    """BERT with a classifier on the first token; the default is the shape of BERT-base."""

    def __init__(
        self, width: int = 768, depth: int = 12, heads: int = 12, words: int = 30522, classes: int = 2
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(Layer(width, heads, 4 * width, before=False) for _ in range(depth)))
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        places = self.places(torch.arange(ids.shape[1], device=ids.device))
        hidden = self.layers(self.norm(self.words(ids) + places))
        return self.head(self.pooler(hidden[:, 0]).tanh())


@dataclass(frozen=True, eq=False)
class GpuCase:
    """A network, its inputs, how many of them are few and how many are many, and the published targets of both.

    `targets`: how many times faster than `torch.func` a kept engine must be, by (number of inputs, precision).
    """

    name: str
    build: Callable[[bool], nn.Module]  # whether it is tiny
    inputs: Callable[[int, bool], Tensor]
    small: int
    large: int
    targets: dict[tuple[int, str], float]

    def made(self, n: int, device: str, tiny: bool = False) -> tuple[nn.Module, Tensor]:
        """The network in evaluation mode and its first `n` inputs, on `device`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.build(tiny).eval().requires_grad_(True)
        return model.to(device), self.inputs(n, tiny).to(device)


def _images(*shape: int) -> Callable[[int, bool], Tensor]:
    def draw(n: int, tiny: bool) -> Tensor:
        sides = (8, 8) if tiny and shape[0] == 3 else shape[1:]
        return torch.randn(n, shape[0], *sides, generator=generator(0, "gpu cases", *shape))

    return draw


def _ids(n: int, tiny: bool) -> Tensor:
    drawn = generator(0, "gpu cases", "ids")
    return torch.randint(5, 90 if tiny else 30000, (n, 6 if tiny else 128), generator=drawn)


def _vit(tiny: bool) -> nn.Module:
    return VisionTransformer(12, 1, 2, tokens=4) if tiny else VisionTransformer()


def _bert(tiny: bool) -> nn.Module:
    return TextEncoder(16, 1, 2, 100) if tiny else TextEncoder()


def _resnet18(tiny: bool) -> nn.Module:
    return ns.models.build("resnet18", width=1 / 16) if tiny else ns.models.build("resnet18")


CASES = {
    case.name: case
    for case in (
        GpuCase("lenet", lambda tiny: ns.models.build("lenet"), _images(1, 28, 28), 2048, 8192, {(2048, "exact"): 3.0}),
        GpuCase(
            "resnet20", lambda tiny: ns.models.build("resnet20"), _images(3, 32, 32), 1024, 4096, {(1024, "exact"): 7.0}
        ),
        GpuCase("resnet18", _resnet18, _images(3, 32, 32), 256, 2048, {(256, "exact"): 8.0, (256, "bf16"): 16.0}),
        GpuCase("vit-tiny", _vit, _images(3, 32, 32), 256, 2048, {(256, "exact"): 8.0}),
        GpuCase("bert-base", _bert, _ids, 64, 512, {(64, "exact"): 3.0, (512, "exact"): 4.0, (512, "bf16"): 10.0}),
    )
}


@lru_cache
def probed(name: str, tiny: bool) -> tuple[Subject, Probed]:
    model, x = CASES[name].made(4, "cpu", tiny)
    subject = Subject(model)
    return subject, Probed.of(subject, as_batch(x, model))


def footprint(name: str, precision: str, tiny: bool = False) -> Footprint:
    """What a sample takes on a GPU with tensor cores; nothing is run there."""
    subject, found = probed(name, tiny)
    engine = Engine(subject, found, Heads(), full=False, precision=Precision(precision, subject.dtype))
    each = engine.footprint_on(torch.device("cuda"))
    return replace(each, made_of="halves") if precision == "exact" else each


def check_names(only: Sequence[str] | None) -> None:
    """Refuse networks that are not among the cases."""
    unknown = [name for name in only or () if name not in CASES]
    if unknown:
        raise SystemExit(f"got --only {', '.join(unknown)}; expected {', '.join(CASES)}")
