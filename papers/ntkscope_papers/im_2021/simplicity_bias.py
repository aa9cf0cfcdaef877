"""The NTK review, section 3: spectra over the Boolean cube, and which functions wide networks therefore favour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from ntkscope import infinite
from ntkscope.core import Claim, Record
from ntkscope.infinite import Erf, Layer, Relu
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.results import once
from ntkscope_papers.im_2021 import cube

KINDS = {"CK": "nngp", "NTK": "ntk"}
RELU = {  # σ² of weights and biases, hidden layers; the ledger's shares of degree 0 at d = 128
    "var2 one hidden": (2.0, 1, {"CK": 0.74, "NTK": 0.577}),
    "var2 two hidden": (2.0, 2, {"CK": 0.835, "NTK": 0.617}),
    "std2 one hidden": (4.0, 1, {"CK": 0.688, "NTK": 0.531}),
    "std2 two hidden": (4.0, 2, {"CK": 0.765, "NTK": 0.534}),
}
ERF = {  # σ_w², hidden layers; the ledger's shares of degree 1 at d = 128
    "sw2=1 one hidden": (1.0, 1, {"CK": 0.915, "NTK": 0.824}),
    "sw2=2 one hidden": (2.0, 1, {"CK": 0.865}),
    "sw2=4 two hidden": (4.0, 2, {"CK": 0.684}),
}
SHOWN = "var2 two hidden"  # the reading the ledger finds nearest to the figure
CLAIMED = 0.8
DEGREES = 6  # how many are compared for the order of eigenvalues

PUBLISHED = {
    claim.id.removeprefix("ntkreview-"): claim
    for claim in (
        Published(
            "ntkreview-gp-expansion",
            "Section 3",
            "a sample is Σ √λ_i ω_i u_i",
            "covariance of samples equals K within 5 standard errors in every entry",
        ),
        Published(
            "ntkreview-dominant-eigen",
            "Section 3",
            "samples are near the dominant eigenfunction; ReLU networks are such a case",
            "its share of the samples' variance is its fractional variance within 4 standard errors; over 1/2 for ReLU",
        ),
        Published(
            "ntkreview-eigenspace-dim",
            "Section 3",
            "the k-th largest eigenvalue has an eigenspace of dimension d^k/k! + o(d^k)",
            "multiplicities C(d, k); order of degrees on cube, sphere and Gaussian; C(d, k) k! / d^k tends to 1",
        ),
        Published("ntkreview-576-5", "Section 3", {"d": 576, "k": 5, "dimensions": 5.2e11}, "rounds to 5.2e11"),
        Published(
            "ntkreview-parity-eigenfunctions", "Section 3", "parities are eigenfunctions", "residual <= 1e-12, d = 7"
        ),
        Published(
            "ntkreview-mu-by-degree", "Section 3", "eigenvalues depend on the subset's size", "spread <= 1e-12, d = 7"
        ),
        Published(
            "ntkreview-relu-mu0-80",
            "Section 3",
            {"share of degree 0": CLAIMED},
            "degree 0 is the largest in every reading, and within 0.05 of 0.8 in some",
        ),
        Published(
            "ntkreview-erf-mu1",
            "Section 3",
            "degree 1 is the largest for erf with σ_b = 0",
            "the largest share for one or two hidden layers; even degrees below 1e-10",
        ),
        Published(
            "ntkreview-fractional-variance",
            "Section 3",
            "C(d, k) μ_k / Σ C(d, i) μ_i",
            "shares sum to 1 and the denominator is K(x, x), both to 1e-8",
        ),
        Published(
            "ntkreview-small-eigenvalues",
            "Section 5",
            "small eigenvalues hardly show in the function",
            "leaving them out changes samples by their share of the variance, within 4 standard errors",
        ),
    )
}


@dataclass(frozen=True)
class SimplicityBias(Experiment):
    """NTK review, section 3: which degree dominates over the Boolean cube, samples, parities, eigenspaces.

    `corners`: the dimension in which all corners are computed; `dimensions`: those of the spectra.
    """

    name = "simplicity-bias"
    free = ("networks", "outputs")

    corners: int = 7
    dimensions: tuple[int, ...] = (7, 32, 128)
    draws: int = 20_000
    keep: tuple[int, ...] = (1, 8, 29, 64)
    width: int = 1024
    outputs: int = 64
    networks: int = 100
    deep: int = 32

    smoke = {
        "corners": 4,
        "dimensions": (4, 16),
        "draws": 1000,
        "keep": (1, 5),
        "width": 64,
        "outputs": 8,
        "networks": 10,
        "deep": 8,
    }

    def measure(self, run: Run) -> None:
        nets = {**{f"relu {r}": relu_net(r) for r in RELU}, **{f"erf {s}": erf_net(s) for s in ERF}}
        nets["relu no bias"] = cube.fully_connected(Relu(), 1, 2.0, 0.0)
        jobs: list[tuple[str, Callable[[], dict[str, Any]]]] = []
        for name, net in nets.items():
            for short, kind in KINDS.items():
                jobs += [(f"spectrum/{d}/{name}/{short}", partial(spectrum, net, d, kind)) for d in self.dimensions]
                jobs.append((f"corners/{name}/{short}", partial(on_corners, net, self.corners, kind)))
        for setting, (variance, _, _) in ERF.items():
            deep = cube.fully_connected(Erf(), self.deep, variance, 0.0)
            jobs.append((f"deep/erf {setting}", partial(spectrum, deep, self.corners, "nngp")))
        bias = relu_net(SHOWN)
        for short, kind in KINDS.items():
            for domain in ("sphere", "gaussian"):
                jobs += [
                    (f"{domain}/{d}/{short}", partial(elsewhere, domain, bias, d, kind))
                    for d in self.dimensions
                    if d > 8
                ]
        jobs.append(("samples/relu", partial(samples, bias, self, run.seed)))
        jobs.append(("samples/erf", partial(samples, erf_net("sw2=1 one hidden"), self, run.seed)))
        with run.record.stage("spectra", total=len(jobs), progress="auto" if run.progress else False) as stage:
            for key, compute in jobs:
                once(run.record, key, compute)
                stage.advance(stage.done < len(jobs))

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple(PUBLISHED.values())

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return judge(self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def relu_net(reading: str) -> Layer:
    """A reading of "two-layer ReLU with σ_w = σ_b = 2"."""
    variance, hidden, _ = RELU[reading]
    return cube.fully_connected(Relu(), hidden, variance, variance)


def erf_net(setting: str) -> Layer:
    """erf without biases."""
    variance, hidden, _ = ERF[setting]
    return cube.fully_connected(Erf(), hidden, variance, 0.0)


def spectrum(net: Layer, d: int, kind: str) -> dict[str, Any]:
    """Shares of the first degrees, their logarithms, and how far all shares are from what the kernel itself has at x, x."""
    found = infinite.boolean_cube(net, d, kind)
    itself = float(infinite.kernel(net, torch.ones(1, d, dtype=torch.float64), kind=kind).dense())
    shares, logs = found.fractional_variance, found.log10
    parity = [float(shares[parity::2].max()) for parity in (0, 1)]
    return {
        "share": shares[:10].tolist(),
        "log10": logs[: DEGREES + 1].tolist(),
        "sum": float(shares.sum()),
        "trace": float(found.variance.sum()) / itself,
        "largest even, odd": parity,
        "digits": found.digits,
    }


def on_corners(net: Layer, d: int, kind: str) -> dict[str, Any]:
    """Parities of all subsets under the kernel of all corners, and the eigenvalues beside those of the spectrum."""
    K = infinite.kernel(net, cube.corners(d), kind=kind).dense()
    found = cube.by_parity(K, d)
    expected = infinite.boolean_cube(net, d, kind).eigenvalues
    off = (torch.tensor(found["eigenvalues"], dtype=torch.float64) - expected).abs().max() / expected.max()
    return {**found, "against spectrum": float(off)}


def elsewhere(domain: str, net: Layer, d: int, kind: str) -> dict[str, Any]:
    """The first degrees' eigenvalues over the sphere or the Gaussian, with the dimension of each eigenspace."""
    made = {"sphere": infinite.sphere, "gaussian": infinite.gaussian}[domain]
    found = made(net, d, kind, degrees=4)
    return {"eigenvalues": found.eigenvalues.tolist(), "dimension": [infinite.harmonics(d, k) for k in range(5)]}


