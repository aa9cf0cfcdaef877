"""Small networks that fool engines: one way to be wrong each, named by it. All in float64 and eval mode.

`TRAPS[name]()` gives `(model, x)` with four samples and outputs (n, 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from strategies.networks import Case, Net, noise, parameter, randomize, tokens

N, D, T, C = 4, 5, 3, 3

TRAPS: dict[str, Callable[[], Case]] = {}


def trap(build: Callable[[], Case]) -> Callable[[], Case]:
    """Register a builder under its own name; seeds are fixed, so that a failure comes back."""

    def seeded() -> Case:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model, x = build()
        return randomize(model), x

    TRAPS[build.__name__] = seeded
    return seeded


# -- one parameter, several uses -----------------------------------------------------------------------------------
@trap
def bare_parameter_used_twice() -> Case:
    return Net(lambda m, x: m.head(torch.tanh(x @ m.w) @ m.w), w=parameter(D, D), head=nn.Linear(D, C)), noise(N, D)


@trap
def scalar_parameter() -> Case:
    return Net(lambda m, x: m.head(m.scale * x), scale=nn.Parameter(torch.tensor(0.7)), head=nn.Linear(D, C)), noise(
        N, D
    )


@trap
def module_called_twice() -> Case:
    return Net(lambda m, x: m.head(m.a(torch.tanh(m.a(x)))), a=nn.Linear(D, D), head=nn.Linear(D, C)), noise(N, D)


@trap
def module_called_on_different_numbers_of_positions() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(m.a(x.mean(1)) + m.a(torch.tanh(m.a(x))).mean(1))

    return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, C)), noise(N, T, D)


@trap
def in_place_activation_on_positions() -> Case:
    """The layer's output is a view of a matrix, which is written to."""
    return Net(lambda m, x: m.head(torch.relu_(m.a(x)).mean(1)), a=nn.Linear(D, D), head=nn.Linear(D, C)), noise(
        N, T, D
    )


@trap
def in_place_activation_on_positions_that_lie_otherwise() -> Case:
    """With several samples the positions come first in memory, and PyTorch takes another road than with one."""

    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(torch.relu_(m.a(x.transpose(0, 1).contiguous().transpose(0, 1))).mean(1))

    return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, C)), noise(N, T, D)


@trap
def one_slope_used_three_times() -> Case:
    """`vmap` fails on it unless there are as many samples as outputs, as there are in the probe."""

    def run(m: Any, x: Tensor) -> Tensor:
        for _ in range(3):
            x = m.slope(m.a(x))
        return m.head(x.mean(1))

    return Net(run, a=nn.Linear(D, D), slope=nn.PReLU(), head=nn.Linear(D, C)), noise(N, 1, D)


@trap
def convolution_called_at_two_resolutions() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        fine, coarse = m.conv(x), m.conv(F.avg_pool2d(x, 2))
        return m.head(torch.tanh(fine).mean((2, 3)) + torch.tanh(coarse).amax((2, 3)))

    return Net(run, conv=nn.Conv2d(2, 4, 3, padding=1), head=nn.Linear(4, C)), noise(N, 2, 6, 6)


@trap
def recurrent_cell_of_linears() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 4)
        for t in range(x.shape[1]):
            h = torch.tanh(m.inp(x[:, t]) + m.rec(h))
        return m.head(h)

    return Net(run, inp=nn.Linear(D, 4), rec=nn.Linear(4, 4, bias=False), head=nn.Linear(4, C)), noise(N, T, D)


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


@trap
def weight_used_in_its_module_and_by_hand() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(F.linear(torch.tanh(m.a(x)), m.a.weight.t()))

    return Net(run, a=nn.Linear(D, 4), head=nn.Linear(D, C)), noise(N, D)


@trap
def weight_used_only_by_hand() -> Case:
    return Net(
        lambda m, x: m.head(F.linear(x, m.a.weight, m.a.bias).relu()), a=nn.Linear(D, 4), head=nn.Linear(4, C)
    ), (noise(N, D))


@trap
def weight_decay_term_in_the_output() -> Case:
    return Net(lambda m, x: m.a(x) * (1 + m.a.weight.square().sum()), a=nn.Linear(D, C)), noise(N, D)


@trap
def bias_used_as_a_scale_too() -> Case:
    return Net(lambda m, x: m.head(m.a(x) * m.a.bias), a=nn.Linear(D, 4), head=nn.Linear(4, C)), noise(N, D)


# -- where the batch axis is ---------------------------------------------------------------------------------------
@trap
def sequence_first() -> Case:
    return Net(
        lambda m, x: m.head(torch.tanh(m.a(x.transpose(0, 1))).sum(0)), a=nn.Linear(D, 4), head=nn.Linear(4, C)
    ), (noise(N, T, D))


