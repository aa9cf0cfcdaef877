"""Balakrishnan (2023), section 4: what is published of orthant shells, and the checks for a verdict."""

from __future__ import annotations

from ntkscope_papers.balakrishnan_2023.orthants.arithmetic import ENTRIES, TABLE_1, TABLE_2
from ntkscope_papers.framework.claims import Published

RUNS = 5  # seeds that a check of means asks for
NN = {
    1: "empty in 0.55 … 0.95, remaining >= 0.85",
    2: "empty in 0.5 … 0.95, remaining >= 0.8",
    3: "empty >= 0.65, remaining >= 0.9",
    4: "empty in 0.45 … 0.7, remaining >= 0.8",
    5: "empty in 0.45 … 0.7, remaining >= 0.9",
}
NTK = {
    1: "empty in 0.5 … 0.9, remaining in 0.75 … 0.97",
    2: "empty in 0.45 … 0.9, remaining in 0.7 … 1",
    3: "not above the networks of the same seeds in either column, remaining in 0.6 … 0.95",
    4: "empty in 0.4 … 0.7, remaining >= 0.7",
    5: "empty in 0.45 … 0.7, remaining >= 0.7",
}
MATCHES = {
    1: "class 0 <= 0.1 and class 1 >= 0.9, before and after",
    2: "class 0 final <= 0.5, class 1 final >= 0.8",
    3: "class 0 initial <= 0.15 and final >= 0.4, class 1 final >= 0.7",
    4: "class 0 final <= 0.3, class 1 final >= 0.8",
    5: "class 0 <= 0.2 and class 1 >= 0.8, before and after",
}


def _row(model: str) -> dict[str, float]:
    empty, _, remaining, _ = TABLE_1[model]
    return {"empty": empty, "remaining": remaining}


def _numbers() -> list[Published]:
    found = []
    for depth in NN:
        for kind, checks in (("NN", NN), ("NTK", NTK)):
            name = f"{depth}-{kind}"
            identity = f"relu-t1-{depth}{kind.lower()}"
            found.append(Published(identity, "Table 1", _row(name), f"means over seeds: {checks[depth]}", seeds=RUNS))
    for depth, check in MATCHES.items():
        printed = {name: centre for name, (centre, _) in zip(ENTRIES, TABLE_2[depth])}
        found.append(Published(f"relu-t2-d{depth}", "Table 2", printed, f"means over seeds: {check}", seeds=RUNS))
    return found


PUBLISHED = {
    claim.id: claim
    for claim in (
        Published(
            "relu-orthant-data",
            "Section 4.1",
            {"dimension": 7, "orthants": 128, "train": 25400, "test": 25600},
            "those counts, every item within 1e-5 of its shell, no training item in the empty orthant",
        ),
        Published(
            "relu-ntk-definition",
            "Section 2",
            "the tangent kernel is the inner product of output gradients",
            "product and pairs within 1e-5 (relative), symmetric, smallest eigenvalue >= -1e-6 of the largest, logit and"
            " probability",
        ),
        Published(
            "relu-t1-linear-svm",
            "Table 1",
            _row("Linear SVM"),
            "means over seeds within 0.03 of 0.5 in both columns",
            seeds=3,
        ),
        Published(
            "relu-t1-rbf-svm",
            "Table 1",
            _row("RBF SVM"),
            "means over seeds: remaining >= 0.99, empty within 0.05 of 0.5",
            seeds=3,
        ),
        *_numbers(),
        Published(
            "relu-t1-ci-implied-n",
            "Table 1",
            {"n": 50_000},
            "n recomputed from each of the 17 non-zero half-widths within 0.3 % of 50,000",
        ),
        Published(
            "relu-t1-nn-at-least-ntk",
            "Table 1, Section 4.2.1",
            {"pairs holding": "10 of 10"},
            "mean over seeds of NN - NTK of the same seed >= -0.02 in both columns, at all depths but at most one",
            seeds=RUNS,
        ),
        Published(
            "relu-t1-rbf-memorises",
            "Section 4.2.1",
            "the RBF machine is perfect where there is training data and at chance in the empty orthant",
            "means over seeds: remaining >= 0.99 and |empty - 0.5| <= 0.05",
            seeds=3,
        ),
        Published(
            "relu-t1-linear-chance",
            "Section 4.2.1",
            "a linear machine stays at chance everywhere",
            "means over seeds in 0.47 … 0.53 in both columns",
            seeds=3,
        ),
        Published(
            "relu-t1-3nn-best-empty",
            "Table 1",
            {"best depth": 3},
            "depth 3 has the highest mean accuracy in the empty orthant, or is within one standard error of the best",
            seeds=RUNS,
        ),
        Published(
            "relu-deep-nets-chance",
            "Section 4.2.1",
            {depth: TABLE_1[f"{depth}-NN"][0] for depth in NN},
            "mean accuracy in the empty orthant: depths 4, 5 <= 0.65, depths 1, 3 >= 0.6; depth 2 is reported",
            seeds=RUNS,
        ),
        Published(
            "relu-remaining-by-depth",
            "Table 1",
            {depth: TABLE_1[f"{depth}-NN"][2] for depth in NN},
            "mean accuracy in the other orthants: depth 5 >= 0.95, all >= 0.8; the order of depths is reported",
            seeds=RUNS,
        ),
        Published(
            "relu-t2-ci-wilson",
            "Table 2",
            {"n": 500, "counts": [66, 471, 16, 399, 495, 440, 15, 488, 495]},
            "Wilson's centre and half-width of those counts of 500 are the nine entries, in the digits printed",
        ),
        Published(
            "relu-raw-distance-class1",
            "Section 4.2.2",
            {"class 0": 0.0, "class 1": 1.0},
            "match fraction by distance of inputs <= 0.01 for class 0, >= 0.99 for class 1, mean over seeds",
        ),
        Published(
            "relu-t2-folding-d3",
            "Section 4.2.2",
            {depth: TABLE_2[depth][1][0] for depth in TABLE_2},
            "mean final match of class 0 at depth 3 exceeds every other depth's by 0.2",
            seeds=RUNS,
        ),
        Published(
            "relu-fig2-setting",
            "Figure 2",
            {"radii": 21, "points per radius": 100, "orthants": 3},
            "three curves of 21 probabilities, 100 points each",
        ),
        Published(
            "relu-fig2-nn-monotone",
            "Figure 2, Section 4.2.2",
            "at depth 3 the network's probability of class 1 rises with the radius in all three orthants",
            "mean over seeds of Spearman's correlation >= 0.8 in each; of P(2.5) - P(1) >= 0.3 in those with training items",
            seeds=RUNS,
        ),
        Published(
            "relu-fig2-ntk-dip",
            "Figure 2, Section 4.2.2",
            "at depth 3 the tangent machine says class 1 almost everywhere but near radius 1",
            "share of class 1, mean over seeds: smallest at a radius in 0.7 … 1.4, above that at 0.5 and 2.5, in each orthant",
            seeds=RUNS,
        ),
    )
}
