"""What Wang et al. (2023) state on linear-width networks: definitions, Table 8, Figure 19, judged from a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.framework import Reading, claim
from ntkscope_papers.framework.results import summary, under
from ntkscope_papers.wang_2023.teacher import average, members

TABLE_8 = {
    "case1": {"r2": 0.63582, "test_error": 0.36381},
    "case2": {"r2": 0.60605, "test_error": 0.36879},
    "case3": {"r2": 0.76081, "test_error": 0.23791},
    "case4": {"r2": 0.78829, "test_error": 0.21071},
    "lazy": {"r2": 0.68092, "test_error": 0.3185},
}
CLASSES = {"case1": "invariant bulk", "case2": "invariant bulk", "case3": "bulk + spikes", "case4": "heavy tail"}
KINDS = ("weights", "ck", "ntk")
CONSTANTS = {
    "E_tanh2": 0.394294,
    "scale": 1.592537,
    "a_sigma": 1.177807,
    "eta0_sq": 0.930470,
    "eta1_sq": 0.0,
    "eta2_sq": 0.167643,
    "sup_abs_sigma_prime": 1.592537,
    "softplus_mean": 0.806059,
    "softplus_var": 0.271515,
    "softplus_linear_share": 0.920761,
    "softplus_quadratic_share": 0.078619,
}
IMPLIED = {"case1": 0.99898, "case2": 0.93613, "case3": 0.99465, "case4": 0.99528, "lazy": 0.99818}


def key_of(case: str) -> str:
    """The leg of a row of Table 8.

    >>> key_of("lazy"), key_of("case1")
    ('lazy', 'table8/case1')
    """
    return case if case == "lazy" else f"table8/{case}"


TRAINED = tuple(key_of(case) for case in CLASSES)
ROWS = tuple(key_of(case) for case in TABLE_8)
ROWS_WITHOUT_TAU = tuple(f"tau-zero/{case}" for case in TABLE_8)


def row(record: Record, key: str) -> dict[str, float]:
    """R² and test error of a leg, means over seeds with the standard error of R²."""
    found = members(record, key)
    r2 = summary(one["r2"] for one in found) if found else {"mean": float("nan"), "sem": 0.0, "n": 0}
    return {
        "r2": r2["mean"],
        "r2_sem": r2["sem"],
        "test_error": average(one["test_error"] for one in found),
        "networks": r2["n"],
        "diverged": len(record.metrics[key]["members"]) - len(found),
    }


def labels(record: Record, case: str, kind: str = "weights") -> dict[str, int]:
    """How often each class was given."""
    return dict(Counter(one["classes"][kind]["label"] for one in members(record, key_of(case))))


def mostly(found: Mapping[str, int], label: str) -> bool:
    """Whether `label` was given to at least four of five."""
    return bool(found) and found.get(label, 0) >= 0.8 * sum(found.values())


def ordered(r2: Mapping[str, float]) -> bool:
    """min(case 4, case 3) above lazy above max(case 1, case 2)."""
    return min(r2["case3"], r2["case4"]) > r2["lazy"] > max(r2["case1"], r2["case2"])


@claim("spectra-ntk-parameterisation", "Eq. 73, 79", "f = h^(-1/2) Σ vᵢ σ(wᵢ·x/√d), no biases", needs=["initial"])
def parameterisation(config: Any, record: Record) -> Reading:
    """pre-activations have variance 1, outputs E v², within 10 %"""
    found = record.metrics["initial"]
    measured = {name: found[name] for name in ("before", "outputs", "readout")}
    holds = abs(found["before"] - 1) <= 0.1 and abs(found["outputs"] / found["readout"] - 1) <= 0.1
    return Reading(measured, holds)


def formula(gaps: tuple[str, ...], bound: float, config: Any, record: Record) -> Reading:
    """Whether every gap between a formula and what it states is at most `bound`."""
    found = record.metrics["definitions/formulas"]
    measured = {name: found[name] for name in gaps}
    holds = max(measured.values()) <= bound
    note = ""
    if "ck" in gaps:
        measured["without 1/√d"] = found["ck_printed_in_section_4_1"]
        holds = holds and measured["without 1/√d"] > 0.01
        note = "Section 4.1 prints the CK without 1/√d inside σ; that is another kernel"
    if "gradient" in gaps:
        note = "SGD in Table 8 (cases 2 and 3) is on the mean of r² here, whose gradient is twice this"
    return Reading(measured, holds, note, exact=True)


FORMULAS = [
    claim(f"spectra-{name}", source, published, check, needs=["definitions/formulas"])(partial(formula, gaps, bound))
    for name, source, published, check, gaps, bound in (
        ("loss", "Eq. 74, 75", "L = 1/(2n) Σ (y - f)²", "the gradient is autograd's to 1e-10", ("gradient",), 1e-10),
        (
            "ck-definition",
            "Eq. 76",
            "CK = Gram of h^(-1/2) σ(WX/√d)",
            "is the readout's block of the NTK to 1e-12; Section 4.1's form without 1/√d is not",
            ("ck", "ck_engine"),
            1e-12,
        ),
        (
            "ntk-formula",
            "Eq. 77",
            "(XᵀX/d) ⊙ (1/h) σ'ᵀ diag(v)² σ' + CK",
            "is the Gram of the Jacobian to 1e-10",
            ("ntk", "ntk_engine"),
            1e-10,
        ),
        (
            "lazy-predictor",
            "Eq. 78",
            "f₀ + (y - f₀(X)) K⁻¹ K(X, x)",
            "is the pseudo-inverse's solution in the parameters to 1e-8",
            ("lazy",),
            1e-8,
        ),
    )
]


@claim("spectra-activation-constants", "Assumption 3.2, Table 8", CONSTANTS, needs=["definitions/constants"])
def constants(config: Any, record: Record) -> Reading:
    """quadrature to 1e-6"""
    found = {name: record.metrics["definitions/constants"][name] for name in CONSTANTS}
    return Reading(found, all(abs(found[name] - value) <= 1e-6 for name, value in CONSTANTS.items()), exact=True)


@claim("spectra-teacher", "Eq. 80, 81", {"tau": 0.2, "noise_std": 0.3}, needs=["baselines"])
def teacher(config: Any, record: Record) -> Reading:
    """as printed: mean of y 0.2, variance 1.09 with noise and 1.00 without, each within 0.05"""
    found = [one["printed"] for one in record.metrics["baselines"]["members"]]
    measured = {name: average(one[name] for one in found) for name in found[0]}
    wanted = {"mean": 0.2, "variance": 1.09, "clean_variance": 1.0}
    note = "all other measurements take τ(|x|²/d - 1), without its constant: only that reading matches the table"
    return Reading(measured, all(abs(measured[name] - value) <= 0.05 for name, value in wanted.items()), note)


@claim(
    "spectra-odd-network-ceiling",
    "Eq. 79, 81 (derived)",
    {"r2_ceiling_centred": 0.921, "mse_floor_centred": 0.0786},
    needs=("even", *ROWS),
)
def odd_ceiling(config: Any, record: Record) -> Reading:
    """f(-x) = -f(x) to 1e-6 in every trained network; an even target is learned with R² ≤ 0.02; no row above the ceiling"""
    odd = max(one["not_odd"] for key in ("even", *TRAINED) for one in members(record, key))
    even = max(one["r2"] for one in members(record, "even"))
    best = max(row(record, key)["r2"] for key in ROWS)
    share = CONSTANTS["softplus_linear_share"]
    measured = {"|f(x)+f(-x)|/max|f|": odd, "R² of an even target": even, "ceiling": share, "best R²": best}
    note = (
        f"an odd network cannot learn the {1 - share:.1%} of the teacher's variance that are even in x; not in the text"
    )
    return Reading(measured, odd <= 1e-6 and even <= 0.02 and best <= share, note)


@claim(
    "spectra-linear-ridge-baseline",
    "Table 8 (derived)",
    {"ridge_0.1": {"r2": [0.796, 0.788, 0.806]}},
    needs=("baselines", *TRAINED),
)
def ridge(config: Any, record: Record) -> Reading:
    """ridge R² at least the best network's minus 0.02, here and in Table 8"""
    found = record.metrics["baselines"]["members"]
    linear = {name: average(one[name]["r2"] for one in found) for name in ("least squares", "ridge")}
    errors = average(one["ridge"]["test_error"] for one in found)
    best = {case: row(record, key_of(case))["r2"] for case in CLASSES}
    return Reading(
        {**linear, "ridge error": errors, "networks": best},
        linear["ridge"] >= max(*best.values(), *(one["r2"] for one in TABLE_8.values())) - 0.02,
        "what an odd network can learn of this teacher is exactly linear in x; a baseline that the text does not have",
    )