def samples(net: Layer, config: SimplicityBias, seed: int) -> dict[str, Any]:
    """Draws of the CK's process on all corners: covariance, degrees, truncation; and random networks beside them."""
    d = config.corners
    K = infinite.kernel(net, cube.corners(d), kind="nngp").dense()
    drawn = infinite.sample(K, config.draws, seed=seed)
    top = torch.linalg.eigh(K).eigenvectors[:, -1]
    parts = cube.degree_shares(drawn, d)
    found = [cube.ratio(parts[:, k], parts.sum(1)) for k in range(d + 1)]
    return {
        "covariance": cube.covariance_errors(drawn, K),
        "covariance without the first": cube.covariance_errors(drawn - torch.outer(drawn @ top, top), K),
        "expected": infinite.boolean_cube(net, d, "nngp").fractional_variance.tolist(),
        "share": [one["share"] for one in found],
        "sem": [one["sem"] for one in found],
        "truncation": cube.truncation(K, config.keep, config.draws, seed),
        "networks": cube.network_shares(net, d, config.width, config.networks, config.outputs, seed),
    }


def judge(config: SimplicityBias, record: Record, difference: str) -> Iterator[Claim]:
    """Every check on what the record holds."""
    found = record.metrics

    def claim(name: str, measured: Any, holds: bool | None, note: str = "", **options: Any) -> Claim:
        return PUBLISHED[name].judged(measured, holds, **{"difference": difference, **options}, note=note)

    relu, erf = found["samples/relu"], found["samples/erf"]
    errors = {"relu": relu["covariance"], "erf": erf["covariance"]}
    without = min(relu["covariance without the first"], erf["covariance without the first"])
    note = (
        f"the sum runs from i = 1 (printed i > 1: then {without:.0f} standard errors); a trained infinitely wide network is"
        " no draw of a process with covariance NTK"
    )
    measured: dict[str, Any] = {"largest difference, standard errors": {k: round(v, 2) for k, v in errors.items()}}
    yield claim("gp-expansion", measured, max(errors.values()) <= 5, note)
    yield _dominant(config, relu, erf, found, claim)
    yield _eigenspaces(config, found, claim)
    count = math.comb(576, 5)
    note = f"C(576, 5); 576 = 24² is not MNIST's 28² = 784 pixels, for which it is {math.comb(784, 5):.3e}"
    yield claim("576-5", count, f"{count:.1e}" == "5.2e+11", note, difference="")
    corners = {key: found[key] for key in found if key.startswith("corners/")}
    for name, key in (("parity-eigenfunctions", "residual"), ("mu-by-degree", "spread")):
        worst = max(one[key] for one in corners.values())
        note = f"{len(corners)} kernels: ReLU and erf, CK and NTK; relative to the largest eigenvalue"
        yield claim(name, {key: worst}, worst <= 1e-12, note)
    yield from _degrees(config, found, claim)
    spectra = [found[key] for key in found if key.startswith("spectrum/")]
    apart = {key: max(abs(one[key] - 1) for one in spectra) for key in ("sum", "trace")}
    note = f"{len(spectra)} spectra, d = {', '.join(map(str, config.dimensions))}"
    yield claim("fractional-variance", apart, max(apart.values()) <= 1e-8, note)
    cut = {f"{name}, keep {k}": one for name, s in (("relu", relu), ("erf", erf)) for k, one in s["truncation"].items()}
    measured = {name: [round(one["share"], 5), round(one["expected"], 5)] for name, one in cut.items()}
    holds = all(abs(one["share"] - one["expected"]) <= 4 * one["sem"] + 1e-12 for one in cut.values())
    note = (
        "change of the samples and share of what was left out; that the smallest one enters a bound is no measurement"
    )
    yield claim("small-eigenvalues", measured, holds, note)


