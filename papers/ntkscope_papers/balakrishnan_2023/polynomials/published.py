"""Balakrishnan (2023), section 5: what is published of polynomials of a hidden direction, and each statement's check."""

from __future__ import annotations

from typing import Any

from ntkscope_papers.framework.claims import Published

NETWORKS, MACHINES = 10, 3  # seeds that a check needs


def _published(name: str, source: str, values: Any, check: str, seeds: int = 1) -> Published:
    return Published(f"relu-{name}", source, values, check, seeds=seeds)


PUBLISHED = {
    claim.id: claim
    for claim in (
        _published(
            "poly-data",
            "Section 5.1.1",
            {"dimension": 100, "hidden": list(range(3, 10)), "direct": list(range(9, 21)), "range of v": [-2, 2]},
            "max |v| = 2 after rescaling; exactly as many distinct roots in [-2, 2] as the degree, 3 to 20; a = (max|v| / 2)²,"
            " not max|v|",
        ),
        _published(
            "poly-optim",
            "Section 5.1.1",
            {"optimiser": "AdaDelta", "loss": "L1", "score": "MSE", "hidden layers": 1, "activation": "ReLU"},
            "configuration",
        ),
        _published(
            "poly-corr-cov",
            "Section 5.1.1, 5.2.1",
            {"variance of v, correlated": 10100, "isotropic": 100, "largest eigenvalue": 101},
            "sample covariance of 100,000 draws within 5 %, its first eigenvector parallel to 1 (|cos| ≥ 0.999)",
        ),
        _published(
            "poly-even-optimum",
            "Section 5.2.1",
            "even degrees have an optimum at v = 0",
            "|p'(0)| ≤ 1e-9 at even degrees; share of variance of the best line, means over ten draws: ≤ 0.005 at even degrees,"
            " 0.96 ± 0.02 at 3, 0.29 ± 0.06 at 5, ≤ 0.01 from 7",
        ),
        _published(
            "poly-odd-align-fast",
            "Section 5.2.1",
            {"degrees": [3, 5, 7], "epochs": [1, 2]},
            "mean share of units with |cos| ≥ 0.7 at least 0.05 after epoch 2 at degrees 3 and 5, after epoch 5 at 7",
            NETWORKS,
        ),
        _published(
            "poly-even-align-slow",
            "Section 5.2.1",
            {"degrees": [4, 6], "epochs": [5, 10]},
            "median first epoch with 5 % of units at |cos| ≥ 0.7 later than at degrees 3 and 5, and at most 20",
            NETWORKS,
        ),
        _published(
            "poly-8-9-fail",
            "Section 5.2.1",
            {"degrees": [8, 9]},
            "mean test R² ≤ 0.3, and the largest |cos| of a unit rises by at most 0.2 on average",
            NETWORKS,
        ),
        _published(
            "poly-max-degree-indep",
            "Section 5.2.1, Figure 3",
            {"fits up to": 7, "fails from": 8},
            "a degree t from 6 to 8 with mean test R² ≥ 0.7 at t and ≤ 0.3 at t + 1",
            NETWORKS,
        ),
        _published(
            "poly-max-degree-corr",
            "Section 5.2.1",
            {"fits up to": 11, "fails from": 12},
            "highest degree with mean test R² ≥ 0.7 from 9 to 14, and above that of independent features",
            NETWORKS,
        ),
        _published(
            "poly-corr-rbf-over-ntk",
            "Section 5.2.1",
            "with correlation the RBF kernel consistently outperforms the NTK",
            "SVRs: mean validation MSE of RBF below that of NTK at most of the degrees 3 to 11",
            MACHINES,
        ),
        _published(
            "direct-max-degree",
            "Section 5.2.2, Figure 4",
            {"fits up to": 18, "fails": [19, 20]},
            "highest degree with mean test R² ≥ 0.5 from 14 to 20",
            NETWORKS,
        ),
        _published(
            "direct-beats-hidden",
            "Section 5.2.2",
            {"v given": 18, "v hidden": 7},
            "highest degree with test R² ≥ 0.5 larger with v given: interval over seeds of the difference above 0",
            NETWORKS,
        ),
        _published(
            "fig3-fit",
            "Figure 3",
            "the network follows the curve at degree 7, not at 8",
            "mean test R² ≥ 0.7 at degree 7 and ≤ 0.3 at 8",
            NETWORKS,
        ),
        _published(
            "fig5-ntk-fit",
            "Figure 5, Section 5.2.4",
            "the NTK fits degree 7 more smoothly than the network, and fails at 8",
            "scatter of predictions around the best polynomial of degree 7: NTK's mean below the network's; NTK's mean R² at 8"
            " ≤ 0.3",
            MACHINES,
        ),
        _published(
            "rbf-mse-threshold",
            "Section 5.2.4",
            {"threshold": 0.1, "below": [3], "not below": [4, 5, 6, 7, 8, 9]},
            "mean test MSE of the RBF SVR below 0.1 at degree 3 and not at 4 to 9",
            MACHINES,
        ),
        _published(
            "ntk-beats-rbf-4-7",
            "Section 5.2.4",
            {"degrees": [4, 5, 6, 7]},
            "mean test MSE of the NTK SVR at most 0.7 of the RBF SVR's at each of these degrees that the network fits (mean"
            " R² ≥ 0.7), of which there is at least one",
            MACHINES,
        ),
        _published(
            "ntk-rbf-tie-8-9",
            "Section 5.2.4",
            {"degrees": [8, 9]},
            "ratio of mean validation MSEs, NTK over RBF, from 0.7 to 1.4",
            MACHINES,
        ),
        _published(
            "rbf-overfit-ntk-underfit",
            "Section 5.2.4",
            "at 8 and 9 RBF has a training loss near 0 and the NTK predicts a constant",
            "means: RBF's training MSE ≤ 0.1 of its test MSE; spread of the NTK's predictions ≤ 0.2 of the targets'",
            MACHINES,
        ),
        _published(
            "ntk-slightly-better-than-nn",
            "Section 5.2.4",
            "the NTK has marginally better losses than the network at all degrees",
            "mean test MSE of the NTK SVR at most the network's at most of the degrees 3 to 7, difference ≤ 0.1 of the targets'"
            " variance",
            MACHINES,
        ),
        _published(
            "damian-no-change",
            "Section 5.2.4",
            "label noise, symmetric start and the algorithm of Damian et al. make no significant change",
            "from a symmetric start on noisy labels the NTK's test MSE is no worse than the network's (interval of the paired"
            " difference not above 0) at most degrees, and so with Damian's algorithm; its start puts out exactly 0",
            MACHINES,
        ),
    )
}