@claim("spectra-kta", "Eq. 87", {"yyᵀ": 1.0, "identity": "1/√n", "range": [0, 1]}, needs=["definitions/kta"])
def kta(config: Any, record: Record) -> Reading:
    """those values to 1e-12"""
    found = {name: value for name, value in record.metrics["definitions/kta"].items() if name != "seconds"}
    holds = max(found["labels"], found["identity"]) <= 1e-12 and found["least"] >= 0 and found["largest"] <= 1
    return Reading(found, holds, exact=True)


@claim("spectra-table8-setting", "Table 8", {"n": 2000, "h": 1500, "d": 1000, "tau": 0.2, "noise": 0.3}, needs=TRAINED)
def setting(config: Any, record: Record) -> Reading:
    """configuration; training loss below 1e-5 in every case"""
    networks = {case: members(record, key_of(case)) for case in CLASSES}
    reached = {
        case: bool(found) and all(one["train_mse"] <= 1.05 * config.case(case).stop for one in found)
        for case, found in networks.items()
    }
    steps = {case: [one["steps"] for one in found] for case, found in networks.items()}
    sizes = {"n": config.items, "h": config.width, "d": config.dimension, "tau": config.tau, "noise": config.noise}
    note = "GD and Adam: Eq. 74's loss below the threshold; SGD: the mean of r² itself"
    return Reading({**sizes, "steps": steps, "below the threshold": reached}, all(reached.values()), note)


