"""Small networks that fool engines: one way to be wrong each, named by it. All in float64 and eval mode.

`TRAPS[name]()` gives `(model, x)` with four samples and outputs (n, 3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from strategies.networks import Case, Net, noise, parameter, randomize, tokens

N, D, T, C = 4, 5, 3, 3

TRAPS: dict[str, Callable[[], Case]] = {}


def trap(build: Callable[[], Case], name: str = "") -> Callable[[], Case]:
    """Register a builder under a name, its own unless given; seeds are fixed, so that a failure comes back."""

    def seeded() -> Case:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model, x = build()
        return randomize(model), x

    TRAPS[name or build.__name__] = seeded
    return seeded


def net(name: str, run: Callable[..., Tensor], shape: tuple[int, ...] | Callable[[], Tensor], **parts: Any) -> None:
    """A trap on noise of some shape, or other inputs; sizes among the parts make a linear layer, functions are called."""

    def build() -> Case:
        made = {key: nn.Linear(*part) if isinstance(part, tuple) else part() for key, part in parts.items()}
        return Net(run, **made), noise(*shape) if isinstance(shape, tuple) else shape()

    trap(build, name)


# -- one parameter, several uses -----------------------------------------------------------------------------------
def _slope_thrice(m: Any, x: Tensor) -> Tensor:
    for _ in range(3):
        x = m.slope(m.a(x))
    return m.head(x.mean(1))


def _two_resolutions(m: Any, x: Tensor) -> Tensor:
    fine, coarse = m.conv(x), m.conv(F.avg_pool2d(x, 2))
    return m.head(torch.tanh(fine).mean((2, 3)) + torch.tanh(coarse).amax((2, 3)))


def _recurrent(m: Any, x: Tensor) -> Tensor:
    h = x.new_zeros(len(x), 4)
    for t in range(x.shape[1]):
        h = torch.tanh(m.inp(x[:, t]) + m.rec(h))
    return m.head(h)


def bare() -> nn.Parameter:
    return parameter(D, D)


net("bare_parameter_used_twice", lambda m, x: m.head(torch.tanh(x @ m.w) @ m.w), (N, D), w=bare, head=(D, C))
net("scalar_parameter", lambda m, x: m.head(m.s * x), (N, D), s=lambda: nn.Parameter(torch.tensor(0.7)), head=(D, C))
net("module_called_twice", lambda m, x: m.head(m.a(torch.tanh(m.a(x)))), (N, D), a=(D, D), head=(D, C))
net(
    "module_called_on_different_numbers_of_positions",
    lambda m, x: m.head(m.a(x.mean(1)) + m.a(torch.tanh(m.a(x))).mean(1)), (N, T, D), a=(D, D), head=(D, C),
)  # fmt: skip
net(  # the layer's output is a view of a matrix, which is written to
    "in_place_activation_on_positions",
    lambda m, x: m.head(torch.relu_(m.a(x)).mean(1)), (N, T, D), a=(D, D), head=(D, C),
)  # fmt: skip
net(  # with several samples the positions come first in memory, and PyTorch takes another road than with one
    "in_place_activation_on_positions_that_lie_otherwise",
    lambda m, x: m.head(torch.relu_(m.a(x.transpose(0, 1).contiguous().transpose(0, 1))).mean(1)),
    (N, T, D), a=(D, D), head=(D, C),
)  # fmt: skip
# `vmap` fails on the next unless there are as many samples as outputs, as there are in the probe
net("one_slope_used_three_times", _slope_thrice, (N, 1, D), a=(D, D), slope=nn.PReLU, head=(D, C))
net(
    "convolution_called_at_two_resolutions",
    _two_resolutions, (N, 2, 6, 6), conv=lambda: nn.Conv2d(2, 4, 3, padding=1), head=(4, C),
)  # fmt: skip
net("recurrent_cell_of_linears", _recurrent, (N, T, D), inp=(D, 4), rec=(4, 4, False), head=(4, C))
net(
    "weight_used_in_its_module_and_by_hand",
    lambda m, x: m.head(F.linear(torch.tanh(m.a(x)), m.a.weight.t())), (N, D), a=(D, 4), head=(D, C),
)  # fmt: skip
net(
    "weight_used_only_by_hand",
    lambda m, x: m.head(F.linear(x, m.a.weight, m.a.bias).relu()), (N, D), a=(D, 4), head=(4, C),
)  # fmt: skip
net("weight_decay_term_in_the_output", lambda m, x: m.a(x) * (1 + m.a.weight.square().sum()), (N, D), a=(D, C))
net("bias_used_as_a_scale_too", lambda m, x: m.head(m.a(x) * m.a.bias), (N, D), a=(D, 4), head=(4, C))


@trap
def two_linears_share_a_weight() -> Case:
    a, b = nn.Linear(D, D), nn.Linear(D, D)
    b.weight = a.weight
    return Net(lambda m, x: m.head(m.b(torch.tanh(m.a(x)))), a=a, b=b, head=nn.Linear(D, C)), noise(N, D)


@trap
def embedding_shares_its_weight_with_the_head() -> Case:
    embed, head = nn.Embedding(C, D), nn.Linear(D, C, bias=False)
    head.weight = embed.weight
    return Net(
        lambda m, x: m.head(torch.tanh(m.mix(m.embed(x))).sum(1)), embed=embed, mix=nn.Linear(D, D), head=head
    ), (tokens(N, T, vocabulary=C))


@trap
def tied_embedding_with_a_padding_index() -> Case:
    embed, head = nn.Embedding(C, D, padding_idx=1), nn.Linear(D, C, bias=False)
    head.weight = embed.weight
    return Net(lambda m, x: m.head(torch.tanh(m.embed(x)).sum(1)), embed=embed, head=head), tokens(N, T, vocabulary=C)


@trap
def convolution_shares_its_weight_with_a_transposed_one() -> Case:
    down, up = nn.Conv1d(2, 3, 3, stride=2), nn.ConvTranspose1d(3, 2, 3, stride=2)
    up.weight = down.weight
    return Net(lambda m, x: m.head(m.up(torch.tanh(m.down(x))).flatten(1)), down=down, up=up, head=nn.Linear(14, C)), (
        noise(N, 2, 7)
    )


# -- where the batch axis is ---------------------------------------------------------------------------------------
def _siamese(m: Any, x: Tensor) -> Tensor:
    left, right = m.a(torch.cat([x, x.flip(1)])).tanh().chunk(2)
    return m.head(left * right)


def _clip(m: Any, x: Tensor) -> Tensor:
    frames = m.norm(m.conv(x.flatten(0, 1))).relu()
    return m.head(frames.unflatten(0, (len(x), -1)).mean((1, 3, 4)))


def _placed(m: Any, x: Tensor) -> Tensor:
    h = m.word(x) + m.place(torch.arange(x.shape[1], device=x.device))
    return m.head(m.norm(h).relu().sum(1))


def _placed_once(m: Any, x: Tensor) -> Tensor:
    h = m.word(x) + m.mix(m.place(torch.arange(x.shape[1], device=x.device)[None]))
    return m.head(h.tanh().sum(1))


def _class_token(m: Any, x: Tensor) -> Tensor:
    h = torch.cat([m.token.expand(len(x), -1, -1), x], 1)
    return m.head(m.attend(h, h, h, need_weights=False)[0][:, 0])


def _sequence_first(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.tanh(m.a(x.transpose(0, 1))).sum(0))


def table(rows: int) -> Callable[[], nn.Module]:
    return lambda: nn.Embedding(rows, D)


net("sequence_first", _sequence_first, (N, T, D), a=(D, 4), head=(4, C))
net("sequence_first_as_long_as_the_batch", _sequence_first, (N, N, D), a=(D, 4), head=(4, C))
net(
    "batch_folded_into_positions",
    lambda m, x: m.head(torch.tanh(m.a(x.reshape(-1, D))).reshape(len(x), -1, 4).mean(1)),
    (N, T, D), a=(D, 4), head=(4, C),
)  # fmt: skip
net(
    "positions_folded_before_the_batch",
    lambda m, x: m.head(torch.tanh(m.a(x.transpose(0, 1).reshape(-1, D))).reshape(T, -1, 4).mean(0)),
    (N, T, D), a=(D, 4), head=(4, C),
)  # fmt: skip
net("two_views_concatenated_along_the_batch", _siamese, (N, D), a=(D, 4), head=(4, C))
net(
    "images_of_a_clip_folded_into_the_batch", _clip, (N, 2, 2, 4, 4),
    conv=lambda: nn.Conv2d(2, 4, 3), norm=lambda: nn.GroupNorm(2, 4), head=(4, C),
)  # fmt: skip
for _name, _length in (("without_a_batch_axis", T), ("as_many_as_the_batch", N)):
    net(
        f"learned_positions_{_name}", _placed, partial(tokens, N, _length),
        word=table(7), place=table(_length), norm=lambda: nn.LayerNorm(D), head=(D, C),
    )  # fmt: skip
net(
    "learned_positions_with_a_batch_axis_of_one", _placed_once, partial(tokens, N, T),
    word=table(7), place=table(T), mix=(D, D), head=(D, C),
)  # fmt: skip
net(
    "layer_on_a_constant",
    lambda m, x: m.head(x * m.gate(x.new_ones(1, 2)).sigmoid()), (N, D), gate=(2, D), head=(D, C),
)  # fmt: skip
net(
    "class_token_expanded_over_the_batch", _class_token, (N, T, 4),
    token=lambda: parameter(1, 1, 4), attend=lambda: nn.MultiheadAttention(4, 2, batch_first=True), head=(4, C),
)  # fmt: skip


# -- what hooks do not see -----------------------------------------------------------------------------------------
class ScaledLinear(nn.Linear):
    """A subclass that is not the layer its name says: y = 3 W x + b² ."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, 3 * self.weight, self.bias.square())


