"""Hypothesis strategies that draw whole networks: depth, widths, options, sharing, repetition, unsupported parts.

Every strategy gives an `Architecture`: a float64 model in eval mode with (n, c) outputs, and inputs for it. A network
is grown block by block; each block knows the shape it is given and returns the shape it leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from strategies import blocks
from strategies.networks import randomize

Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True, eq=False)
class Architecture:
    """A network and inputs for it; its repr is the module tree, so that a failing example can be read."""

    model: Any
    x: Any

    def __repr__(self) -> str:
        shapes = [tuple(t.shape) for t in (self.x if isinstance(self.x, tuple) else (self.x,))]
        frozen = [name for name, p in self.model.named_parameters() if not p.requires_grad]
        return f"Architecture(inputs {shapes}, frozen {frozen}, {self.model})"

    @property
    def layers(self) -> list[str]:
        """Modules called once, one row a sample: what `em` and `ptk` can be asked for."""
        kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm)
        odd = blocks.Repeat | blocks.DetachedGate | blocks.Folded | blocks.TimeFirst
        several = [name for name, m in self.model.named_modules() if isinstance(m, odd)]
        return [
            name
            for name, module in self.model.named_modules()
            if type(module) in kinds and not any(name.startswith(f"{outer}.") for outer in several)
        ]


class Network(nn.Module):
    """Blocks one after the other, then pooling, then a linear readout."""

    def __init__(self, body: list[nn.Module], pool: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.pool, self.head = nn.Sequential(*body), pool, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.body(x)))


ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.Tanh,
    nn.ReLU,
    lambda: nn.ReLU(inplace=True),
    nn.GELU,
    nn.SiLU,
    nn.PReLU,
    nn.Identity,
    lambda: nn.Dropout(0.5),
]
widths = st.integers(2, 6)


def activation(draw: Draw) -> nn.Module:
    return draw(st.sampled_from(ACTIVATIONS))()


def linear(draw: Draw, inner: int, outer: int) -> nn.Module:
    kind = draw(st.sampled_from(["plain", "plain", "plain", "weight norm", "transposed", "scaled"]))
    return blocks.make_linear(kind, inner, outer, bias=draw(st.booleans()))


def pointwise(draw: Draw, width: int, grow: bool = True) -> tuple[nn.Module, int]:
    """A block on the last axis of vectors or sequences."""
    kind = draw(st.sampled_from(["linear", "norm", "residual", "repeat", "tied", "scale", "bilinear", "gate"]))
    if kind == "linear" and grow:
        wider = draw(widths)
        return nn.Sequential(linear(draw, width, wider), activation(draw)), wider
    if kind == "norm":
        return draw(st.sampled_from(blocks.FEATURE_NORMS))(width), width
    if kind == "residual":
        wider = draw(widths)
        return blocks.residual(linear(draw, width, wider), activation(draw), linear(draw, wider, width)), width
    if kind == "repeat":
        return blocks.Repeat(linear(draw, width, width), activation(draw), draw(st.integers(2, 3))), width
    if kind == "tied":
        return blocks.tied(width, draw(widths)), width
    if kind == "scale":
        return blocks.scaled_twice(width), width
    if kind == "bilinear":
        return blocks.self_bilinear(width), width
    return blocks.DetachedGate(width), width


def settle(draw: Draw, model: nn.Module) -> Any:
    """Randomise the values; sometimes freeze a few parameters and leave one unused."""
    if draw(st.integers(0, 3)) == 0:
        model.register_parameter("idle", nn.Parameter(torch.ones(2)))
    names = [name for name, _ in model.named_parameters() if not name.startswith("head")]
    frozen = draw(st.sets(st.sampled_from(names), max_size=2)) if names and draw(st.booleans()) else set()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return randomize(model, draw(st.integers(0, 99)))


def batch(draw: Draw, *shape: int) -> Tensor:
    g = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return torch.randn(draw(st.integers(1, 5)), *shape, generator=g, dtype=torch.float64)


@st.composite
def vector_networks(draw: Draw) -> Architecture:
    """MLPs of any depth with norms, residuals, repeated and tied layers, bilinear and bare parameters."""
    start = width = draw(widths)
    body = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(draw(st.integers(0, 4))):
            if draw(st.integers(0, 5)) == 0:
                body.append(draw(st.sampled_from(blocks.VECTOR_NORMS))(width))
            else:
                block, width = pointwise(draw, width)
                body.append(block)
        head = nn.Linear(width, draw(st.integers(1, 4)), bias=draw(st.booleans()))
    return Architecture(settle(draw, Network(body, nn.Identity(), head)), batch(draw, start))


@st.composite
def sequence_networks(draw: Draw, tokens: bool = False) -> Architecture:
    """Attention, encoder layers, recurrent cells, folded and sequence-first layers, on vectors or token ids."""
    length, start = draw(st.integers(1, 4)), 2 * draw(st.integers(1, 3))
    width = start
    body: list[nn.Module] = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if tokens:
            padding = draw(st.sampled_from([None, 0]))
            body.append(nn.Embedding(6, start, padding_idx=padding))
            if draw(st.booleans()):
                body.append(blocks.learned_positions(length, start))
        for _ in range(draw(st.integers(1, 3))):
            kind = draw(st.sampled_from(["pointwise", "mixer", "mixer"]))
            if kind == "pointwise":
                body.append(pointwise(draw, width, grow=False)[0])
            else:
                body.append(blocks.make_mixer(draw(st.sampled_from(blocks.MIXERS)), width, draw(st.booleans())))
        pool, width = blocks.make_pool(draw(st.sampled_from(["mean", "last", "flatten"])), length, width)
        head: nn.Module = nn.Linear(width, draw(st.integers(1, 3)), bias=draw(st.booleans()))
        if tokens and width == start and draw(st.booleans()):
            head = nn.Linear(width, 6, bias=draw(st.booleans()))
            head.weight = body[0].weight  # type: ignore[assignment]
    model = settle(draw, Network(body, pool, head))
    if not tokens:
        return Architecture(model, batch(draw, length, start))
    g = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return Architecture(model, torch.randint(6, (draw(st.integers(1, 5)), length), generator=g))


def convolution(draw: Draw, dims: int, channels: int, size: list[int]) -> nn.Module:
    groups = draw(st.sampled_from([g for g in (1, 1, 2, channels) if channels % g == 0]))
    bias, outer = draw(st.booleans()), groups * draw(st.integers(1, 2 if groups > 1 else 4))
    kernel = [draw(st.integers(1, min(3, s))) for s in size]
    if draw(st.integers(0, 4)) == 0:
        stride = draw(st.integers(1, 2)) if max(size) < 5 else 1
        return blocks.TRANSPOSED[dims](channels, outer, kernel, stride=stride, groups=groups, bias=bias)
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    dilation = [draw(st.integers(1, 2)) if 2 * (k - 1) + 1 <= s else 1 for k, s in zip(kernel, size)]
    mode = draw(st.sampled_from(["zeros", "zeros", "zeros", "circular"]))
    options = {"stride": draw(st.integers(1, 2)), "padding": padding, "dilation": dilation, "padding_mode": mode}
    return blocks.CONVOLUTIONS[dims](channels, outer, kernel, groups=groups, bias=bias, **options)


@st.composite
def convolutional_networks(draw: Draw) -> Architecture:
    """Conv1d/2d/3d with every option, transposed, depthwise, residual and repeated, norms and pooling."""
    dims, start = draw(st.sampled_from([1, 2, 2, 3])), draw(st.integers(1, 4))
    shape = (start, *[draw(st.integers(2, 6 if dims < 3 else 3)) for _ in range(dims)])
    body: list[nn.Module] = []
    probe = torch.zeros(1, *shape)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(draw(st.integers(1, 3))):
            channels, size = probe.shape[1], list(probe.shape[2:])
            kind = draw(st.sampled_from(["conv", "conv", "norm", "residual", "repeat", "pool"]))
            if kind == "norm":
                block: nn.Module = draw(st.sampled_from(blocks.CHANNEL_NORMS[: 2 if max(size) > 1 else 1]))(
                    dims, channels
                )
            elif kind in ("residual", "repeat"):
                odd = [draw(st.sampled_from([1, 3])) for _ in size]
                groups = draw(st.sampled_from([1, channels]))
                padding = [k // 2 for k in odd]
                conv = blocks.CONVOLUTIONS[dims](channels, channels, odd, padding=padding, groups=groups)
                block = (
                    blocks.residual(conv, activation(draw)) if kind == "residual" else blocks.Repeat(conv, nn.Tanh(), 2)
                )
            elif kind == "pool" and min(size) > 1:
                block = blocks.make_downsampling(draw(st.sampled_from(["avg", "max"])), dims)
            else:
                block = nn.Sequential(convolution(draw, dims, channels, size), activation(draw))
            body.append(block)
            probe = block.eval()(probe).detach()
        if draw(st.booleans()):
            pool: nn.Module = blocks.global_average()
            width = probe.shape[1]
        else:
            pool, width = nn.Flatten(), probe[0].numel()
        head = nn.Linear(width, draw(st.integers(1, 3)), bias=draw(st.booleans()))
    return Architecture(settle(draw, Network(body, pool, head)), batch(draw, *shape))


FAMILIES = {
    "vectors": vector_networks(),
    "sequences": sequence_networks(),
    "tokens": sequence_networks(tokens=True),
    "convolutions": convolutional_networks(),
}
few = settings(  # the same ones every day, and no shrinking, which is for the night
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    derandomize=True,
    max_examples=3,
    phases=[Phase.explicit, Phase.generate],
)
many = settings(few, derandomize=False, max_examples=160)


def architectures() -> st.SearchStrategy[Architecture]:
    """Any of the above."""
    return st.one_of(*FAMILIES.values())


budgets = st.sampled_from(["2GiB", "64MiB", "smallest"])
