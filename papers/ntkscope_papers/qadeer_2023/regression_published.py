"""Function regression: what was published."""

from __future__ import annotations

from ntkscope_papers.framework.claims import Published

PREFIX = "conjugate-"

PUBLISHED = {
    claim.id.removeprefix(PREFIX): claim
    for claim in (
        Published(
            "conjugate-regression-setting",
            "Section 6, Eq. 71",
            {"N": 200, "M": 600, "hidden layers": 3, "width": 128, "epochs": 2400, "lr": 1e-3, "runs": 100},
            "201 training and 601 test nodes, 33,409 parameters, 100 networks of each architecture",
        ),
        Published(
            "conjugate-fig3-separation",
            "Figure 3",
            "NTK and CK test errors are clearly below the network's for all three targets",
            "median network/CK >= 10 for each target",
            seeds=5,
        ),
        Published(
            "conjugate-fig3-ntk-ck-similar",
            "Figure 3",
            "NTK and CK are close to each other compared with their distance from the network",
            "median |log10 NTK/CK| < 0.5 median log10 network/CK for each target",
            seeds=5,
        ),
        Published(
            "conjugate-fig3-ckj-orders-better",
            "Figure 3",
            "solving with the CK's features instead of its Gram matrix gains several orders of magnitude",
            "median CK/CKJ >= 100 on f1 and f2; f3 reported",
            seeds=5,
        ),
        Published(
            "conjugate-fig4-faster-decay",
            "Figure 4",
            "kernel errors fall faster than the network's, CKJ fastest; mean of ten runs",
            "at epoch 400 NTK and CK are below a third of the network's; CKJ < CK at every checkpoint after 200",
            seeds=5,
        ),
        Published(
            "conjugate-fig5-width-256",
            "Figure 5",
            "the same at width 256, where 257 features face 201 points",
            "the three checks of Figure 3 at width 256",
            seeds=5,
        ),
        Published(
            "conjugate-fig6-relu",
            "Figure 6",
            "with ReLU the separation vanishes; NTK tests worst, CK is slightly better than the network",
            "median network/CK < 10 and median NTK test error >= median CK test error, for each target",
            seeds=5,
        ),
        Published(
            "conjugate-fig7-relu-evolution",
            "Figure 7",
            "the ReLU order persists through training; mean of ten runs",
            "NTK test error >= CK test error at 80 % of the checkpoints or more, over all targets",
            seeds=5,
        ),
        Published(
            "conjugate-relu-ntk-overfits",
            "Section 6",
            "with ReLU the NTK machine fits training data far better than test data; its features are discontinuous",
            "median test/train larger for NTK than for CK; across a kink NTK features jump, CK features do not",
            seeds=5,
        ),
        Published(
            "conjugate-activation-agnostic-network",
            "Section 8",
            "the network's own error hardly depends on the activation, the kernel machines' errors do",
            "median error tanh/ReLU within 0.1 ... 10 for the network and outside for CK, for each target",
            seeds=5,
        ),
        Published(
            "conjugate-network-in-ck-span",
            "Eq. 26, 27, Section 8",
            "training errors are ordered NTK <= CK <= network",
            "NTK <= CK (1 + 1e-6) + 1e-4 and CKJ <= network, training errors of every run",
        ),
        Published(
            "conjugate-beta-below-one-is-empty",
            "Eq. 39, Theorem 4.1",
            "most targets have β < 1",
            "the median of 1 - β is at least 1e-6 for each target, below which the constants exceed a million",
        ),
        Published(
            "conjugate-theorem-4-1",
            "Theorem 4.1, Eq. 45-47",
            "with piecewise monotone residuals: NTK <= √(2τ) CK and CK <= √(2τ)/(1-β) NTK",
            "holds on every run and instance whose residuals are monotone between training nodes",
        ),
        Published(
            "conjugate-theorem-4-2",
            "Theorem 4.2, Eq. 48-51",
            "with Lipschitz residuals: NTK² <= 4τ CK² + 8(b-a)² L²/N² and CK² <= 4τ/(1-β)² NTK² + 8(b-a)² L²/N²",
            "both inequalities with the corrected slack 4(b-a)³ L²/N² on every run",
        ),
        Published(
            "conjugate-retrain-last-layer",
            "Section 8",
            "solving only the last layer of a trained tanh network is a cheap way to a large gain",
            "lower test error than the network on at least 95 % of the tanh networks of each target",
            seeds=5,
        ),
    )
}
