"""`python -m benchmarks.kernels.right_or_refused_infinite`: infinite-width kernels that were once silently wrong.

The right value is computed here, by Monte Carlo over wide networks or by mpmath; what came before is what the commit named in
`BEFORE` says to the same question. A case holds when the value is right now, or refused with an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import mpmath
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from ntkscope import infinite
from ntkscope.core import NtkscopeError, Part
from ntkscope.infinite import Activation, Dense, Erf, Gelu, LayerNorm, Relu, serial
from ntkscope.infinite.rules import Concat
from ntkscope.training import fit, fit_ensemble

BEFORE = "42e606a"
DRAWS, WIDTH = 48, 512
STANDARD_ERRORS = 5.0


@dataclass(frozen=True)
class Row:
    """One case: what came before, what is right, what comes now, and the verdict."""

    case: str
    before: str
    right: str
    now: str
    verdict: str

    @property
    def holds(self) -> bool:
        return self.verdict in ("right", "refused")


@dataclass(frozen=True)
class Case:
    """`now` computes; `right` gives the value and how far off it may be. Without a right value only a refusal holds."""

    name: str
    before: str
    now: Callable[[], float]
    right: Callable[[], tuple[float, float]] | None = None


def vectors(scale: float = 1.0) -> Tensor:
    return scale * torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def drawn(build: Callable[[int], nn.Module], x: Tensor, tangent: bool, draws: int = DRAWS) -> tuple[float, float]:
    """The mean of f(x)² or ‖∇f(x)‖² over networks, and five of its standard errors with 4/width of it for the width."""
    found = []
    for seed in range(draws):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = build(WIDTH).double()
        out = net(x[:1])
        if tangent:
            gradients = torch.autograd.grad(out.sum(), [p for p in net.parameters() if p.requires_grad])
            found.append(sum(float(g.square().sum()) for g in gradients))
        else:
            found.append(float(out.detach().square().mean()))
    values = torch.tensor(found)
    mean = float(values.mean())
    return mean, STANDARD_ERRORS * float(values.std()) / math.sqrt(draws) + 4 / WIDTH * abs(mean)


def mlp(width: int, activation: Callable[[], nn.Module] = nn.ReLU, outputs: int = 64) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, outputs)
    )


def shared(width: int) -> nn.Sequential:
    activation = nn.ReLU()
    return mlp(width, lambda: activation)


def changed(change: Callable[[nn.Sequential], Any]) -> Callable[[int], nn.Sequential]:
    def build(width: int) -> nn.Sequential:
        net = mlp(width)
        change(net)
        return net

    return build


def _entry_of(build: Callable[[int], nn.Module], x: Tensor) -> float:
    return entry(build(64), x)


def entry(net: Any, x: Tensor, kind: str = "nngp", at: tuple[int, int] = (0, 0), **options: Any) -> float:
    return float(infinite.kernel(net, x, kind=kind, **options).dense()[at])


def tripled(module: nn.Module, inputs: Any, outputs: Tensor) -> Tensor:
    return 3 * outputs


class Doubled(nn.Conv2d):
    def _conv_forward(self, *arguments: Any) -> Tensor:
        return 2 * super()._conv_forward(*arguments)


def doubled(width: int) -> nn.Sequential:
    return nn.Sequential(Doubled(1, width, 2), nn.ReLU(), nn.Flatten(), nn.Linear(width, 64))


def zero_biases(width: int, outputs: int = 1) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, outputs))
    for layer in (net[0], net[2]):
        nn.init.zeros_(cast(nn.Linear, layer).bias)
    return net


def side_by_side(width: int) -> nn.Module:
    return infinite.finite(_concat(), (4,), width, outputs=64, seed=torch.initial_seed())


def _concat() -> infinite.layer.Layer:
    return serial(Dense(), Concat((Dense(5.0), Dense(0.1))), Erf(), Dense())


def by_mpmath(q: float) -> tuple[float, float]:
    """Θ of Dense, tanh, Dense at an input of variance q: E[tanh²] + q E[tanh′²]."""
    with mpmath.workdps(20):
        s = mpmath.sqrt(q)
        cuts = [
            -12,
            *(-(mpmath.mpf(10) ** -k) for k in range(6)),
            0,
            *(mpmath.mpf(10) ** -k for k in range(5, -1, -1)),
            12,
        ]
        second = mpmath.quad(lambda z: mpmath.npdf(z) * mpmath.tanh(s * z) ** 2, cuts)
        slope = mpmath.quad(lambda z: mpmath.npdf(z) * mpmath.sech(s * z) ** 4, cuts)
        value = float(second + q * slope)
    return value, 1e-8 * value


def duplicates(kind: infinite.layer.Nonlinearity) -> tuple[float, float]:
    """The same input in two rows has the entry of one row, here in 50 digits."""
    with mpmath.workdps(50):
        q = mpmath.mpf(float(vectors(1e8)[1].square().mean()))
        q = np.array([q], dtype=object)
        values, slopes = kind.exact(q, q, q)
        exact = float(values[0] + q[0] * slopes[0])
    return exact, 1e-7 * exact


def ensemble_apart() -> float:
    """The largest difference of a member's outputs from those of the network trained alone."""
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    part = Part(x, x[:, :1].sin())

    def build(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            activation = nn.ReLU()
            layers = [nn.Linear(4, 16), activation, nn.Linear(16, 16), activation, nn.Linear(16, 1)]
            return nn.Sequential(*layers).double()

    settings: dict[str, Any] = {"lr": 0.05, "loss": "mse", "steps": 200}
    member = fit_ensemble(build, part, seeds=1, workers=1, **settings)(x)[0]
    alone = build(0)
    fit(alone, part, seed=0, **settings).final()
    return float((member - alone(x).detach()).abs().max())


def questions() -> Iterator[Case]:
    """The cases."""
    x = vectors()
    yield Case("one ReLU used twice, NNGP", "0.04036", lambda: entry(shared(WIDTH), x), lambda: drawn(shared, x, False))
    yield Case(
        "one ReLU used twice, ensemble after 200 steps, distance from fit",
        "0.7248",
        ensemble_apart,
        lambda: (0.0, 1e-9),
    )
    tied = nn.Linear(64, 64)
    yield Case(
        "one Linear used twice, NTK",
        "0.06619",
        lambda: entry(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), tied, nn.ReLU(), tied, nn.Linear(64, 1)), x, "ntk"),
    )
    for name, before, change in (
        ("forward hook", "0.02582", lambda net: net[0].register_forward_hook(tripled)),
        ("forward pre-hook", "0.02582", lambda net: net[2].register_forward_pre_hook(lambda m, i: (3 * i[0],))),
        ("patched forward", "0.02582", lambda net: setattr(net[1], "forward", torch.sin)),
        ("weight norm", "0.02582", lambda net: parametrizations.weight_norm(net[2])),
    ):
        build = changed(change)
        yield Case(f"{name}, NNGP", before, partial(_entry_of, build, x), partial(drawn, build, x, False, 16))
    images = torch.ones(2, 1, 2, 2, dtype=torch.float64)
    yield Case(
        "overridden _conv_forward, NNGP",
        "0.07465",
        lambda: entry(doubled(64), images),
        lambda: drawn(doubled, images, False, 16),
    )
    yield Case("Concat, then erf, NNGP", "0.8699", lambda: entry(_concat(), x), lambda: drawn(side_by_side, x, False))
    pixels = vectors(105.0)
    q = float(pixels[0].square().mean())
    tanh = serial(Dense(), Activation(torch.tanh), Dense())
    yield Case(f"tanh at variance {q:.2g}, NTK", "76.84", lambda: entry(tanh, pixels, "ntk"), lambda: by_mpmath(q))
    yield Case(
        f"tanh at variance {q:.2g}, NTK of two sets with an input in common",
        "12.19",
        lambda: float(infinite.kernel(tanh, pixels[:1], pixels[:1].clone()).dense()),
        lambda: by_mpmath(q),
    )
    yield Case(
        "trained zero biases, measured, NTK parametrisation",
        "0.1997",
        lambda: entry(zero_biases(64), x, "ntk", init="measured"),
    )
    yield Case(
        "trained zero biases, measured, standard parametrisation, NTK",
        "0.06473",
        lambda: entry(zero_biases(WIDTH), 0.02 * x, "ntk", init="measured", parametrization="standard"),
        lambda: drawn(zero_biases, 0.02 * x, True),
    )
    yield Case(
        "input of zeros and trained zero biases, standard, NTK",
        "0",
        lambda: entry(zero_biases(WIDTH), 0 * x, "ntk", init="measured", parametrization="standard"),
        lambda: drawn(zero_biases, 0 * x, True),
    )
    yield Case(
        "Linear behind another width", "0.2846", lambda: entry(nn.Sequential(nn.Linear(4, 8), nn.Linear(7, 1)), x)
    )
    yield Case(
        "inputs of another dimension", "0.2731", lambda: entry(nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 1)), x)
    )
    zeros = torch.zeros(2, 4, dtype=torch.float64)
    yield Case("LayerNorm of zeros", "nan", lambda: entry(serial(Dense(), LayerNorm(), Relu(), Dense()), zeros))
    big = torch.cat([vectors(1e8)[1:]] * 2)
    for kind, before in ((Erf(), "inf"), (Gelu(), "inf")):
        net = serial(Dense(), kind, Dense())
        yield Case(
            f"{type(kind).__name__}, duplicates of size 1e8, NTK",
            before,
            partial(entry, net, big, "ntk", (0, 1)),
            partial(duplicates, kind),
        )
    yield Case(
        "a kink of a callable at equal inputs, over the cube",
        "1.192",
        lambda: float(infinite.boolean_cube(serial(Dense(), Activation(functional.hardtanh), Dense()), 5).total),
    )


def answered(case: Case) -> Row:
    """The case, asked now."""
    right, allowed = case.right() if case.right is not None else (math.nan, 0.0)
    expected = "none" if case.right is None else f"{right:.4g} ± {allowed:.1g}"
    try:
        value = case.now()
    except NtkscopeError as error:
        return Row(case.name, case.before, expected, f"{type(error).__name__}: {str(error)[:60]}…", "refused")
    verdict = "right" if abs(value - right) <= allowed else "WRONG"
    return Row(case.name, case.before, expected, f"{value:.4g}", verdict)


def cases() -> list[Row]:
    """Every case with its verdict: (case, before, right value, now, verdict)."""
    return [answered(case) for case in questions()]


def main() -> int:
    rows = cases()
    print(f"| case | before ({BEFORE}) | right | now | verdict |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row.case} | {row.before} | {row.right} | {row.now} | {row.verdict} |")
    wrong = sum(not row.holds for row in rows)
    print(f"\n{len(rows)} cases, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
