"""Models without a kernel: a sample's outputs depend on its neighbours, on chance or on what came before. All refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Made, Net, family, free, mixed, shared

FAMILY = "batch-dependent or random"
exact, refused, either = family(FAMILY)
D, N = 4, 9


def net(run: Callable[..., Any], **parts: Any) -> Net:
    return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3), **parts)


# -- neighbours ----------------------------------------------------------------------------------------------------
def copied(h: Tensor) -> Tensor:
    """Zero, with the gradient of the batch mean: the outputs do not show it, the gradients do."""
    return h.mean(0) - h.mean(0).detach()


NEIGHBOURS = {
    "batch_mean": mixed(lambda h, x: (h - h.mean(0)).tanh()),
    "batch_std": mixed(lambda h, x: h / (h.std(0, unbiased=False) + 0.1)),
    "attention": mixed(lambda h, x: (h @ h.t()).softmax(-1) @ h),
    "batch_max": mixed(lambda h, x: h / h.abs().max()),
    "contrast": lambda m, x: m.head(m.a((x - x.mean()) / x.std()).tanh()),
    "neighbour": mixed(lambda h, x: h.tanh() + 0.1 * x.roll(1, 0)),
    "position_in_batch": mixed(lambda h, x: h.tanh() + torch.arange(len(x)).to(x)[:, None] / 10),
    "batch_size": lambda m, x: m.head(m.a(x).tanh()) / len(x),
    "rank": mixed(lambda h, x: h.tanh() * (1 + x[:, 0].argsort().argsort().to(x)[:, None])),
    "softmax_over_batch": lambda m, x: m.head(m.a(x).tanh()).softmax(0),
    "batch_norm": mixed(lambda h, x: F.batch_norm(h, None, None, training=True)),
}
GRADIENT_ONLY = {
    "gradient_only": mixed(lambda h, x: (h + copied(h)).tanh()),
    "gradient_only_beyond_three": mixed(lambda h, x: (h + (copied(h) if len(x) > 3 else 0)).tanh()),
}
ALONE = "only gradients cross samples; a sample alone has its own gradient"


@either(ALONE, each=GRADIENT_ONLY, name="neighbours_in_the_gradient_only")
@refused("float32", each=NEIGHBOURS, dtype=torch.float32, name="neighbours_in_single_precision")
@refused("outputs depend on the samples beside", each=NEIGHBOURS, quick=("batch_mean", "attention", "batch_max"))
def neighbours(run: Callable[..., Tensor]) -> Made:
    return net(run), torch.randn(N, D)


@refused("outputs depend on the samples beside, with equal first samples", each=NEIGHBOURS)
def neighbours_after_equal_samples(run: Callable[..., Tensor]) -> Made:
    x = torch.randn(N, D)
    x[1] = x[2] = x[0]
    return net(run), x


LATE = {
    "beyond_three": mixed(lambda h, x: (h - h.mean(0) if len(x) > 3 else h).tanh()),
    "fourth_onwards": mixed(lambda h, x: torch.cat([h[:3], h[3:] + 0.2 * h.mean(0)]).tanh()),
    "if_special": mixed(lambda h, x: (h + (0.3 * h.mean(0) if bool((x[:, 0] > 3).any()) else 0)).tanh()),
    "special_shared": mixed(lambda h, x: (h + shared(h, x[:, 0] > 3)).tanh()),
    "rare_small": mixed(lambda h, x: h.tanh() + 1e-2 * (x[:, 0] > 3).any() * h.mean(0)),
}


def late_inputs() -> Tensor:
    x = torch.randn(N, D).clamp(-2, 2)
    x[5, 0] = x[7, 0] = 4.0
    return x


@refused("samples mix in larger batches only, or if some sample is special", each=LATE)
def neighbours_later(run: Callable[..., Tensor]) -> Made:
    return net(run), late_inputs()


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


BEFORE = {
    "mean_before": lambda m, x: m.head(m.a(x - x.mean(0)).tanh()),
    "noise_before": lambda m, x: m.head(m.a(x + 0.3 * torch.randn_like(x)).tanh()),
    "special_before": lambda m, x: m.head(m.a(x + (0.5 * x.mean(0) if bool((x[:, 0] > 3).any()) else 0)).tanh()),
}
for _kernel, _options in KERNELS.items():
    _each = {f"{_kernel} {label}": run for label, run in BEFORE.items()}
    _why = "no kernel of such a model is defined, whatever its name"
    refused(_why, each=_each, kernel=_kernel, options=_options, name="other_kernels")(neighbours_later)


# -- chance --------------------------------------------------------------------------------------------------------
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


CHANCE = {
    "dropout": mixed(lambda h, x: F.dropout(h.tanh(), 0.3, training=True)),
    "rare dropout": mixed(
        lambda h, x: F.dropout(h.tanh(), 1e-3, training=True).repeat(1, 64).view(len(x), 64, D).mean(1)
    ),
    "torch generator": lambda m, x: m.head(
        m.a(x).tanh() + 0.1 * torch.randn(x.shape, generator=m.torch, dtype=x.dtype)
    ),
    "numpy generator": lambda m, x: m.head(m.a(x).tanh() + 0.1 * torch.tensor(m.numpy.standard_normal(x.shape)).to(x)),
    "numpy": mixed(lambda h, x: h.tanh() + 0.1 * torch.from_numpy(np.random.randn(*x.shape)).to(x)),  # noqa: NPY002
    "python": lambda m, x: m.head(m.a(x).tanh()) * (1 + 0.1 * random.random()),
    "huge constant": lambda m, x: 1e6 + m.head(m.a(x + 0.3 * torch.randn_like(x)).tanh()),
    "stochastic depth": mixed(lambda h, x: x + (torch.rand(len(x), 1) < 0.8).to(x) * h),
    "gradient noise": _gradient_noise,
}


@refused("outputs depend on chance or on earlier calls", each=CHANCE)
@refused("chance, float32", each=CHANCE, dtype=torch.float32, name="drawn_at_random_in_single_precision")
def drawn_at_random(run: Callable[..., Any]) -> Made:
    model = net(run)
    if run is CHANCE["torch generator"]:
        model.torch = torch.Generator().manual_seed(0)  # type: ignore[assignment]
    if run is CHANCE["numpy generator"]:
        model.numpy = np.random.default_rng(0)  # type: ignore[assignment]
    return model, torch.randn(N, D)


@refused("chance, one sample only", each=CHANCE)
def drawn_at_random_for_one_sample(run: Callable[..., Any]) -> Made:
    return drawn_at_random(run)[0], torch.randn(1, D)


STATE = "outputs depend on earlier calls; the state the caller's model is in has one answer"


@either(STATE, each={"counter": _counter, "remembers the last batch": _remembers})
def stateful(run: Callable[..., Any]) -> Made:
    return net(run), torch.randn(N, D)


@either("a choice that seldom falls the other way cannot always be seen")
def rare_choice() -> Made:
    run = lambda m, x: m.head(m.a(x).tanh()) if random.random() < 0.9 else m.head(x)  # noqa: E731
    return net(run), torch.randn(N, D)


# -- modes ---------------------------------------------------------------------------------------------------------
def tracked() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten())


TRAINING = {
    "batch norm": lambda: nn.BatchNorm1d(D),
    "dropout": lambda: nn.Dropout(0.2),
    "alpha dropout": lambda: nn.AlphaDropout(0.2),
    "rrelu": nn.RReLU,
}


@refused("training mode", each=TRAINING, train=True)
def training_mode(part: Callable[[], nn.Module]) -> Made:
    return nn.Sequential(nn.Linear(D, D), part(), nn.Linear(D, 3)), torch.randn(N, D)


@either("training mode that only updates statistics nobody uses", train=True)
def instance_norm_in_training_mode() -> Made:
    return training_mode(tracked)


@refused("batch norm without running statistics, in eval mode")
def batch_norm_without_statistics() -> Made:
    return training_mode(lambda: nn.BatchNorm1d(D, track_running_stats=False))


@exact("dropout of probability zero and noise of scale zero are no chance", train=True)
def dropout_of_nothing() -> Made:
    return training_mode(lambda: nn.Dropout(0.0))


@exact("noise that is the same at every call is a constant")
def fixed_noise() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        noise = torch.randn(D, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(x)
        return m.head(m.a(x + noise).tanh())

    return net(run), torch.randn(N, D)


@exact("the variational mean in eval mode, a learned noise scale unused")
def variational_in_eval() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.head(h + torch.randn_like(h) * m.log_scale.exp() if m.training else h)

    return net(run, log_scale=free(D)), torch.randn(N, D)