def row_of_table(case: str, within: float, config: Any, record: Record) -> Reading:
    """R² and error beside the published ones; for cases 3 and 4 also what stands out of the spectrum of W."""
    found = members(record, key_of(case))
    measured: dict[str, Any] = row(record, key_of(case))
    close = {name: abs(measured[name] - value) <= within for name, value in TABLE_8[case].items()}
    holds, note = all(close.values()) and bool(found), ""
    if case == "case2":
        still = invariant(case, config, record)
        measured["spectra"], holds = still.measured, holds and bool(still.holds)
        note = (
            "the published numbers contradict each other: at the variance of the other rows an R² of 0.606 means an error of"
            " 0.393, and an error of 0.369 an R² of 0.630;"
            f" R² {'holds' if close['r2'] else 'fails'}, error {'holds' if close['test_error'] else 'fails'},"
            f" invariance {'holds' if still.holds else 'fails'} (spectra-sgd-invariance)"
        )
    elif case == "case3" and found:
        edge = record.metrics["initial"]["edge"] if "initial" in record.metrics else 4.949490
        measured |= {
            f"λ{'₁₂'[k]} / edge": [one["spectra"]["weights"]["top"][k] / edge for one in found] for k in (0, 1)
        }
        measured["|β·u₁|"] = [one["alignment"]["weights"] for one in found]
        alone = min(measured["λ₁ / edge"]) > 1.2 and max(measured["λ₂ / edge"]) <= 1.05
        holds = holds and alone and min(measured["|β·u₁|"]) > 0.7
        note = (
            "batches of 32 and squared error without ½, with ½ no spike appears; the teacher without its constant, as in all"
            " rows (see spectra-teacher)"
        )
    elif case == "case4" and found:
        measured["above the edge"] = [one["spectra"]["weights"]["above"] for one in found]
        measured["|β·u₁|"] = [one["alignment"]["weights"] for one in found]
        measured["cos² of β and ten first vectors"] = [one["outliers"] for one in found]
        holds = holds and min(measured["above the edge"]) >= 5
        note = "batches of 256; the first vector need not be β; the subspace of the outliers has it"
    return Reading(measured, holds, note, seeds=int(measured["networks"]))


TABLE_8_ROWS = [
    claim(f"spectra-table8-{case}", "Table 8", TABLE_8[case], check, needs=[key_of(case)], seeds=seeds)(
        partial(row_of_table, case, within)
    )
    for case, within, seeds, check in (
        ("case1", 0.05, 3, "R² and error within 0.05"),
        ("case2", 0.05, 1, "each number by itself within 0.05; both must hold; spectra invariant"),
        ("case3", 0.03, 1, "R² and error within 0.03; λ₁ above 1.2 edges, λ₂ at most 1.05, |β·u₁| above 0.7"),
        ("case4", 0.03, 1, "R² and error within 0.03; five eigenvalues or more above the edge"),
        ("lazy", 0.05, 5, "R² and error within 0.05"),
    )
]


