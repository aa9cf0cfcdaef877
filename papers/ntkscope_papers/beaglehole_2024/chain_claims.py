"""Verdicts on the statements of `chain-monomial` from its record."""

from __future__ import annotations

from functools import partial
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS
from ntkscope_papers.framework import Reading, claim
from ntkscope_papers.framework.intervals import CORRELATION, interval, short

READ = ("variance", "deviation")
RHO, CONTROL = ("layers", "layer1", "rho"), ("layers", "layer1", "control")
on_identities = partial(claim, needs=["definitions/identities"])
on_networks = partial(claim, seeds=5, needs=["trained/variance"])
PTK_FACTOR = "K needs the factor 1/n that the AGOP is defined with; as printed, the two sides differ by n"


def each(record: Record, networks: str, *path: str) -> list[float]:
    """One number of every network, by the keys that lead to it."""
    values = record.metrics[f"trained/{networks}"]["members"]
    for key in path:
        values = [value[key] for value in values]
    return [float(value) for value in values]


def with_deviation(record: Record, measured: dict[str, Any], *path: str) -> dict[str, Any]:
    """The same with the other reading of s, where it was measured."""
    if "trained/deviation" in record.metrics:
        measured["s a standard deviation"] = short(interval(each(record, "deviation", *path)))
    return measured


@on_identities("nfa-index-convention", "Section 2.1", "f(x) = h_{L+1}(x)")
def _index(config: Any, record: Record) -> Reading:
    """shapes: L + 1 affine maps, so the output is h_L"""
    shapes = record.metrics["definitions/identities"]["shapes"]
    maps, hidden = len(shapes), len(shapes) - 1
    chained = all(a[0] == b[1] for a, b in zip(list(shapes.values()), list(shapes.values())[1:]))
    note = f"{hidden} hidden layers and {maps} maps W_0 … W_{hidden}: the output is h_{hidden}, not h_{hidden + 1} as printed"
    return Reading({"shapes": shapes}, hidden == 2 and chained and shapes["readout"][0] == 1, note, exact=True)


@on_identities("nfa-nfm-agop-def", "Section 2.1", "F = WᵀW, G = 1/n Σ ∂f ∂fᵀ")
def _definitions(config: Any, record: Record) -> Reading:
    """both symmetric and positive semi-definite, k × k; the AGOP is autograd's mean of outer products to 1e-12"""
    whole = record.metrics["definitions/identities"]
    found = whole["layers"]
    asymmetry = max(one["asymmetry"] for one in found.values())
    least = min(one["least eigenvalue / largest"] for one in found.values())
    gap = max(one["gap of feature_matrices"] for one in found.values())
    sizes = {layer: one["sizes"] for layer, one in found.items()}
    square = all(sizes[layer] == [[whole["shapes"][layer][1]] * 2] * 2 for layer in found)
    return Reading(
        {"asymmetry": asymmetry, "least eigenvalue / largest": least, "AGOP off by": gap, "sizes": sizes},
        square and max(asymmetry, gap) <= 1e-12 and least >= -1e-12,
        exact=True,
    )


@on_identities("nfa-agop-decomposition", "Section 2.2", "G = WᵀKW")
def _decomposition(config: Any, record: Record) -> Reading:
    """relative error ≤ 1e-12 with 1/n in K; without it a factor of n"""
    found = record.metrics["definitions/identities"]
    n, layers = found["n"], found["layers"].values()
    gap = max(max(one["gap"], one["gap of feature_matrices"]) for one in layers)
    printed = [one["printed / AGOP"] for one in layers]
    holds = gap <= 1e-12 and all(abs(value / n - 1) <= 1e-9 for value in printed)
    return Reading({"gap": gap, "printed / AGOP": printed, "n": n}, holds, PTK_FACTOR, exact=True)


@on_identities("nfa-prop2", "Proposition 2", "ρ(F, G) = ρ(WᵀW, WᵀKW)")
def _proposition(config: Any, record: Record) -> Reading:
    """equal to 1e-12"""
    gap = max(one["gap of proposition 2"] for one in record.metrics["definitions/identities"]["layers"].values())
    return Reading({"gap": gap}, gap <= 1e-12, exact=True)