def _dominant(config: SimplicityBias, relu: Any, erf: Any, found: Any, claim: Callable[..., Claim]) -> Claim:
    tops = {"relu": 0, "erf": 1}
    measured: dict[str, Any] = {}
    holds = True
    for name, one in (("relu", relu), ("erf", erf)):
        k = tops[name]
        nets = one["networks"]
        holds &= abs(one["share"][k] - one["expected"][k]) <= 4 * one["sem"][k]
        measured[f"{name}, degree {k}"] = {
            "fractional variance": round(one["expected"][k], 4),
            "share of samples": [round(one["share"][k], 4), round(one["sem"][k], 4)],
            f"share of networks of width {config.width}": [round(nets["share"][k], 4), round(nets["sem"][k], 4)],
        }
    largest = max(config.dimensions)
    shares = {(r, s): found[f"spectrum/{largest}/relu {r}/{s}"]["share"][0] for r in RELU for s in KINDS}
    least = min(shares.values())
    measured["least share of degree 0, ReLU with biases"] = round(least, 4)
    return claim("dominant-eigen", measured, holds and least > 0.5, f"CK on all corners of d = {config.corners}")


def _eigenspaces(config: SimplicityBias, found: Any, claim: Callable[..., Claim]) -> Claim:
    d = config.corners
    wanted = [math.comb(d, k) for k in range(d + 1)]
    counted = all(found[f"corners/relu {r}/{s}"]["multiplicity"] == wanted for r in RELU for s in KINDS)
    large = [n for n in config.dimensions if n > 8]
    ordered = {
        f"cube, d = {n}": all(_falls(found[f"spectrum/{n}/relu {r}/{s}"]["log10"]) for r in RELU for s in KINDS)
        for n in large
    }
    for domain in ("sphere", "gaussian"):
        for n in large:
            values = [found[f"{domain}/{n}/{s}"]["eigenvalues"] for s in KINDS]
            ordered[f"{domain}, d = {n}"] = all(_falls(column) for column in values)
    growth = {
        str(n): [round(f * math.factorial(4) / n**4, 3) for f in (math.comb(n, 4), infinite.harmonics(n, 4))]
        for n in (*large, 1024, 8192)
    }
    tends = all(abs(value - 1) <= 0.01 for value in growth["8192"])
    odd = found[f"spectrum/{large[-1]}/relu no bias/CK"]["share"]
    note = (
        "k counted from 0; needs every Taylor coefficient of the kernel: even degrees vanish for erf without biases, odd"
        f" ones from 3 on for one ReLU layer without biases (degree 3: {odd[3]:.1g})"
    )
    measured = {
        "multiplicities": found[f"corners/relu {SHOWN}/NTK"]["multiplicity"],
        "degrees in order": ordered,
        "dimension of degree 4 over d⁴/4!, cube and sphere": growth,
    }
    return claim("eigenspace-dim", measured, counted and all(ordered.values()) and tends, note)