@claim("spectra-table8-noise-free-test", "Table 8", IMPLIED, needs=ROWS)
def noise_free(config: Any, record: Record) -> Reading:
    """test error is (1 - R²) times the labels' variance, to rounding; that variance is 1 within 0.05"""
    each = [one for key in ROWS for one in members(record, key)]
    gap = max(abs(one["test_error"] - (1 - one["r2"]) * one["variance"]) for one in each)
    spread = [one["variance"] for one in each]
    published = {case: TABLE_8[case]["test_error"] / (1 - TABLE_8[case]["r2"]) for case in IMPLIED}
    off = max(abs(published[case] - value) for case, value in IMPLIED.items())
    measured = {"gap": gap, "variance": [min(spread), max(spread)], "implied by the table": published}
    note = (
        f"over draws of the teacher and the test inputs the labels' variance is {min(spread):.3f} to {max(spread):.3f}"
    )
    return Reading(measured, gap <= 1e-9 and off <= 2e-5 and all(abs(v - 1) <= 0.05 for v in spread), note)


def order(keys: tuple[str, ...], other: str, config: Any, record: Record) -> Reading:
    """R² by case: whether their means are ordered as published, and in how many seeds they are."""
    values = {case: row(record, key)["r2"] for case, key in zip(TABLE_8, keys)}
    each = list(zip(*(record.metrics[key]["members"] for key in keys)))
    complete = [seed for seed in each if not any(one.get("diverged") for one in seed)]
    holding = sum(ordered({case: one["r2"] for case, one in zip(TABLE_8, seed)}) for seed in complete)
    return Reading(
        values, ordered(values), f"in {holding} of {len(each)} seeds one by one", seeds=len(each), other=other
    )


ORDERS = [
    claim(
        "spectra-table8-order",
        "Table 8",
        ["case4", "case3", "lazy", "case1", "case2"],
        "mean R²: cases 4 and 3 above lazy above cases 1 and 2",
        needs=ROWS,
        seeds=3,
    )(partial(order, ROWS, "")),
    claim(
        "spectra-tau-zero",
        "footnote 3",
        "everything holds with τ = 0",
        "the same order at τ = 0",
        needs=ROWS_WITHOUT_TAU,
        seeds=3,
    )(partial(order, ROWS_WITHOUT_TAU, "of all results the order of R² alone: spectra at τ = 0 were not kept")),
]


def invariant(case: str, config: Any, record: Record) -> Reading:
    """Whether the spectra of a case are those of the start."""
    found = members(record, key_of(case))
    measured: dict[str, Any] = {
        f"{what} {kind}": average(one["spectra"][kind][what] for one in found)
        for kind in KINDS
        for what in ("ks", "top_ratio")
    }
    quiet = all(measured[f"ks {kind}"] < bound for kind, bound in (("weights", 0.01), ("ck", 0.03), ("ntk", 0.03)))
    still = all(abs(measured[f"top_ratio {kind}"] - 1) <= 0.02 for kind in KINDS)
    given = labels(record, case)
    measured["classes of W"] = given
    measured["classes of CK, NTK"] = [labels(record, case, kind) for kind in ("ck", "ntk")]
    return Reading(measured, bool(found) and quiet and still and mostly(given, CLASSES[case]))


INVARIANT_GD = claim(
    "spectra-invariant-bulk-gd",
    "Figure 19a",
    "straight Q-Q plots in case 1",
    "KS below 0.01 (W), 0.03 (CK, NTK); λ₁ within 2 %; W's class is invariant bulk in most seeds",
    needs=["table8/case1"],
)(partial(invariant, "case1"))


@claim(
    "spectra-bulk-stays-random",
    "Section 3",
    "all but the first direction stays random in case 3",
    needs=["table8/case3"],
)
def random_bulk(config: Any, record: Record) -> Reading:
    """KS of WᵀW/d without its first value to Marchenko–Pastur below 0.02"""
    found = [one["bulk_ks"] for one in members(record, "table8/case3")]
    return Reading(found, bool(found) and max(found) < 0.02)