class StandardizedConv2d(nn.Conv2d):
    """Weight standardisation: the filter in use is centred."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


def _plain(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh())


net("module_called_with_keywords", lambda m, x: m.head(input=m.a(input=x).tanh()), (N, D), a=(D, 4), head=(4, C))
net("forward_method_called_directly", lambda m, x: m.head(m.a.forward(x).tanh()), (N, D), a=(D, 4), head=(4, C))
net("subclass_with_another_forward", _plain, (N, D), a=lambda: ScaledLinear(D, 4), head=(4, C))
net(
    "convolution_with_standardised_weights",
    lambda m, x: m.head(m.a(x).tanh().mean((2, 3))), (N, 2, 5, 5), a=lambda: StandardizedConv2d(2, 4, 3), head=(4, C),
)  # fmt: skip
net(
    "activation_checkpointing",
    lambda m, x: m.head(checkpoint(lambda z: m.b(m.a(z).tanh()).tanh(), x, use_reentrant=False)),
    (N, D), a=(D, 4), b=(4, 4), head=(4, C),
)  # fmt: skip
net("weight_norm", _plain, (N, D), a=lambda: parametrizations.weight_norm(nn.Linear(D, 4)), head=(4, C))
net(
    "spectral_norm_of_a_convolution",
    lambda m, x: m.head(m.a(x).tanh().flatten(1)),
    (N, 2, 5), a=lambda: parametrizations.spectral_norm(nn.Conv1d(2, 3, 2)), head=(12, C),
)  # fmt: skip


@trap
def user_hook_changes_the_output() -> Case:
    a = nn.Linear(D, 4)
    a.register_forward_hook(lambda module, args, out: 3 * out)
    return Net(_plain, a=a, head=nn.Linear(4, C)), noise(N, D)


@trap
def user_hook_changes_the_input() -> Case:
    a = nn.Linear(D, 4)
    a.register_forward_pre_hook(lambda module, args: args[0].square())
    return Net(_plain, a=a, head=nn.Linear(4, C)), noise(N, D)


# -- in place, views, detours --------------------------------------------------------------------------------------
@trap
def in_place_relu() -> Case:
    parts = [nn.Linear(D, 6), nn.ReLU(inplace=True), nn.Linear(6, 4), nn.LeakyReLU(0.1, inplace=True), nn.Linear(4, C)]
    return nn.Sequential(*parts), noise(N, D)


@trap
def frozen_below_and_between() -> Case:
    model = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, C))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model, noise(N, D)


def _in_place_on_an_input(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).tanh()
    g = m.b(h)
    h = h.clone()
    h.add_(g)
    return m.head(h.mul_(2.0))


def _in_place_residual(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h += m.b(x)
    return m.head(h.relu_())


def _gated_halves(m: Any, x: Tensor) -> Tensor:
    left, right = m.a(x).chunk(2, dim=-1)
    return m.head(left * right.sigmoid())


def _written_into_zeros(m: Any, x: Tensor) -> Tensor:
    padded = x.new_zeros(len(x), D + 2)
    padded[:, 1:-1] = x * m.scale
    return m.head(padded)


def _branch_without_gradients(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        gate = m.a(x).sigmoid()
    return m.head(m.a(x).tanh() * gate)


def _strided(m: Any, x: Tensor) -> Tensor:
    return F.linear(x, m.rows.as_strided((C, D), (D, 1), 2)) + F.linear(x, m.rows.as_strided((C, D), (1, 1), 1))


net("in_place_on_the_input_of_a_layer", _in_place_on_an_input, (N, D), a=(D, 4), b=(4, 4), head=(4, C))
net("in_place_residual", _in_place_residual, (N, D), a=(D, 4), b=(D, 4), head=(4, C))
net("output_is_a_view", lambda m, x: m.a(x).view(-1, C, 2)[..., 0], (N, D), a=(D, 2 * C))
net("gated_halves_of_one_layer", _gated_halves, (N, D), a=(D, 8), head=(4, C))
net("written_into_zeros", _written_into_zeros, (N, D), scale=lambda: parameter(D), head=(D + 2, C))
net(
    "detached_branch",
    lambda m, x: m.head(m.a(x).tanh() + m.a(x.flip(1)).detach()), (N, D), a=(D, 4), head=(4, C),
)  # fmt: skip
net("branch_without_gradients", _branch_without_gradients, (N, D), a=(D, 4), head=(4, C))
net("parameter_never_used", lambda m, x: m.head(x), (N, D), idle=lambda: parameter(3), spare=(2, 2), head=(D, C))
net(
    "output_that_does_not_depend_on_the_parameters",
    lambda m, x: torch.cat([m.head(x), x[:, :1]], 1), (N, D), head=(D, C - 1),
)  # fmt: skip
net("rows_that_begin_inside_a_row", _strided, (N, D), rows=lambda: parameter(C + 2, D))