@on_identities("nfa-identity-K", "Section 2.2", 1)
def _identity(config: Any, record: Record) -> Reading:
    """1 to 1e-12 for K = 3I"""
    gap = max(one["off 1 with K = 3I"] for one in record.metrics["definitions/identities"]["layers"].values())
    return Reading({"off 1": gap}, gap <= 1e-12, exact=True)


@claim("nfa-rho-def", "Section 2.1", [-1, 1], needs=["definitions/correlation"])
def _correlation(config: Any, record: Record) -> Reading:
    """within [-1, 1]; 1 for A and cA; unchanged by scaling; ≥ 0 for PSD pairs"""
    found = {name: value for name, value in record.metrics["definitions/correlation"].items() if name != "seconds"}
    holds = max(found["off 1 for A, cA"], found["change by scaling"], found["beyond 1"]) <= 1e-12
    return Reading(found, holds and found["least of PSD pairs"] >= 0, exact=True)


@claim("nfa-chain-monomial", "Eq. 1", {"r": 5, "variance": 5}, needs=["definitions/targets"])
def _target(config: Any, record: Record) -> Reading:
    """variance r for r ≥ 3 and 4 for r = 2, within 3 %"""
    found = record.metrics["definitions/targets"]["variances"]
    holds = all(abs(value / (4 if r == "2" else int(r)) - 1) <= 0.03 for r, value in found.items())
    return Reading(found, holds)


@claim(
    "nfa-egop-chain",
    "Figure 1, Eq. 2",
    {"entries": [2, 1, 0], "eigenvalues": [4, 2.618, 2.618, 0.382, 0.382], "rank": "r"},
    needs=["definitions/targets"],
)
def _egop(config: Any, record: Record) -> Reading:
    """r = 5: entries and eigenvalues 4 cos²(2πm/r) exactly, samples within 1 %; rank r, but r - 2 where 4 divides r"""
    found = record.metrics["definitions/targets"]
    five, ranks = found["r = 5"], found["ranks"]
    entries = max(abs(got - wanted) for got, wanted in zip(five["entries"], (2, 1, 0)))
    off = max(found["off 4cos²(2πm/r)"].values())
    wrong = [r for r, rank in ranks.items() if rank != int(r) - (0 if int(r) % 4 else 2)]
    holds = entries <= 1e-12 and off <= 1e-9 and five["off, of samples"] <= 0.01 and not wrong
    note = "the rank is r - 2, not r, where 4 divides r; r = 5 is not concerned"
    return Reading({"r = 5": five, "ranks": ranks, "eigenvalues off": off}, holds, note)


@claim("nfa-ansatz", "Ansatz 1", "ρ ≈ 1, all layers", seeds=5, needs=["trained/ansatz"])
def _ansatz(config: Any, record: Record) -> Reading:
    """layer 1 at s = 0.01: ρ ≥ 0.7 after training, mean over seeds"""
    rho, control = (
        {layer: interval(each(record, "ansatz", "layers", layer, *path), CORRELATION) for layer in LAYERS}
        for path in (["rho"], ["control", "mean"])
    )
    measured = {
        "ρ": {layer: short(one) for layer, one in rho.items()},
        "control": {layer: short(one) for layer, one in control.items()},
    }
    note = "mean with its 95 % interval"
    if rho["layer2"]["mean"] < 0.7:
        note += (
            f"; layer 2 has ρ = {rho['layer2']['mean']:.2f} ({control['layer2']['mean']:.2f} with random eigenvectors):"
            " not every layer is near 1"
        )
    return Reading(measured, rho["layer1"]["mean"] >= 0.7, note, seeds=int(rho["layer1"]["n"]))


@claim("nfa-fig1-setting", "Appendix H", {"n": 384, "d": 32, "width": 128, "s1": 0.01}, needs=["trained/variance"])
def _setting(config: Any, record: Record) -> Reading:
    """configuration; the target is fitted"""
    losses = each(record, "variance", "train_loss")
    measured = {
        "n": config.items,
        "d": config.dimension,
        "width": config.width,
        "s1": config.scale,
        "rate of ½·MSE": config.lr,
        "steps": config.steps,
        "training loss": [min(losses), max(losses)],
    }
    note = "rate, steps and loss are those of the other figures; s a variance, all later layers at 1"
    return Reading(measured, max(losses) <= 0.01, note)


