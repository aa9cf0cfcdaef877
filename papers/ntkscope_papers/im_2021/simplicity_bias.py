"""The NTK review, section 3: spectra over the Boolean cube, and which functions wide networks therefore favour."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
from matplotlib.figure import Figure

from ntkscope import infinite
from ntkscope.core import Record
from ntkscope.infinite import Erf, Relu
from ntkscope.infinite.layer import Layer
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import under
from ntkscope_papers.im_2021 import cube
from ntkscope_papers.im_2021.cube import KINDS

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
NETS = (*(f"relu {r}" for r in RELU), *(f"erf {e}" for e in ERF), "relu no bias")
SAMPLED = {"relu": f"relu {SHOWN}", "erf": "erf sw2=1 one hidden"}
DOMAINS = {"sphere": infinite.sphere, "gaussian": infinite.gaussian}
CLAIMED = 0.8
DEGREES = 6  # how many are compared for the order of eigenvalues


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
        **{"corners": 4, "dimensions": (4, 16), "draws": 1000, "keep": (1, 5)},
        **{"width": 64, "outputs": 8, "networks": 10, "deep": 8},
    }

    @property
    def _large(self) -> list[int]:
        """Dimensions in which the order of degrees is compared."""
        return [d for d in self.dimensions if d > 8]

    @leg("spectrum/{}/{}/{}", over=lambda self: product(self.dimensions, NETS, KINDS))
    def spectrum(self, run: Run, d: int, name: str, short: str) -> dict[str, Any]:
        return spectrum(network(name), d, KINDS[short])

    @leg("deep/erf {}", over=lambda self: ERF)
    def deep_spectrum(self, run: Run, setting: str) -> dict[str, Any]:
        return spectrum(cube.fully_connected(Erf(), self.deep, ERF[setting][0], 0.0), self.corners, "nngp")

    @leg("corners/{}/{}", over=lambda self: product(NETS, KINDS))
    def on_corners(self, run: Run, name: str, short: str) -> dict[str, Any]:
        """Parities of all subsets under the kernel of all corners, and the eigenvalues beside those of the spectrum."""
        net, kind = network(name), KINDS[short]
        found = cube.by_parity(infinite.kernel(net, cube.corners(self.corners), kind=kind).dense(), self.corners)
        expected = infinite.boolean_cube(net, self.corners, kind).eigenvalues
        off = (torch.tensor(found["eigenvalues"], dtype=torch.float64) - expected).abs().max() / expected.max()
        return {**found, "against spectrum": float(off)}

    @leg("{}/{}/{}", over=lambda self: product(DOMAINS, self._large, KINDS))
    def elsewhere(self, run: Run, domain: str, d: int, short: str) -> dict[str, Any]:
        """The first degrees' eigenvalues over the sphere or the Gaussian, with the dimension of each eigenspace."""
        found = DOMAINS[domain](network(f"relu {SHOWN}"), d, KINDS[short], degrees=4)
        return {"eigenvalues": found.eigenvalues.tolist(), "dimension": [infinite.harmonics(d, k) for k in range(5)]}

    @leg("samples/{}", over=lambda self: SAMPLED)
    def samples(self, run: Run, name: str) -> dict[str, Any]:
        """Draws of the CK's process on all corners: covariance, degrees, truncation; and random networks beside them."""
        net, d = network(SAMPLED[name]), self.corners
        K = infinite.kernel(net, cube.corners(d), kind="nngp").dense()
        drawn = infinite.sample(K, self.draws, seed=run.seed)
        top = torch.linalg.eigh(K).eigenvectors[:, -1]
        parts = cube.degree_shares(drawn, d)
        found = [cube.ratio(parts[:, k], parts.sum(1)) for k in range(d + 1)]
        return {
            "covariance": cube.covariance_errors(drawn, K),
            "covariance without the first": cube.covariance_errors(drawn - torch.outer(drawn @ top, top), K),
            "expected": infinite.boolean_cube(net, d, "nngp").fractional_variance.tolist(),
            "share": [one["share"] for one in found],
            "sem": [one["sem"] for one in found],
            "truncation": cube.truncation(K, self.keep, self.draws, run.seed),
            "networks": cube.network_shares(net, d, self.width, self.networks, self.outputs, run.seed),
        }

    @claim("ntkreview-gp-expansion", "Section 3", "a sample is Σ √λ_i ω_i u_i")
    def expansion(self, record: Record) -> Reading:
        """covariance of samples equals K within 5 standard errors in every entry"""
        found = {name: record.metrics[f"samples/{name}"] for name in SAMPLED}
        errors = {name: one["covariance"] for name, one in found.items()}
        without = min(one["covariance without the first"] for one in found.values())
        measured = {"largest difference, standard errors": {name: round(error, 2) for name, error in errors.items()}}
        note = (
            f"the sum runs from i = 1 (printed i > 1: then {without:.0f} standard errors); a trained infinitely wide network"
            " is no draw of a process with covariance NTK"
        )
        return Reading(measured, max(errors.values()) <= 5, note)

    @claim(
        "ntkreview-dominant-eigen",
        "Section 3",
        "samples are near the dominant eigenfunction; ReLU networks are such a case",
    )
    def dominant(self, record: Record) -> Reading:
        """its share of the samples' variance is its fractional variance within 4 standard errors; over 1/2 for ReLU"""
        measured: dict[str, Any] = {}
        holds = True
        for name, k in (("relu", 0), ("erf", 1)):
            one = record.metrics[f"samples/{name}"]
            nets = one["networks"]
            holds &= abs(one["share"][k] - one["expected"][k]) <= 4 * one["sem"][k]
            measured[f"{name}, degree {k}"] = {
                "fractional variance": round(one["expected"][k], 4),
                "share of samples": {"mean": round(one["share"][k], 4), "sem": round(one["sem"][k], 4)},
                f"share of networks of width {self.width}": {
                    "mean": round(nets["share"][k], 4),
                    "sem": round(nets["sem"][k], 4),
                },
            }
        least = min(one["share"][0] for one in self._spectra(record, max(self.dimensions), "relu", RELU).values())
        measured["least share of degree 0, ReLU with biases"] = round(least, 4)
        return Reading(measured, holds and least > 0.5, f"CK on all corners of d = {self.corners}")

    @claim(
        "ntkreview-eigenspace-dim",
        "Section 3",
        "the k-th largest eigenvalue has an eigenspace of dimension d^k/k! + o(d^k)",
    )
    def eigenspaces(self, record: Record) -> Reading:
        """multiplicities C(d, k); order of degrees on cube, sphere and Gaussian; C(d, k) k! / d^k tends to 1"""
        found, d = record.metrics, self.corners
        wanted = [math.comb(d, k) for k in range(d + 1)]
        counted = all(found[f"corners/relu {r}/{s}"]["multiplicity"] == wanted for r, s in product(RELU, KINDS))
        ordered = {
            f"cube, d = {n}": all(_falls(one["log10"]) for one in self._spectra(record, n, "relu", RELU).values())
            for n in self._large
        }
        for domain, n in product(DOMAINS, self._large):
            ordered[f"{domain}, d = {n}"] = all(_falls(found[f"{domain}/{n}/{s}"]["eigenvalues"]) for s in KINDS)
        growth = {
            str(n): [round(f * math.factorial(4) / n**4, 3) for f in (math.comb(n, 4), infinite.harmonics(n, 4))]
            for n in (*self._large, 1024, 8192)
        }
        tends = all(abs(value - 1) <= 0.01 for value in growth["8192"])
        odd = found[f"spectrum/{self._large[-1]}/relu no bias/CK"]["share"]
        note = (
            "k counted from 0; needs every Taylor coefficient of the kernel: even degrees vanish for erf without biases, odd"
            f" ones from 3 on for one ReLU layer without biases (degree 3: {odd[3]:.1g})"
        )
        measured = {
            "multiplicities": found[f"corners/relu {SHOWN}/NTK"]["multiplicity"],
            "degrees in order": ordered,
            "dimension of degree 4 over d⁴/4!, cube and sphere": growth,
        }
        return Reading(measured, counted and all(ordered.values()) and tends, note)

    @claim("ntkreview-576-5", "Section 3", {"d": 576, "k": 5, "dimensions": 5.2e11})
    def dimensions_of_576(self, record: Record) -> Reading:
        """rounds to 5.2e11"""
        count = math.comb(576, 5)
        note = f"C(576, 5); 576 = 24² is not MNIST's 28² = 784 pixels, for which it is {math.comb(784, 5):.3e}"
        return Reading(count, f"{count:.1e}" == "5.2e+11", note, exact=True)

    @claim("ntkreview-parity-eigenfunctions", "Section 3", "parities are eigenfunctions")
    def eigenfunctions(self, record: Record) -> Reading:
        """residual <= 1e-12, d = 7"""
        return _worst_corner(record, "residual")

    @claim("ntkreview-mu-by-degree", "Section 3", "eigenvalues depend on the subset's size")
    def by_degree(self, record: Record) -> Reading:
        """spread <= 1e-12, d = 7"""
        return _worst_corner(record, "spread")

    @claim("ntkreview-relu-mu0-80", "Section 3", {"share of degree 0": CLAIMED})
    def relu_degree_0(self, record: Record) -> Reading:
        """degree 0 is the largest in every reading, and within 0.05 of 0.8 in some"""
        d = max(self.dimensions)
        shares = {name: one["share"] for name, one in self._spectra(record, d, "relu", RELU).items()}
        measured = {name: round(one[0], 4) for name, one in shares.items()}
        near = [name for name, value in measured.items() if abs(value - CLAIMED) <= 0.05]
        largest = all(max(one) == one[0] for one in shares.values())
        note = (
            f"d = {d}; within 0.05: {', '.join(near) or 'none'}. The document leaves open CK or NTK and what two layers are;"
            " the NTK is far from 0.8 in all readings, and only two hidden layers and the CK come near"
        )
        return Reading(measured, largest and bool(near), note)

    @claim("ntkreview-erf-mu1", "Section 3", "degree 1 is the largest for erf with σ_b = 0")
    def erf_degree_1(self, record: Record) -> Reading:
        """the largest share for one or two hidden layers; even degrees below 1e-10"""
        d = max(self.dimensions)
        spectra = self._spectra(record, d, "erf", ERF)
        measured = {name: round(one["share"][1], 4) for name, one in spectra.items()}
        even = max(one["largest even, odd"][0] for one in spectra.values())
        first = all(max(one["share"]) == one["share"][1] for one in spectra.values())
        deep = {e: record.metrics[f"deep/erf {e}"]["share"] for e in ERF}
        said = ", ".join(f"{e.split()[0]}: degree {max(range(len(s)), key=s.__getitem__)}" for e, s in deep.items())
        note = f"d = {d}, largest even share {even:.1g}; with {self.deep + 1} weight layers, d = {self.corners}, {said}"
        return Reading(measured, first and even <= 1e-10, note)

    @claim("ntkreview-fractional-variance", "Section 3", "C(d, k) μ_k / Σ C(d, i) μ_i")
    def fractional_variance(self, record: Record) -> Reading:
        """shares sum to 1 and the denominator is K(x, x), both to 1e-8"""
        spectra = under(record, "spectrum/").values()
        measured = {key: max(abs(one[key] - 1) for one in spectra) for key in ("sum", "trace")}
        note = f"{len(spectra)} spectra, d = {', '.join(map(str, self.dimensions))}"
        return Reading(measured, max(measured.values()) <= 1e-8, note)

    @claim("ntkreview-small-eigenvalues", "Section 5", "small eigenvalues hardly show in the function")
    def small_eigenvalues(self, record: Record) -> Reading:
        """leaving them out changes samples by their share of the variance, within 4 standard errors"""
        samples = {name: record.metrics[f"samples/{name}"]["truncation"] for name in SAMPLED}
        cut = {f"{name}, keep {k}": one for name, several in samples.items() for k, one in several.items()}
        measured = {name: [round(one["share"], 5), round(one["expected"], 5)] for name, one in cut.items()}
        holds = all(abs(one["share"] - one["expected"]) <= 4 * one["sem"] + 1e-12 for one in cut.values())
        note = "change of the samples and share of what was left out; that the smallest one enters a bound is no measurement"
        return Reading(measured, holds, note)

    def _spectra(self, record: Record, d: int, function: str, settings: Iterable[str]) -> dict[str, Any]:
        """Those over the cube of dimension `d`, by kernel and setting."""
        return {f"{s} {e}": record.metrics[f"spectrum/{d}/{function} {e}/{s}"] for e, s in product(settings, KINDS)}

    @figure
    def degrees(self, record: Record) -> Figure:
        """The share of degree 0 in every reading; shares by degree; what samples and networks show of them."""
        found, d, small = record.metrics, max(self.dimensions), self.corners
        drawn, axes = drawing.canvas(1, 3, width=4.8)
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
                axes[1].plot(
                    list(values), list(values.values()), style, markersize=4, color=colour, label=f"{name}, {s}"
                )
        drawing.label(axes[1], x="degree k", y=f"fractional variance, d = {d}", log="y", legend=True)
        names = [str(k) for k in range(small + 1)]
        one = found["samples/relu"]
        nets = one["networks"]
        series = {
            "spectrum": (one["expected"], None),
            "samples": (one["share"], one["sem"]),
            f"networks of width {self.width}": (nets["share"], nets["sem"]),
        }
        drawing.compare_bars(axes[2], names, series, label=f"share of the variance, ReLU, CK, d = {small}")
        axes[2].set_xlabel("degree k")
        axes[2].tick_params(axis="x", rotation=0)
        axes[2].set_yscale("log")
        return drawn


def network(name: str) -> Layer:
    """erf without biases; ReLU without, or with those of a reading of "two-layer ReLU with σ_w = σ_b = 2"."""
    function, _, setting = name.partition(" ")
    if function == "erf":
        variance, hidden, _ = ERF[setting]
        return cube.fully_connected(Erf(), hidden, variance, 0.0)
    if setting == "no bias":
        return cube.fully_connected(Relu(), 1, 2.0, 0.0)
    variance, hidden, _ = RELU[setting]
    return cube.fully_connected(Relu(), hidden, variance, variance)


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


def _worst_corner(record: Record, what: str) -> Reading:
    corners = under(record, "corners/").values()
    worst = max(one[what] for one in corners)
    note = f"{len(corners)} kernels: ReLU and erf, CK and NTK; relative to the largest eigenvalue"
    return Reading({what: worst}, worst <= 1e-12, note)


def _falls(values: list[float]) -> bool:
    return all(late < early for early, late in pairwise(values))
