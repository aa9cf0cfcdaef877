"""The definitions, identities and limits of the surrogate paper: the statements and their verdicts, errata in the notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.framework.claims import Reading, Statement, claim, lacking


def identity(
    id: str,
    source: str,
    published: Any,
    check: str,
    leg: str,
    names: Sequence[str] | Mapping[str, str],
    holds: Callable[[Mapping[str, Any]], Any],
    note: str = "",
) -> Statement:
    """A claim on the numbers of one leg that is the same at every scale; those `names` are reported.

    `names` may be a mapping to what the leg calls them; `note` is filled with the numbers.
    """
    reported = names if isinstance(names, Mapping) else dict(zip(names, names))

    def read(config: Any, record: Record) -> Reading:
        found = record.metrics[leg]
        measured = {name: found[key] for name, key in reported.items()}
        return Reading(measured, bool(holds(found)), note.format(found), exact=True)

    return claim(f"surrogate-{id}", source, published, check, needs=[leg])(read)


IDENTITIES = [
    identity(
        "kglm-definition",
        "Eq. 1",
        {"weights": "C x N", "bias": "C"},
        "logits are W k + b to 1e-6; gradient at the optimum <= 1e-6",
        "surrogate",
        ("shape", "affine", "gradient"),
        lambda found: found["affine"] < 1e-6 and found["gradient"] <= 1e-6,
    ),
    identity(
        "attribution-sums-to-logit",
        "Eq. 3",
        "attributions add up to the logit",
        "difference < 1e-8",
        "surrogate",
        {"largest difference": "attributions"},
        lambda found: found["attributions"] < 1e-8,
    ),
    identity(
        "kendall-definition",
        "Section 3",
        "concordant minus discordant over all pairs",
        "equals scipy without ties to 1e-12; by the printed rule a tied sequence and itself are below 1",
        "measures",
        {"against scipy": "against scipy", "a tied sequence with itself": "tied, itself"},
        lambda found: (
            found["against scipy"] < 1e-12
            and abs(found["tied, itself"]["b"] - 1) < 1e-12
            and found["tied, itself"]["discordant"] < 1
        ),
        "erratum: calling every pair that is not concordant discordant is not Kendall's coefficient where there are ties",
    ),
    identity(
        "kendall-range",
        "Section 3",
        {"min": -1, "max": 1},
        "exactly +-1 for monotone maps; unrelated scores within 4 sqrt(4 / 9N)",
        "measures",
        ("monotone", "largest of unrelated", "bound of unrelated"),
        lambda found: (
            list(found["monotone"]) == [1.0, -1.0] and found["largest of unrelated"] < found["bound of unrelated"]
        ),
    ),
    identity(
        "tau-one-implies-recovery",
        "Section 3",
        "tau = 1 implies an invertible map",
        "isotonic R2 = 1 to 1e-9; with three classes the other entries may differ",
        "measures",
        ("isotonic R2", "three classes, tau", "three classes, total variation"),
        lambda found: (
            found["isotonic R2"] > 1 - 1e-9
            and found["three classes, tau"] == 1
            and found["three classes, total variation"] > 0
        ),
        "erratum: beyond two classes tau = 1 does not give back the whole softmax vector of Eq. 2",
    ),
    identity(
        "accuracy-blind",
        "Section 3",
        "equal accuracy is compatible with any disagreement",
        "a pair of models with TAD 0 and tau <= 0",
        "measures",
        {"tad": "same accuracy, tad", "tau": "same accuracy, tau"},
        lambda found: found["same accuracy, tad"] == 0 and found["same accuracy, tau"] <= 0,
    ),
    identity(
        "tad-definition",
        "Section 3",
        "surrogate accuracy minus the network's, in points",
        "one more of four right: 25 points",
        "measures",
        {"points": "one more right, tad"},
        lambda found: found["one more right, tad"] == 25.0,
    ),
    identity(
        "trntk-unit-diagonal",
        "Eq. 4",
        {"diagonal": 1.0},
        "diagonal 1 to 1e-6, entries <= 1 + 1e-6",
        "kernels",
        ("diagonal off 1", "largest entry", "printed diagonal"),
        lambda found: found["diagonal off 1"] < 1e-6 and found["largest entry"] <= 1 + 1e-6,
        "erratum: with the root inside the sum over classes, as printed, the diagonal lies between"
        " {0[printed diagonal][0]:.3f} and {0[printed diagonal][1]:.3f} (1/C to 1); so in Eq. 6",
    ),
    identity(
        "trntk-psd",
        "Eq. 4",
        "a valid kernel",
        "least eigenvalue > -1e-8 of the trace",
        "kernels",
        ("least eigenvalue over trace",),
        lambda found: found["least eigenvalue over trace"] > -1e-8,
    ),
    identity(
        "summary-ck-close-to-ntk",
        "Report summary item 4",
        "CK is proved close in norm to the NTK",
        "relative Frobenius distance <= 0.1",
        "kernels",
        {"relative distance": "ck and ntk"},
        lambda found: found["ck and ntk"] <= 0.1,
        "at random weights; erratum: the papers bound relative losses of the two machines, not the distance of the kernels",
    ),
]


@claim(
    "surrogate-kglm-training-setting",
    "Section 4",
    "scikit-learn's SGDClassifier on the training set",
    needs=["surrogate"],
)
def _sgd(config: Any, record: Record) -> Reading:
    """reported: tau of its fits over 5 seeds beside that of the optimum"""
    found = record.metrics["surrogate"]
    note = (
        "the paper does not state loss, ridge or stopping; the authors' code has log loss, balanced classes, and a ridge of"
        " 1e-4 (1e-2 for BERT and poisoning); measured on 300 digits and a made-up network"
    )
    return Reading({"tau over seeds": found["sgd"], "at the optimum": found["optimum"]}, note=note, exact=True)


@claim("surrogate-pntk-width-bound", "Section 3", {"rate": -0.5}, needs=["width"], seeds=10)
def _width(config: Any, record: Record) -> Reading:
    """log-log slope in [-0.7, -0.3], 10 seeds"""
    measured = {name: record.metrics["width"][name] for name in ("slope", "widths", "error", "seeds")}
    return Reading(measured, -0.7 <= measured["slope"] <= -0.3, seeds=measured["seeds"])


@claim(
    "surrogate-svm-adversarial-limit", "Section 5, Appendix G", "SVM surrogates fail to follow the network under attack"
)
def _attack(config: Any, record: Record) -> Reading:
    """PGD: surrogate >= 10 points more accurate than the network, or tau lower by >= 0.2, on every network"""
    absent = tuple(f"attack/{name}" for name in config.networks if f"attack/{name}" not in record.metrics)
    measured = {
        name: _gaps(record.metrics[f"attack/{name}"]) for name in config.networks if f"attack/{name}" not in absent
    }
    if not measured:
        return lacking(*absent)
    svms = [one["svm"] for one in measured.values()]
    holds = all(one["points above under pgd"] >= 10 or one["tau lost under pgd"] >= 0.2 for one in svms)
    by_class = any(one["points above under pgd"] >= 10 for one in svms)
    note = (
        f"{'' if by_class else 'it loses the order of outputs alone, and follows the network to its wrong class; '}"
        "the GLM stands beside the SVM; the surrogate's kernel is that of the attacked images by the same network"
    )
    return Reading(measured, holds, note, lacks=absent)


def _gaps(found: Mapping[str, Any]) -> dict[str, Any]:
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


FORMULAS = [
    identity(
        "trntk-is-block-trace",
        "Section 3",
        "trace of the C x C block",
        "relative difference < 1e-10",
        "kernels",
        ["trace of blocks"],
        lambda found: found["trace of blocks"] < 1e-10,
    ),
    identity(
        "pntk-definition",
        "Section 3",
        {"prefactor": "1/C"},
        "relative difference < 1e-10 from gradients and from the mean of the block times C",
        "kernels",
        ["pntk", "pntk, mean of blocks times C"],
        lambda found: found["pntk"] < 1e-10 and found["pntk, mean of blocks times C"] < 1e-10,
        "erratum: the text points to Eq. 3, which is the attribution, for this scalar",
    ),
    identity(
        "projection-definitions",
        "Eq. 5, Eq. 6",
        {"K": 10240},
        "unit diagonal to 1e-6; the prefactor is irrelevant to 1e-6",
        "kernels",
        ["projected diagonal off 1", "projected, whatever the prefactor"],
        lambda found: all(value < 1e-6 for name, value in found.items() if name.startswith("projected")),
    ),
    identity(
        "other-kernels",
        "Section 3",
        "CK, trNTK without normalisation, embedding kernel",
        "each equals its explicit Gram matrix to 1e-8",
        "kernels",
        ["ck", "em", "trace of blocks"],
        lambda found: all(found[name] < 1e-8 for name in ("ck", "em", "trace of blocks")),
    ),
]