@on_networks("nfa-fig1-rho", "Figure 1", 0.93)
def _rho(config: Any, record: Record) -> Reading:
    """mean over seeds in 0.90 … 0.95 with s a variance"""
    values = each(record, "variance", *RHO)
    rho, shown = interval(values, CORRELATION), [round(value, 4) for value in values]
    below = sum(value < 0.93 for value in shown)
    note = f"0.93 is above {below} of {len(shown)} networks; mean with its 95 % interval"
    measured = with_deviation(record, {"ρ": short(rho), "each": shown}, *RHO)
    return Reading(measured, 0.90 <= rho["mean"] <= 0.95, note, seeds=int(rho["n"]))


@on_networks("nfa-fig1-random-Q", "Figure 1", 0.53)
def _control(config: Any, record: Record) -> Reading:
    """mean of the control in 0.45 … 0.60 and at least 0.3 below ρ"""
    rho, control = each(record, "variance", *RHO), each(record, "variance", *CONTROL, "mean")
    mean, drop = interval(control, CORRELATION), interval(a - b for a, b in zip(rho, control))
    least, most = (each(record, "variance", *CONTROL, name) for name in ("least", "most"))
    measured = {
        "control": short(mean),
        "below ρ by": short(drop),
        "single draws": [round(min(least), 4), round(max(most), 4)],
    }
    holds = 0.45 <= mean["mean"] <= 0.60 and drop["mean"] >= 0.3
    note = f"{config.draws} draws of Q per network; ρ itself {interval(rho, CORRELATION)['mean']:.3f}"
    return Reading(with_deviation(record, measured, *CONTROL, "mean"), holds, note, seeds=int(mean["n"]))


@on_networks("nfa-fig1-ptk-spread", "Section 2.2", 5.9)
def _spread(config: Any, record: Record) -> Reading:
    """mean over seeds of std / mean of K's eigenvalues in 5 … 6.5"""
    path = ("layers", "layer1", "spread")
    spread = interval(each(record, "variance", *path))
    most = each(record, "variance", "layers", "layer1", "largest possible spread")[0]
    measured = with_deviation(record, {"std / mean": short(spread), "largest possible": most}, *path)
    return Reading(measured, 5 <= spread["mean"] <= 6.5, "population standard deviation", seeds=int(spread["n"]))


@on_networks("nfa-egop-agop", "Figure 1", "similar")
def _likeness(config: Any, record: Record) -> Reading:
    """ρ(AGOP, EGOP) ≥ 0.7 and ρ(NFM, EGOP) ≥ 0.7, means over seeds"""
    likeness = {name: interval(each(record, "variance", "egop", name)) for name in ("agop", "nfm")}
    measured = {f"ρ({name.upper()}, EGOP)": short(one) for name, one in likeness.items()}
    return Reading(measured, min(one["mean"] for one in likeness.values()) >= 0.7, seeds=int(likeness["agop"]["n"]))


@claim("nfa-general-setting", "Appendix H", {"biases": 0, "label std": 1}, needs=["definitions/start"])
def _general(config: Any, record: Record) -> Reading:
    """no biases; training labels of standard deviation 1"""
    found = record.metrics["definitions/start"]
    off = max(abs(value - 1) for value in found["label spreads"])
    measured = {"biases": found["biases"], "label std off 1": off}
    note = "population standard deviation; counted on the chain monomial's networks alone"
    return Reading(measured, found["biases"] == 0 and off <= 1e-5, note)


@claim("nfa-init-scale", "Section 2.1", "N(0, s/k)", needs=["definitions/start"])
def _scale(config: Any, record: Record) -> Reading:
    """sample variances within 4 standard errors of s; both readings beside"""
    found = record.metrics["definitions/start"]
    measured: dict[str, Any] = {"variance · fan-in": found["variances"]}
    note = "s is read as a variance, as N(0, s/k) says"
    if all(f"trained/{reading}" in record.metrics for reading in READ):
        measured["ρ after training"] = {
            f"s a {reading}": short(interval(each(record, reading, *RHO), CORRELATION)) for reading in READ
        }
    return Reading(measured, max(abs(off) for off in found["standard errors off"].values()) <= 4, note)