@claim("spectra-spike-case3", "Figure 19b", "one outlier, clearest in the NTK", needs=["table8/case3"])
def spike(config: Any, record: Record) -> Reading:
    """one eigenvalue more than 10 % above the edge in W and CK; λ₁/λ₂ largest in the NTK; W's class is bulk + spikes in
    most seeds"""
    found = members(record, "table8/case3")
    counts = {kind: [one["spectra"][kind]["above_tenth"] for one in found] for kind in ("weights", "ck")}
    gaps = {kind: average(one["spectra"][kind]["gap"] for one in found) for kind in KINDS}
    starts = {kind: [one["start"][kind]["top"] for one in found] for kind in KINDS}
    before = {kind: average(first / second for first, second, *_ in tops) for kind, tops in starts.items()}
    given = labels(record, "case3")
    measured = {"more than 10 % above": counts, "λ₁/λ₂": gaps, "at the start": before, "classes of W": given}
    one_each = all(count == 1 for each in counts.values() for count in each)
    clearest = gaps["ntk"] == max(gaps.values())
    return Reading(measured, bool(found) and one_each and clearest and mostly(given, CLASSES["case3"]))


@claim(
    "spectra-heavy-tail-case4",
    "Figure 19c",
    "many eigenvalues outside the bulk with Adam, AdaGrad too",
    needs=["table8/case4", "adagrad"],
)
def heavy_tail(config: Any, record: Record) -> Reading:
    """five or more above the edge and a smaller Hill exponent than at the start, both rules; W's class is heavy tail in
    most seeds"""
    measured: dict[str, Any] = {}
    held = {}
    steps = {f"AdaGrad, step {lr}": f"adagrad/{lr}" for lr in under(record, "adagrad/")}
    for name, key in {"Adam": "table8/case4", "AdaGrad": "adagrad", **steps}.items():
        found = members(record, key)
        above = {kind: [one["spectra"][kind]["above"] for one in found] for kind in KINDS}
        index = {kind: [[one["start"][kind]["hill"], one["spectra"][kind]["hill"]] for one in found] for kind in KINDS}
        measured[name] = {"above the edge": above, "Hill before, after": index}
        many = bool(found) and min(min(counts) for counts in above.values()) >= 5
        held[name] = many and all(after < before for pairs in index.values() for before, after in pairs)
    given = labels(record, "case4")
    measured["classes of W"] = given
    measured["classes of CK, NTK"] = [labels(record, "case4", kind) for kind in ("ck", "ntk")]
    holds = held.pop("Adam") and any(held.values()) and mostly(given, CLASSES["case4"])
    note = f"the step of AdaGrad is not stated; the check holds with {', '.join(filter(held.get, held)) or 'none'}"
    return Reading(measured, holds, note if steps else "")


@claim("spectra-mp-edge", "Figure 20b", {"edge": 4.949490}, needs=["initial"])
def edge(config: Any, record: Record) -> Reading:
    """λ₁ of W₀ᵀW₀/d within 2 % of (1 + √(h/d))²"""
    found = record.metrics["initial"]
    off = max(abs(top / found["edge"] - 1) for top in found["top"])
    holds = off <= 0.02 and abs(found["edge"] - found["edge_by_hand"]) <= 1e-9
    return Reading({"edge": found["edge"], "λ₁": found["top"]}, holds, "for WWᵀ/d, as under the figure; not WᵀW")


@claim("spectra-alignment-case3", "Figure 20a", "u₁ aligns with β", needs=["table8/case3"])
def aligned(config: Any, record: Record) -> Reading:
    """|β·u₁| above 0.7 after, below 0.1 before"""
    found = members(record, "table8/case3")
    after, before = ([one[name]["weights"] for one in found] for name in ("alignment", "alignment_before"))
    return Reading({"before": before, "after": after}, bool(found) and min(after) > 0.7 and max(before) < 0.1)


@claim(
    "spectra-large-step-helps", "Sections 3, 4.2", {"gain": 0.15476}, needs=["table8/case2", "table8/case3"], seeds=3
)
def gain(config: Any, record: Record) -> Reading:
    """R² of case 3 minus case 2 at least 0.05"""
    small, large = row(record, "table8/case2"), row(record, "table8/case3")
    found = large["r2"] - small["r2"]
    note = "both cases descend on the mean of r², twice the loss of Eq. 74"
    return Reading({"gain": found}, found >= 0.05, note, seeds=int(min(large["networks"], small["networks"])))


INVARIANT_SGD = claim(
    "spectra-sgd-invariance", "Section 4.1", "small-step SGD like GD", "case 2: as for case 1", needs=["table8/case2"]
)(partial(invariant, "case2"))