def _falls(values: list[float]) -> bool:
    return all(late < early for early, late in pairwise(values))


def _degrees(config: SimplicityBias, found: Any, claim: Callable[..., Claim]) -> Iterator[Claim]:
    d = max(config.dimensions)
    shares = {f"{s} {r}": found[f"spectrum/{d}/relu {r}/{s}"]["share"] for r in RELU for s in KINDS}
    measured = {name: round(one[0], 4) for name, one in shares.items()}
    near = [name for name, value in measured.items() if abs(value - CLAIMED) <= 0.05]
    largest = all(max(one) == one[0] for one in shares.values())
    note = (
        f"d = {d}; within 0.05: {', '.join(near) or 'none'}. The document leaves open CK or NTK and what two layers are;"
        " the NTK is far from 0.8 in all readings, and only two hidden layers and the CK come near"
    )
    yield claim("relu-mu0-80", measured, largest and bool(near), note)
    shares = {f"{s} {e}": found[f"spectrum/{d}/erf {e}/{s}"] for e in ERF for s in KINDS}
    measured = {name: round(one["share"][1], 4) for name, one in shares.items()}
    even = max(one["largest even, odd"][0] for one in shares.values())
    first = all(max(one["share"]) == one["share"][1] for one in shares.values())
    deep = {e: found[f"deep/erf {e}"]["share"] for e in ERF}
    said = ", ".join(f"{e.split()[0]}: degree {max(range(len(s)), key=s.__getitem__)}" for e, s in deep.items())
    note = f"d = {d}, largest even share {even:.1g}; with {config.deep + 1} weight layers, d = {config.corners}, {said}"
    yield claim("erf-mu1", measured, first and even <= 1e-10, note)


def draw(record: Record) -> dict[str, Any]:
    """The share of degree 0 in every reading; shares by degree; what samples and networks show of them."""
    config, found = record.config, record.metrics
    d, small = max(config["dimensions"]), config["corners"]
    figure, axes = drawing.canvas(1, 3, width=4.8)
    bars = {s: ([found[f"spectrum/{d}/relu {r}/{s}"]["share"][0] for r in RELU], None) for s in KINDS}
    readings = [r.replace("var2", "σ² = 2,").replace("std2", "σ = 2,") for r in RELU]
    drawing.compare_bars(axes[0], readings, bars, label=f"share of degree 0, ReLU, d = {d}")
    axes[0].axhline(CLAIMED, color="#444444", linestyle="--", linewidth=1)
    axes[0].annotate(
        "published", (0.99, CLAIMED), xycoords=("axes fraction", "data"), fontsize=7, ha="right", va="bottom"
    )
    for i, (name, key) in enumerate(
        (("ReLU, σ² = 2, two hidden", f"relu {SHOWN}"), ("erf, σ_w² = 1", f"erf {next(iter(ERF))}"))
    ):
        for s, style in zip(KINDS, ("o-", "s--")):
            values = {k: v for k, v in enumerate(found[f"spectrum/{d}/{key}/{s}"]["share"]) if v > 0}
            colour = drawing.COLOURS[i]
            axes[1].plot(list(values), list(values.values()), style, markersize=4, color=colour, label=f"{name}, {s}")
    drawing.label(axes[1], x="degree k", y=f"fractional variance, d = {d}", log="y", legend=True)
    names = [str(k) for k in range(small + 1)]
    one = found["samples/relu"]
    nets = one["networks"]
    series = {
        "spectrum": (one["expected"], None),
        "samples": (one["share"], one["sem"]),
        f"networks of width {config['width']}": (nets["share"], nets["sem"]),
    }
    drawing.compare_bars(axes[2], names, series, label=f"share of the variance, ReLU, CK, d = {small}")
    axes[2].set_xlabel("degree k")
    axes[2].tick_params(axis="x", rotation=0)
    axes[2].set_yscale("log")
    return {"degrees": figure}
