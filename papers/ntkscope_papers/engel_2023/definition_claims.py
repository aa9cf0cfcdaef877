"""The definitions, identities and limits of the surrogate paper: the statements and their verdicts, errata in the notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.framework.claims import Read, Reading, claim, lacking


@claim(
    "surrogate-kglm-definition",
    "Eq. 1",
    {"weights": "C x N", "bias": "C"},
    "logits are W k + b to 1e-6; gradient at the optimum <= 1e-6",
    needs=["surrogate"],
)
def _kglm(config: Any, record: Record) -> Reading:
    found = record.metrics["surrogate"]
    measured = {name: found[name] for name in ("shape", "affine", "gradient")}
    return Reading(measured, found["affine"] < 1e-6 and found["gradient"] <= 1e-6, exact=True)


@claim(
    "surrogate-attribution-sums-to-logit",
    "Eq. 3",
    "attributions add up to the logit",
    "difference < 1e-8",
    needs=["surrogate"],
)
def _sums(config: Any, record: Record) -> Reading:
    gap = record.metrics["surrogate"]["attributions"]
    return Reading({"largest difference": gap}, gap < 1e-8, exact=True)


@claim(
    "surrogate-kglm-training-setting",
    "Section 4",
    "scikit-learn's SGDClassifier on the training set",
    "its tau over 5 seeds spreads by more than 0.001: a fit is not the optimum",
    needs=["surrogate"],
)
def _setting(config: Any, record: Record) -> Reading:
    found = record.metrics["surrogate"]
    fits = found["sgd"]
    note = (
        "the paper does not state loss, ridge or stopping; the authors' code has log loss, balanced classes, and a ridge of"
        " 1e-4 (1e-2 for BERT and poisoning)"
    )
    return Reading(
        {"tau over seeds": fits, "at the optimum": found["optimum"]},
        fits["largest"] - fits["least"] > 1e-3,
        note,
        exact=True,
    )


@claim(
    "surrogate-kendall-definition",
    "Section 3",
    "concordant minus discordant over all pairs",
    "equals scipy without ties to 1e-12; by the printed rule a tied sequence and itself are below 1",
    needs=["measures"],
)
def _kendall(config: Any, record: Record) -> Reading:
    found = record.metrics["measures"]
    tied = found["tied, itself"]
    holds = found["against scipy"] < 1e-12 and abs(tied["b"] - 1) < 1e-12 and tied["discordant"] < 1
    note = "erratum: calling every pair that is not concordant discordant is not Kendall's coefficient where there are ties"
    return Reading(
        {"against scipy": found["against scipy"], "a tied sequence with itself": tied}, holds, note, exact=True
    )


@claim(
    "surrogate-kendall-range",
    "Section 3",
    {"min": -1, "max": 1},
    "exactly +-1 for monotone maps; unrelated scores within 4 sqrt(4 / 9N)",
    needs=["measures"],
)
def _range(config: Any, record: Record) -> Reading:
    found = record.metrics["measures"]
    measured = {name: found[name] for name in ("monotone", "largest of unrelated", "bound of unrelated")}
    holds = list(found["monotone"]) == [1.0, -1.0] and found["largest of unrelated"] < found["bound of unrelated"]
    return Reading(measured, holds, exact=True)


@claim(
    "surrogate-tau-one-implies-recovery",
    "Section 3",
    "tau = 1 implies an invertible map",
    "isotonic R2 = 1 to 1e-9; with three classes the other entries may differ",
    needs=["measures"],
)
def _recovery(config: Any, record: Record) -> Reading:
    found = record.metrics["measures"]
    measured = {name: found[name] for name in ("isotonic R2", "three classes, tau", "three classes, total variation")}
    holds = (
        found["isotonic R2"] > 1 - 1e-9
        and found["three classes, tau"] == 1
        and found["three classes, total variation"] > 0
    )
    return Reading(
        measured,
        holds,
        "erratum: beyond two classes tau = 1 does not give back the whole softmax vector of Eq. 2",
        exact=True,
    )


@claim(
    "surrogate-accuracy-blind",
    "Section 3",
    "equal accuracy is compatible with any disagreement",
    "a pair of models with TAD 0 and tau <= 0",
    needs=["measures"],
)
def _blind(config: Any, record: Record) -> Reading:
    found = record.metrics["measures"]
    measured = {name: found[f"same accuracy, {name}"] for name in ("tad", "tau")}
    return Reading(measured, measured["tad"] == 0 and measured["tau"] <= 0, exact=True)


@claim(
    "surrogate-tad-definition",
    "Section 3",
    "surrogate accuracy minus the network's, in points",
    "one more of four right: 25 points",
    needs=["measures"],
)
def _tad(config: Any, record: Record) -> Reading:
    value = record.metrics["measures"]["one more right, tad"]
    return Reading({"points": value}, value == 25.0, exact=True)


@claim(
    "surrogate-trntk-unit-diagonal",
    "Eq. 4",
    {"diagonal": 1.0},
    "diagonal 1 to 1e-6, entries <= 1 + 1e-6",
    needs=["kernels"],
)
def _diagonal(config: Any, record: Record) -> Reading:
    found = record.metrics["kernels"]
    measured = {name: found[name] for name in ("diagonal off 1", "largest entry", "printed diagonal")}
    holds = found["diagonal off 1"] < 1e-6 and found["largest entry"] <= 1 + 1e-6
    low, high = found["printed diagonal"]
    note = (
        "erratum: with the root inside the sum over classes, as printed, the diagonal lies between"
        f" {low:.3f} and {high:.3f} (1/C to 1); so in Eq. 6"
    )
    return Reading(measured, holds, note, exact=True)


@claim("surrogate-trntk-psd", "Eq. 4", "a valid kernel", "least eigenvalue > -1e-8 of the trace", needs=["kernels"])
def _psd(config: Any, record: Record) -> Reading:
    value = record.metrics["kernels"]["least eigenvalue over trace"]
    return Reading({"least eigenvalue over trace": value}, value > -1e-8, exact=True)


@claim(
    "surrogate-summary-ck-close-to-ntk",
    "Report summary item 4",
    "CK is proved close in norm to the NTK",
    "relative Frobenius distance <= 0.1",
    needs=["kernels"],
)
def _close(config: Any, record: Record) -> Reading:
    value = record.metrics["kernels"]["ck and ntk"]
    note = "at random weights; erratum: the papers bound relative losses of the two machines, not the distance of the kernels"
    return Reading({"relative distance": value}, value <= 0.1, note, exact=True)


@claim(
    "surrogate-pntk-width-bound",
    "Section 3",
    {"rate": -0.5},
    "log-log slope in [-0.7, -0.3], 10 seeds",
    needs=["width"],
)
def _width(config: Any, record: Record) -> Reading:
    found = record.metrics["width"]
    measured = {name: found[name] for name in ("slope", "widths", "error", "seeds")}
    return Reading(measured, -0.7 <= found["slope"] <= -0.3)


@claim(
    "surrogate-svm-adversarial-limit",
    "Section 5, Appendix G",
    "SVM surrogates fail to follow the network under attack",
    "PGD: surrogate >= 10 points more accurate than the network, or tau lower by >= 0.2, on every network",
)
def _attack(config: Any, record: Record) -> Reading:
    keys = [f"attack/{name}" for name in config.networks]
    absent = [key for key in keys if key not in record.metrics]
    if len(absent) == len(keys):
        return lacking(*absent)
    measured = {key.removeprefix("attack/"): _under_attack(record.metrics[key]) for key in keys if key not in absent}
    above, lost = (
        {k: one["svm"][f"{name} under pgd"] for k, one in measured.items()} for name in ("points above", "tau lost")
    )
    holds = all(above[k] >= 10 or lost[k] >= 0.2 for k in measured)
    note = "the GLM stands beside the SVM; the surrogate's kernel is that of the attacked images by the same network"
    return Reading(measured, holds, note, lacks=tuple(absent))


def _under_attack(found: Mapping[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name in ("svm", "glm"):
        both = {attack: [one["network_accuracy"], one["surrogate_accuracy"]] for attack, one in found[name].items()}
        percent = {attack: [round(100 * value, 1) for value in pair] for attack, pair in both.items()}
        rows[name] = {"accuracy %, network and surrogate": percent}
        for attack in ("fgsm", "pgd"):
            network, surrogate = both[attack]
            rows[name][f"points above under {attack}"] = round(100 * (surrogate - network), 2)
            rows[name][f"tau lost under {attack}"] = round(found[name]["clean"]["tau"] - found[name][attack]["tau"], 4)
    return rows


def gaps(*names: str, within: float, note: str = "") -> Read:
    """A reading of relative differences that must be within a tolerance."""

    def read(config: Any, record: Record) -> Reading:
        measured = {name: record.metrics["kernels"][name] for name in names}
        return Reading(measured, all(value < within for value in measured.values()), note, exact=True)

    return read


FORMULAS = [
    claim(
        "surrogate-trntk-is-block-trace",
        "Section 3",
        "trace of the C x C block",
        "relative difference < 1e-10",
        needs=["kernels"],
    )(gaps("trace of blocks", within=1e-10)),
    claim(
        "surrogate-pntk-definition",
        "Section 3",
        {"prefactor": "1/C"},
        "relative difference < 1e-10 from gradients and from the mean of the block times C",
        needs=["kernels"],
    )(
        gaps(
            "pntk",
            "pntk, mean of blocks times C",
            within=1e-10,
            note="erratum: the text points to Eq. 3, which is the attribution, for this scalar",
        )
    ),
    claim(
        "surrogate-projection-definitions",
        "Eq. 5, Eq. 6",
        {"K": 10240},
        "unit diagonal to 1e-6; the prefactor is irrelevant to 1e-6",
        needs=["kernels"],
    )(gaps("projected diagonal off 1", "projected, whatever the prefactor", within=1e-6)),
    claim(
        "surrogate-other-kernels",
        "Section 3",
        "CK, trNTK without normalisation, embedding kernel",
        "each equals its explicit Gram matrix to 1e-8",
        needs=["kernels"],
    )(gaps("ck", "em", "trace of blocks", within=1e-8)),
]
