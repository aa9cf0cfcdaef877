"""What Wang et al. (2023) state on linear-width networks: definitions, Table 8, Figure 19, with the checks for verdicts."""

from __future__ import annotations

from ntkscope_papers.framework.claims import Published

TABLE_8 = {
    "case1": {"r2": 0.63582, "test_error": 0.36381},
    "case2": {"r2": 0.60605, "test_error": 0.36879},
    "case3": {"r2": 0.76081, "test_error": 0.23791},
    "case4": {"r2": 0.78829, "test_error": 0.21071},
    "lazy": {"r2": 0.68092, "test_error": 0.3185},
}
CLASSES = {
    "case1": "invariant bulk",
    "case2": "invariant bulk",
    "case3": "bulk + spikes",
    "case4": "heavy tail",
}
WITHIN = {"case1": 0.05, "case2": 0.05, "case3": 0.03, "case4": 0.03, "lazy": 0.05}
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
CEILING = {"r2_ceiling_centred": 0.921, "mse_floor_centred": 0.0786}
IMPLIED = {"case1": 0.99898, "case2": 0.93613, "case3": 0.99465, "case4": 0.99528, "lazy": 0.99818}

_ROWS = (
    (
        "ntk-parameterisation",
        "Eq. 73, 79",
        "f = h^(-1/2) Σ vᵢ σ(wᵢ·x/√d), no biases",
        "pre-activations have variance 1, outputs E v², within 10 %",
    ),
    ("loss", "Eq. 74, 75", "L = 1/(2n) Σ (y - f)²", "the gradient is autograd's to 1e-10"),
    (
        "ck-definition",
        "Eq. 76",
        "CK = Gram of h^(-1/2) σ(WX/√d)",
        "is the readout's block of the NTK to 1e-12; Section 4.1's form without 1/√d is not",
    ),
    ("ntk-formula", "Eq. 77", "(XᵀX/d) ⊙ (1/h) σ'ᵀ diag(v)² σ' + CK", "is the Gram of the Jacobian to 1e-10"),
    (
        "lazy-predictor",
        "Eq. 78",
        "f₀ + (y - f₀(X)) K⁻¹ K(X, x)",
        "is the pseudo-inverse's solution in the parameters to 1e-8",
    ),
    ("activation-constants", "Assumption 3.2, Table 8", CONSTANTS, "quadrature to 1e-6"),
    (
        "teacher",
        "Eq. 80, 81",
        {"tau": 0.2, "noise_std": 0.3},
        "as printed: mean of y 0.2, variance 1.09 with noise and 1.00 without, each within 0.05",
    ),
    (
        "odd-network-ceiling",
        "Eq. 79, 81",
        CEILING,
        "f(-x) = -f(x) to 1e-6 in every trained network; an even target is learned with R² ≤ 0.02",
    ),
    (
        "linear-ridge-baseline",
        "Table 8",
        {"ridge_0.1": {"r2": [0.796, 0.788, 0.806]}},
        "ridge R² at least the best network's minus 0.02",
    ),
    ("kta", "Eq. 87", {"yyᵀ": 1.0, "identity": "1/√n", "range": [0, 1]}, "those values to 1e-12"),
    (
        "table8-setting",
        "Table 8",
        {"n": 2000, "h": 1500, "d": 1000, "tau": 0.2, "noise": 0.3},
        "configuration; training loss below 1e-5 in every case",
    ),
    ("table8-case1", "Table 8", TABLE_8["case1"], "R² and error within 0.05"),
    ("table8-case2", "Table 8", TABLE_8["case2"], "each number by itself within 0.05; both must hold"),
    ("table8-case3", "Table 8", TABLE_8["case3"], "R² and error within 0.03; λ₁ above 1.2 edges, |β·u₁| above 0.7"),
    ("table8-case4", "Table 8", TABLE_8["case4"], "R² and error within 0.03; five eigenvalues or more above the edge"),
    ("table8-lazy", "Table 8", TABLE_8["lazy"], "R² and error within 0.05"),
    (
        "table8-noise-free-test",
        "Table 8",
        IMPLIED,
        "test error is (1 - R²) times the labels' variance, to rounding; that variance is 1 within 0.05",
    ),
    (
        "table8-order",
        "Table 8",
        ["case4", "case3", "lazy", "case1", "case2"],
        "mean R²: cases 4 and 3 above lazy above cases 1 and 2",
    ),
    ("tau-zero", "footnote 3", "everything holds with τ = 0", "the same order at τ = 0"),
    (
        "invariant-bulk-gd",
        "Figure 19a",
        "straight Q-Q plots in case 1",
        "KS below 0.01 (W), 0.03 (CK, NTK); λ₁ within 2 %; W's class is invariant bulk in most seeds",
    ),
    (
        "bulk-stays-random",
        "Section 3",
        "all but the first direction stays random in case 3",
        "KS of WᵀW/d without its first value to Marchenko–Pastur below 0.02",
    ),
    (
        "spike-case3",
        "Figure 19b",
        "one outlier, clearest in the NTK",
        "one eigenvalue more than 10 % above the edge in W and CK; λ₁/λ₂ largest in the NTK; W's class is bulk + spikes in"
        " most seeds",
    ),
    (
        "heavy-tail-case4",
        "Figure 19c",
        "many eigenvalues outside the bulk with Adam, AdaGrad too",
        "five or more above the edge and a smaller Hill exponent than at the start, both rules; W's class is heavy tail in"
        " most seeds",
    ),
    ("mp-edge", "Figure 20b", {"edge": 4.949490}, "λ₁ of W₀ᵀW₀/d within 2 % of (1 + √(h/d))²"),
    ("alignment-case3", "Figure 20a", "u₁ aligns with β", "|β·u₁| above 0.7 after, below 0.1 before"),
    ("large-step-helps", "Sections 3, 4.2", {"gain": 0.15476}, "R² of case 3 minus case 2 at least 0.05"),
    ("sgd-invariance", "Section 4.1", "small-step SGD like GD", "case 2: as for case 1"),
)
SEVERAL = {"table8-order": 3, "tau-zero": 3, "large-step-helps": 3, "table8-case1": 3, "table8-lazy": 5}
PUBLISHED = {
    key: Published(f"spectra-{key}", where, values, check, seeds=SEVERAL.get(key, 1))
    for key, where, values, check in _ROWS
}