@trap
def sequence_first_as_long_as_the_batch() -> Case:
    return Net(
        lambda m, x: m.head(torch.tanh(m.a(x.transpose(0, 1))).sum(0)), a=nn.Linear(D, 4), head=nn.Linear(4, C)
    ), (noise(N, N, D))


@trap
def batch_folded_into_positions() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(torch.tanh(m.a(x.reshape(-1, D))).reshape(len(x), -1, 4).mean(1))

    return Net(run, a=nn.Linear(D, 4), head=nn.Linear(4, C)), noise(N, T, D)


@trap
def positions_folded_before_the_batch() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(torch.tanh(m.a(x.transpose(0, 1).reshape(-1, D))).reshape(T, -1, 4).mean(0))

    return Net(run, a=nn.Linear(D, 4), head=nn.Linear(4, C)), noise(N, T, D)


@trap
def two_views_concatenated_along_the_batch() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        left, right = m.a(torch.cat([x, x.flip(1)])).tanh().chunk(2)
        return m.head(left * right)

    return Net(run, a=nn.Linear(D, 4), head=nn.Linear(4, C)), noise(N, D)


@trap
def images_of_a_clip_folded_into_the_batch() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        frames = m.norm(m.conv(x.flatten(0, 1))).relu()
        return m.head(frames.unflatten(0, (len(x), -1)).mean((1, 3, 4)))

    return Net(run, conv=nn.Conv2d(2, 4, 3), norm=nn.GroupNorm(2, 4), head=nn.Linear(4, C)), noise(N, 2, 2, 4, 4)


def placed(m: Any, x: Tensor) -> Tensor:
    h = m.word(x) + m.place(torch.arange(x.shape[1], device=x.device))
    return m.head(m.norm(h).relu().sum(1))


@trap
def learned_positions_without_a_batch_axis() -> Case:
    return Net(placed, word=nn.Embedding(7, D), place=nn.Embedding(T, D), norm=nn.LayerNorm(D), head=nn.Linear(D, C)), (
        tokens(N, T)
    )


@trap
def learned_positions_as_many_as_the_batch() -> Case:
    return Net(placed, word=nn.Embedding(7, D), place=nn.Embedding(N, D), norm=nn.LayerNorm(D), head=nn.Linear(D, C)), (
        tokens(N, N)
    )


@trap
def learned_positions_with_a_batch_axis_of_one() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.word(x) + m.mix(m.place(torch.arange(x.shape[1], device=x.device)[None]))
        return m.head(h.tanh().sum(1))

    return Net(run, word=nn.Embedding(7, D), place=nn.Embedding(T, D), mix=nn.Linear(D, D), head=nn.Linear(D, C)), (
        tokens(N, T)
    )


@trap
def layer_on_a_constant() -> Case:
    return Net(
        lambda m, x: m.head(x * m.gate(x.new_ones(1, 2)).sigmoid()), gate=nn.Linear(2, D), head=nn.Linear(D, C)
    ), (noise(N, D))


@trap
def class_token_expanded_over_the_batch() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        h = torch.cat([m.token.expand(len(x), -1, -1), x], 1)
        return m.head(m.attend(h, h, h, need_weights=False)[0][:, 0])

    return Net(
        run, token=parameter(1, 1, 4), attend=nn.MultiheadAttention(4, 2, batch_first=True), head=nn.Linear(4, C)
    ), (noise(N, T, 4))


# -- what hooks do not see -----------------------------------------------------------------------------------------
@trap
def module_called_with_keywords() -> Case:
    return Net(lambda m, x: m.head(input=m.a(input=x).tanh()), a=nn.Linear(D, 4), head=nn.Linear(4, C)), noise(N, D)


@trap
def forward_method_called_directly() -> Case:
    return Net(lambda m, x: m.head(m.a.forward(x).tanh()), a=nn.Linear(D, 4), head=nn.Linear(4, C)), noise(N, D)


class ScaledLinear(nn.Linear):
    """A subclass that is not the layer its name says: y = 3 W x + b² ."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, 3 * self.weight, self.bias.square())


class StandardizedConv2d(nn.Conv2d):
    """Weight standardisation: the filter in use is centred."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


@trap
def subclass_with_another_forward() -> Case:
    return Net(lambda m, x: m.head(m.a(x).tanh()), a=ScaledLinear(D, 4), head=nn.Linear(4, C)), noise(N, D)


@trap
def convolution_with_standardised_weights() -> Case:
    return Net(lambda m, x: m.head(m.a(x).tanh().mean((2, 3))), a=StandardizedConv2d(2, 4, 3), head=nn.Linear(4, C)), (
        noise(N, 2, 5, 5)
    )


