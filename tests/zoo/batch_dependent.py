"""Models without a kernel: a sample's outputs depend on its neighbours, on chance or on what came before. All refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Made, Net, case, free

FAMILY = "batch-dependent or random"
D, N = 4, 9


def net(run: Callable[..., Any], **parts: Any) -> Net:
    return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3), **parts)


# -- neighbours ----------------------------------------------------------------------------------------------------
def _batch_mean(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head((h - h.mean(0)).tanh())


def _batch_std(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(h / (h.std(0, unbiased=False) + 0.1))


def _attention(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head((h @ h.t()).softmax(-1) @ h)


def _batch_max(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(h / h.abs().max())


def _contrast(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a((x - x.mean()) / x.std()).tanh())


def _neighbour(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh() + 0.1 * x.roll(1, 0))


def _position_in_batch(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh() + torch.arange(len(x)).to(x)[:, None] / 10)


def _batch_size(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh()) / len(x)


def _rank(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh() * (1 + x[:, 0].argsort().argsort().to(x)[:, None]))


def _softmax_over_batch(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh()).softmax(0)


def _batch_norm(m: Any, x: Tensor) -> Tensor:
    return m.head(F.batch_norm(m.a(x), None, None, training=True))


NEIGHBOURS = {
    f.__name__.strip("_"): (f,)
    for f in (
        _batch_mean,
        _batch_std,
        _attention,
        _batch_max,
        _contrast,
        _neighbour,
        _position_in_batch,
        _batch_size,
        _rank,
        _softmax_over_batch,
        _batch_norm,
    )
}


@case(
    FAMILY,
    "refused",
    "outputs depend on the samples beside",
    each=NEIGHBOURS,
    quick=("batch_mean", "attention", "batch_max"),
)
def neighbours(run: Callable[..., Tensor]) -> Made:
    return net(run), torch.randn(N, D)


@case(FAMILY, "refused", "outputs depend on the samples beside, with equal first samples", each=NEIGHBOURS)
def neighbours_after_equal_samples(run: Callable[..., Tensor]) -> Made:
    x = torch.randn(N, D)
    x[1] = x[2] = x[0]
    return net(run), x


@case(FAMILY, "refused", "float32", each=NEIGHBOURS, dtype=torch.float32)
def neighbours_in_single_precision(run: Callable[..., Tensor]) -> Made:
    return net(run), torch.randn(N, D)


def _beyond_three(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head((h - h.mean(0) if len(x) > 3 else h).tanh())


def _fourth_onwards(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(torch.cat([h[:3], h[3:] + 0.2 * h.mean(0)]).tanh())


def _if_special(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    if bool((x[:, 0] > 3).any()):
        h = h + 0.3 * h.mean(0)
    return m.head(h.tanh())


def _special_shared(m: Any, x: Tensor) -> Tensor:
    h, special = m.a(x), x[:, 0] > 3
    if int(special.sum()) > 1:
        h = h + special[:, None] * h[special].mean(0)
    return m.head(h.tanh())


def _rare_small(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(h.tanh() + 1e-2 * (x[:, 0] > 3).any() * h.mean(0))


def _gradient_only(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    mean = h.mean(0)
    return m.head((h + (mean - mean.detach())).tanh())  # the outputs do not show it, the gradients do


def _gradient_only_beyond_three(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    mean = h.mean(0)
    return m.head((h + (mean - mean.detach() if len(x) > 3 else 0)).tanh())


LATE = {
    f.__name__.strip("_"): (f,) for f in (_beyond_three, _fourth_onwards, _if_special, _special_shared, _rare_small)
}


def late_inputs() -> Tensor:
    x = torch.randn(N, D).clamp(-2, 2)
    x[5, 0] = x[7, 0] = 4.0
    return x


@case(FAMILY, "refused", "samples mix in larger batches only, or if some sample is special", each=LATE)
def neighbours_later(run: Callable[..., Tensor]) -> Made:
    return net(run), late_inputs()


@case(
    FAMILY,
    "either",
    "only gradients cross samples; a sample alone has its own gradient",
    each={f.__name__.strip("_"): (f,) for f in (_gradient_only, _gradient_only_beyond_three)},
)
def neighbours_in_the_gradient_only(run: Callable[..., Tensor]) -> Made:
    return net(run), torch.randn(N, D)


KERNELS: dict[str, dict[str, Any]] = {
    "ck": {},
    "em": {"layers": ["a"]},
    "ptk": {"layer": "a"},
    "proj-trntk": {"dim": 16},
    "proj-pntk": {"dim": 16},
    "pntk": {},
    "entk": {},
    "trntk": {},
}


def _noise_before(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x + 0.3 * torch.randn_like(x)).tanh())


def _mean_before(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x - x.mean(0)).tanh())


def _special_before(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x + (0.5 * x.mean(0) if bool((x[:, 0] > 3).any()) else 0)).tanh())


def other_kernels(run: Callable[..., Tensor]) -> Made:
    return net(run), late_inputs()


for _kernel, _options in KERNELS.items():
    for _run in (_mean_before, _noise_before, _special_before):
        case(
            FAMILY,
            "refused",
            "no kernel of such a model is defined, whatever its name",
            each={f"{_kernel} {_run.__name__.strip('_')}": (_run,)},
            kernel=_kernel,
            options=_options,
        )(other_kernels)


# -- chance --------------------------------------------------------------------------------------------------------
def _dropout(m: Any, x: Tensor) -> Tensor:
    return m.head(F.dropout(m.a(x).tanh(), 0.3, training=True))


def _rare_dropout(m: Any, x: Tensor) -> Tensor:
    return m.head(F.dropout(m.a(x).tanh(), 1e-3, training=True).repeat(1, 64).view(len(x), 64, D).mean(1))


def _private_torch(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh() + 0.1 * torch.randn(x.shape, generator=m.draw, dtype=x.dtype))


def _private_numpy(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh() + 0.1 * torch.from_numpy(m.draw.standard_normal(x.shape)).to(x))


def _global_numpy(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh() + 0.1 * torch.from_numpy(np.random.randn(*x.shape)).to(x))  # noqa: NPY002


def _python(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh()) * (1 + 0.1 * random.random())


def _python_choice(m: Any, x: Tensor) -> Tensor:
    return m.head(m.a(x).tanh()) if random.random() < 0.9 else m.head(x)


def _huge_constant(m: Any, x: Tensor) -> Tensor:
    return 1e6 + m.head(m.a(x + 0.3 * torch.randn_like(x)).tanh())


def _stochastic_depth(m: Any, x: Tensor) -> Tensor:
    return m.head(x + (torch.rand(len(x), 1) < 0.8).to(x) * m.a(x))


def _counter(m: Any, x: Tensor) -> Tensor:
    m.calls = getattr(m, "calls", 0) + 1
    return m.head(m.a(x).tanh()) * (1 + 0.01 * m.calls)


def _remembers(m: Any, x: Tensor) -> Tensor:
    before, m.memory = getattr(m, "memory", None), x.mean(0).detach()
    return m.head(m.a(x).tanh() + (0 if before is None else 0.2 * before))


def _gradient_noise(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    if h.requires_grad:
        h.register_hook(lambda g: g * (1 + 0.1 * torch.randn_like(g)))
    return m.head(h.tanh())


CHANCE: dict[str, tuple[Any, Any]] = {
    "dropout": (_dropout, None),
    "rare dropout": (_rare_dropout, None),
    "torch generator": (_private_torch, lambda: torch.Generator().manual_seed(0)),
    "numpy generator": (_private_numpy, lambda: np.random.default_rng(0)),
    "numpy": (_global_numpy, None),
    "python": (_python, None),
    "huge constant": (_huge_constant, None),
    "stochastic depth": (_stochastic_depth, None),
    "gradient noise": (_gradient_noise, None),
}


def chance(run: Callable[..., Any], draw: Any) -> Net:
    model = net(run)
    if draw is not None:
        model.draw = draw()
    return model


@case(FAMILY, "refused", "outputs depend on chance or on earlier calls", each=CHANCE)
def drawn_at_random(run: Callable[..., Any], draw: Any) -> Made:
    return chance(run, draw), torch.randn(N, D)


@case(FAMILY, "refused", "chance, float32", each=CHANCE, dtype=torch.float32)
def drawn_at_random_in_single_precision(run: Callable[..., Any], draw: Any) -> Made:
    return chance(run, draw), torch.randn(N, D)


@case(FAMILY, "refused", "chance, one sample only", each=CHANCE)
def drawn_at_random_for_one_sample(run: Callable[..., Any], draw: Any) -> Made:
    return chance(run, draw), torch.randn(1, D)


@case(
    FAMILY,
    "either",
    "outputs depend on earlier calls; the state the caller's model is in has one answer",
    each={"counter": (_counter,), "remembers the last batch": (_remembers,)},
)
def stateful(run: Callable[..., Any]) -> Made:
    return net(run), torch.randn(N, D)


@case(FAMILY, "either", "a choice that seldom falls the other way cannot always be seen")
def rare_choice() -> Made:
    return net(_python_choice), torch.randn(N, D)


# -- modes ---------------------------------------------------------------------------------------------------------
TRAINING: dict[str, tuple[Any, ...]] = {
    "batch norm": (lambda: nn.BatchNorm1d(D),),
    "dropout": (lambda: nn.Dropout(0.2),),
    "alpha dropout": (lambda: nn.AlphaDropout(0.2),),
    "rrelu": (lambda: nn.RReLU(),),
    "instance norm tracked": (
        lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()),
    ),
}


@case(FAMILY, "refused", "training mode", each={k: v for k, v in TRAINING.items() if "instance" not in k}, train=True)
def training_mode(part: Any) -> Made:
    return nn.Sequential(nn.Linear(D, D), part(), nn.Linear(D, 3)), torch.randn(N, D)


@case(FAMILY, "either", "training mode that only updates statistics nobody uses", train=True)
def instance_norm_in_training_mode() -> Made:
    return nn.Sequential(nn.Linear(D, D), TRAINING["instance norm tracked"][0](), nn.Linear(D, 3)), torch.randn(N, D)


@case(FAMILY, "refused", "batch norm without running statistics, in eval mode")
def batch_norm_without_statistics() -> Made:
    return nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D, track_running_stats=False), nn.Linear(D, 3)), torch.randn(
        N, D
    )


@case(FAMILY, "exact", "dropout of probability zero and noise of scale zero are no chance", train=True)
def dropout_of_nothing() -> Made:
    return nn.Sequential(nn.Linear(D, D), nn.Dropout(0.0), nn.Linear(D, 3)), torch.randn(N, D)


@case(FAMILY, "exact", "noise that is the same at every call is a constant")
def fixed_noise() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        noise = torch.randn(D, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(x)
        return m.head(m.a(x + noise).tanh())

    return net(run), torch.randn(N, D)


@case(FAMILY, "exact", "the variational mean in eval mode, a learned noise scale unused")
def variational_in_eval() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.head(h + torch.randn_like(h) * m.log_scale.exp() if m.training else h)

    return net(run, log_scale=free(D)), torch.randn(N, D)