@trap
def user_hook_changes_the_output() -> Case:
    a = nn.Linear(D, 4)
    a.register_forward_hook(_triple)
    return Net(lambda m, x: m.head(m.a(x).tanh()), a=a, head=nn.Linear(4, C)), noise(N, D)


@trap
def user_hook_changes_the_input() -> Case:
    a = nn.Linear(D, 4)
    a.register_forward_pre_hook(_square)
    return Net(lambda m, x: m.head(m.a(x).tanh()), a=a, head=nn.Linear(4, C)), noise(N, D)


def _triple(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return 3 * out


def _square(module: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
    return args[0].square()


@trap
def activation_checkpointing() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(checkpoint(lambda z: m.b(m.a(z).tanh()).tanh(), x, use_reentrant=False))

    return Net(run, a=nn.Linear(D, 4), b=nn.Linear(4, 4), head=nn.Linear(4, C)), noise(N, D)


@trap
def weight_norm() -> Case:
    a = parametrizations.weight_norm(nn.Linear(D, 4))
    return Net(lambda m, x: m.head(m.a(x).tanh()), a=a, head=nn.Linear(4, C)), noise(N, D)


@trap
def spectral_norm_of_a_convolution() -> Case:
    a = parametrizations.spectral_norm(nn.Conv1d(2, 3, 2))
    return Net(lambda m, x: m.head(m.a(x).tanh().flatten(1)), a=a, head=nn.Linear(12, C)), noise(N, 2, 5)


# -- in place, views, detours --------------------------------------------------------------------------------------
@trap
def in_place_relu() -> Case:
    parts = [nn.Linear(D, 6), nn.ReLU(inplace=True), nn.Linear(6, 4), nn.LeakyReLU(0.1, inplace=True), nn.Linear(4, C)]
    return nn.Sequential(*parts), noise(N, D)


@trap
def in_place_on_the_input_of_a_layer() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x).tanh()
        g = m.b(h)
        h = h.clone()
        h.add_(g)
        return m.head(h.mul_(2.0))

    return Net(run, a=nn.Linear(D, 4), b=nn.Linear(4, 4), head=nn.Linear(4, C)), noise(N, D)


@trap
def in_place_residual() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        h += m.b(x)
        return m.head(h.relu_())

    return Net(run, a=nn.Linear(D, 4), b=nn.Linear(D, 4), head=nn.Linear(4, C)), noise(N, D)


@trap
def output_is_a_view() -> Case:
    return Net(lambda m, x: m.a(x).view(-1, C, 2)[..., 0], a=nn.Linear(D, 2 * C)), noise(N, D)


@trap
def gated_halves_of_one_layer() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        left, right = m.a(x).chunk(2, dim=-1)
        return m.head(left * right.sigmoid())

    return Net(run, a=nn.Linear(D, 8), head=nn.Linear(4, C)), noise(N, D)


@trap
def written_into_zeros() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        padded = x.new_zeros(len(x), D + 2)
        padded[:, 1:-1] = x * m.scale
        return m.head(padded)

    return Net(run, scale=parameter(D), head=nn.Linear(D + 2, C)), noise(N, D)


@trap
def detached_branch() -> Case:
    return Net(lambda m, x: m.head(m.a(x).tanh() + m.a(x.flip(1)).detach()), a=nn.Linear(D, 4), head=nn.Linear(4, C)), (
        noise(N, D)
    )


@trap
def branch_without_gradients() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            gate = m.a(x).sigmoid()
        return m.head(m.a(x).tanh() * gate)

    return Net(run, a=nn.Linear(D, 4), head=nn.Linear(4, C)), noise(N, D)


@trap
def parameter_never_used() -> Case:
    return Net(lambda m, x: m.head(x), idle=parameter(3), spare=nn.Linear(2, 2), head=nn.Linear(D, C)), noise(N, D)


@trap
def frozen_below_and_between() -> Case:
    model = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, C))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model, noise(N, D)


@trap
def output_that_does_not_depend_on_the_parameters() -> Case:
    return Net(lambda m, x: torch.cat([m.head(x), x[:, :1]], 1), head=nn.Linear(D, C - 1)), noise(N, D)


@trap
def rows_that_begin_inside_a_row() -> Case:
    def run(m: Any, x: Tensor) -> Tensor:
        return F.linear(x, m.rows.as_strided((C, D), (D, 1), 2)) + F.linear(x, m.rows.as_strided((C, D), (1, 1), 1))

    return Net(run, rows=parameter(C + 2, D)), noise(N, D)
