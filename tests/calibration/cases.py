"""Every interval, standard error and p-value of the package, on data whose truth is known.

A case draws one data set from a seed and answers yes or no: of an interval, whether it covers the truth; of a test, whether it
rejects a null that holds at `LEVEL`. `python -m calibration.cases` (in `tests/`) writes the table of docs/science.md.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.optimize
import scipy.stats
import torch

import ntkscope as ns
from ntkscope.core import numpy_generator
from ntkscope.explain.two_sample import c2st, mmd
from ntkscope.explain.two_sample.rearrangements import rearrange
from ntkscope.linalg import NumericalWarning, spike_test
from ntkscope.linalg.features.correlation import haar_control
from ntkscope.linalg.grams.factored import FactoredGram
from ntkscope.linalg.spectra.density import spectral_density, stochastic_trace
from ntkscope.linalg.spectra.power_law import power_law_tail
from ntkscope.linalg.spectra.rank_estimate import estimate_effective_rank
from ntkscope.linalg.spectra.spectrum import effective_rank
from ntkscope.linalg.spectra.tail_rivals import RIVALS, vuong
from ntkscope.measures.changepoint import change_point, common_jump
from ntkscope.measures.datamodeling import DatamodelingScore, datamodeling_difference, linear_datamodeling_score
from ntkscope.measures.dimension import estimate, two_nn
from ntkscope.measures.faithfulness import faithfulness
from ntkscope.measures.kendall import kendall
from ntkscope.measures.regression import output_fidelity
from ntkscope.measures.resampled import corrected_t_test
from ntkscope.measures.uncertainty import bootstrap_means, percentile_interval, standard_error, wilson, wilson_interval
from ntkscope.xray.sections.shift import Judged, Memorisation, _memorisation
from ntkscope_papers.balakrishnan_2023.orthants.swap_effect import swap_effect
from ntkscope_papers.framework.intervals import interval

LEVEL = 0.05
Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    """`run(random, seed)`: one data set. `kind`: "interval" of 95 %, or "test" at 5 %. `runs`: data sets of the nightly test,
    fewer than 1,000 where one takes long. `wide`: an interval that may cover more than 95 %, a test that may reject less than
    5 %."""

    name: str
    data: str
    kind: str
    run: Callable[[Random, int], bool]
    runs: int = 1000
    wide: bool = False

    def count(self, seeds: Iterable[int]) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            return sum(bool(self.run(numpy_generator(seed, "calibration", self.name), seed)) for seed in seeds)

    def bounds(self, runs: int) -> tuple[float, float]:
        """Shares that three binomial standard errors allow, and half a per cent for what is asymptotic."""
        p = 1 - LEVEL if self.kind == "interval" else LEVEL
        reach = 3 * math.sqrt(p * (1 - p) / runs) + 0.005
        if not self.wide:
            return p - reach, p + reach
        return (p - reach, 1.0) if self.kind == "interval" else (0.0, p + reach)


CASES: dict[str, Case] = {}


def case(name: str, data: str, kind: str, runs: int = 1000, wide: bool = False) -> Callable[[Callable], Callable]:
    def register(run: Callable[[Random, int], bool]) -> Callable[[Random, int], bool]:
        CASES[name] = Case(name, data, kind, run, runs, wide)
        return run

    return register


def rejects(p: float) -> bool:
    assert 0 < p <= 1, p  # never 0, never NaN
    return p <= LEVEL


def within(truth: float, ends: tuple[float, float]) -> bool:
    return ends[0] <= truth <= ends[1]


# -- two samples ------------------------------------------------------------------------------------------------------------


def shifted(random: Random, seed: int, by: float, **options: Any) -> ns.explain.two_sample.shift.Shift:
    a, b = random.normal(size=(60, 10)), random.normal(size=(60, 10))
    b[:, 0] += by
    return ns.explain.shift(None, a, b, permutations=99, seed=seed, **options)


for _name in ("c2st", "mmd", "ks", "holm"):

    @case(f"explain.shift, p of {_name}", "60 against 60, no shift", "test", 400, wide=_name == "holm")
    def shift_test(random: Random, seed: int, name: str = _name) -> bool:
        return rejects(shifted(random, seed, 0.0).p[name])


for _name, _truth in (("auc", 0.5), ("auc_pc12", 0.5), ("auc_pc12_qda", 0.5), ("mmd2", 0.0), ("ks", 0.0)):

    @case(f"explain.shift, {_name}", "60 against 60, no shift", "interval", 400, wide=True)
    def effect(random: Random, seed: int, name: str = _name, truth: float = _truth) -> bool:
        return within(truth, shifted(random, seed, 0.0, tests=("mmd", "ks")).effects[name][1:])


@cache
def mean_area(by: float) -> float:
    """The mean area of classifiers fitted on as many items, from 400 other samples."""
    found = [shifted(numpy_generator(k, "calibration truth"), k, by, tests="ks").effects["auc"][0] for k in range(400)]
    return float(np.mean(found))


@case("explain.shift, auc of a shift", "60 against 60, one apart", "interval", 400, wide=True)
def shifted_area(random: Random, seed: int) -> bool:
    return within(mean_area(1.0), shifted(random, seed, 1.0, tests="c2st").effects["auc"][1:])


@case("explain.shift, mmd2 of a shift", "60 against 60, half apart, known kernel", "interval", wide=True)
def shifted_discrepancy(random: Random, seed: int) -> bool:
    X = np.concatenate([random.normal(size=60), random.normal(size=60) + 0.5])[:, None]
    found = rearrange(60, 60, None, 99, seed)
    apart = mmd.discrepancies(lambda at: np.exp(-np.square(X[at] - X.T) / 2), found)
    return within(2 * 3**-0.5 * (1 - math.exp(-0.25 / 6)), mmd.discrepancy_interval(apart, found))


@case("xray memorisation, AUC of margins", "40 against 60", "interval")
def margins(random: Random, seed: int) -> bool:
    second = np.arange(100) >= 40
    ends = c2st.auc_interval(random.normal(size=100) + 0.5 * second, second, np.arange(100))
    return within(scipy.stats.norm.cdf(0.5 / 2**0.5), ends[1:])


def memorised(random: Random) -> Memorisation:
    """Logits of 60 training and 80 test items from one law, right for 76 % of them."""
    sides = []
    for n in (60, 80):
        labels = random.integers(0, 2, n)
        sides += [random.normal(size=(n, 2)) + np.eye(2)[labels], labels]
    context: Any = SimpleNamespace(
        **dict(zip(("network_train_outputs", "y_train", "network_logits", "y_test"), sides, strict=True))
    )
    return _memorisation(context, Judged("test items", 60, 80, "no shift found", 1.0, (), ()))


@case("xray memorisation, gap of accuracies", "60 against 80 items", "interval")
def gap(random: Random, seed: int) -> bool:
    found = memorised(random)
    return within(0.0, (found.low, found.high))


@case("xray memorisation, p of margins", "60 against 80 items", "test")
def memorisation(random: Random, seed: int) -> bool:
    return rejects(memorised(random).p)


# -- shares and means ---------------------------------------------------------------------------------------------------------


@case("uncertainty.wilson_interval", "share 0.1 of 60", "interval", 4000, wide=True)
def wilson_of_share(random: Random, seed: int) -> bool:
    k = int(random.binomial(60, 0.1))
    centre, half = wilson(k, 60)
    assert math.isclose(wilson_interval(k, 60)[1], centre + half)
    return within(0.1, wilson_interval(k, 60))


@case("uncertainty.standard_error, Summary", "mean ± 2.26 of 10 seeds", "interval", 4000)
def of_seeds(random: Random, seed: int) -> bool:
    x = random.normal(size=10)
    return abs(x.mean()) <= scipy.stats.t.ppf(0.975, 9) * standard_error(x)


@case("experiments, mean over seeds", "5 seeds", "interval", 4000)
def of_five_seeds(random: Random, seed: int) -> bool:
    told = interval(random.normal(size=5))
    return within(0.0, (told["low"], told["high"]))


@case("uncertainty.bootstrap_means, percentiles", "mean of 60 exponential values", "interval")
def bootstrap(random: Random, seed: int) -> bool:
    means = bootstrap_means(random.exponential(size=(60, 1)), lambda m: m, resamples=400, seed=seed)
    return within(1.0, percentile_interval(means[:, 0], items=60))


@case("experiments.swap_effect", "10 seeds", "interval")
def swapped(random: Random, seed: int) -> bool:
    found = swap_effect(random.normal(size=10), random.normal(size=10), seed=seed)
    return within(0.0, (found.low, found.high))


@case("measures.corrected_t_test, p", "10 splits with the correlation it assumes", "test")
def corrected(random: Random, seed: int) -> bool:
    d = random.normal(size=10) * math.sqrt(3 / 4) + random.normal() * math.sqrt(1 / 4)  # test / (train + test) = 1/4
    return rejects(corrected_t_test(d, train=300, test=100).p)


@case("measures.corrected_t_test, interval", "10 splits with the correlation it assumes", "interval")
def corrected_interval(random: Random, seed: int) -> bool:
    d = random.normal(size=10) * math.sqrt(3 / 4) + random.normal() * math.sqrt(1 / 4)
    found = corrected_t_test(d, train=300, test=100)
    return within(0.0, (found.low, found.high))


# -- faithfulness -------------------------------------------------------------------------------------------------------------


@case("measures.kendall, τ-b", "60 items, correlation 0.6", "interval")
def rank(random: Random, seed: int) -> bool:
    x = random.normal(size=60)
    y = 0.6 * x + 0.8 * random.normal(size=60)
    return within(2 / math.pi * math.asin(0.6), kendall(x, y).interval("b"))


@case("measures.kendall, τ-b of few", "20 items, correlation 0.6", "interval")
def rank_of_few(random: Random, seed: int) -> bool:
    x = random.normal(size=20)
    y = 0.6 * x + 0.8 * random.normal(size=20)
    return within(2 / math.pi * math.asin(0.6), kendall(x, y).interval("b"))


@case("measures.kendall, literal with ties", "60 items, rounded", "interval")
def literal(random: Random, seed: int) -> bool:
    x = random.integers(0, 4, 60)
    y = np.where(random.random(60) < 0.5, x, random.integers(0, 4, 60))
    concordant = 0.0  # of two independent items: both from the joint law of (x, y)
    joint = 0.125 * np.eye(4) + 0.5 / 16
    for i in range(4):
        for j in range(4):
            concordant += 2 * joint[i, j] * joint[:i, :j].sum()
    return within(2 * concordant - 1, kendall(x, y).interval("discordant"))


def two_networks(random: Random, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    y = random.integers(0, 3, n)
    network = random.normal(size=(n, 3)) + 1.5 * np.eye(3)[y]
    return network + 0.5 * random.normal(size=(n, 3)), network, y


@cache
def true_faithfulness() -> dict[str, float]:
    found = faithfulness(*two_networks(numpy_generator(0, "calibration truth"), 400_000), bootstrap=0)
    return {name: getattr(found, name) for name in FIGURES}


FIGURES = (
    "agreement",
    "surrogate_accuracy",
    "network_accuracy",
    "tad",
    "total_variation",
    "pearson",
    "r2",
    "agreement_wrong",
)
for _name in (*FIGURES, "tau"):

    @case(
        f"measures.faithfulness, {_name}",
        "200 items",
        "interval",
        4000 if _name in ("pearson", "r2") else 1000,
        wide=_name == "agreement_wrong",
    )
    def faithful(random: Random, seed: int, name: str = _name) -> bool:
        found = faithfulness(*two_networks(random, 200), bootstrap=400, seed=seed)
        truth = true_tau() if name == "tau" else true_faithfulness()[name]
        return within(truth, found.intervals[name])


@cache
def true_tau() -> float:
    return faithfulness(*two_networks(numpy_generator(0, "calibration truth"), 400_000), bootstrap=0).tau


@case("measures.output_fidelity, R²", "100 items, R² = 0.8", "interval", 4000)
def fidelity(random: Random, seed: int) -> bool:
    y = random.normal(size=100)
    (found,) = output_fidelity(y + math.sqrt(0.2) * random.normal(size=100), y, bootstrap=400, seed=seed)
    return within(0.8, (found.r2_low, found.r2_high))


@case("measures.output_fidelity, R² of skewed outputs", "200 items, errors that grow with them", "interval", 4000)
def skewed_fidelity(random: Random, seed: int) -> bool:
    y = random.exponential(size=200)  # of variance 1 and mean square 2
    (found,) = output_fidelity(y + 0.4 * y * random.normal(size=200), y, bootstrap=400, seed=seed)
    return within(1 - 2 * 0.16, (found.r2_low, found.r2_high))


def scores(random: Random) -> tuple[np.ndarray, np.ndarray]:
    actual = random.normal(size=(30, 40))
    return actual + random.normal(size=(30, 40)) * random.uniform(0.5, 2, size=40), actual


@cache
def true_score() -> float:
    found = [linear_datamodeling_score(*scores(numpy_generator(k, "truth")), resamples=1).mean for k in range(2000)]
    return float(np.mean(found))


@case("measures.linear_datamodeling_score", "40 items, 30 subsets", "interval")
def datamodel(random: Random, seed: int) -> bool:
    return within(true_score(), linear_datamodeling_score(*scores(random), resamples=400, seed=seed).interval)


@case("measures.datamodeling_difference", "40 items", "interval")
def datamodel_difference(random: Random, seed: int) -> bool:
    first, second = (DatamodelingScore(random.uniform(-1, 1, 40), 0.0, (0.0, 0.0)) for _ in range(2))
    return within(0.0, datamodeling_difference(first, second, resamples=400, seed=seed)[1])


# -- series, dimensions, tails ------------------------------------------------------------------------------------------------


@case("measures.change_point, p", "30 values", "test")
def change(random: Random, seed: int) -> bool:
    return rejects(change_point(random.normal(size=30), permutations=199, seed=seed).p)


@case("measures.common_jump, p", "5 seeds, 30 moments", "test")
def jump(random: Random, seed: int) -> bool:
    return rejects(common_jump(random.normal(size=(5, 30)).cumsum(1), window=3, permutations=199, seed=seed).p)


@case("measures.dimension.estimate ± 1.96 errors", "100 ratios of dimension 5", "interval")
def ratios(random: Random, seed: int) -> bool:
    found = estimate(np.exp(random.exponential(size=100) / 5))
    return abs(found.dimension - 5) <= 1.96 * found.error


@case("measures.two_nn ± 1.96 errors", "400 points of a square", "interval", 400)
def square(random: Random, seed: int) -> bool:
    found = two_nn(random.random((400, 2)), halvings=0)
    return abs(found.dimension - 2) <= 1.96 * found.error


@case("linalg.power_law_tail, alpha", "300 values of exponent 2.5", "interval", 200)
def tail(random: Random, seed: int) -> bool:
    x = (1 - random.random(300)) ** (-1 / 1.5)
    return within(2.5, power_law_tail(x, resamples=100, seed=seed).interval)


@case("linalg.power_law_tail, p", "300 values of exponent 2.5", "test", 200, wide=True)
def tail_p(random: Random, seed: int) -> bool:
    return rejects(power_law_tail((1 - random.random(300)) ** (-1 / 1.5), resamples=100, seed=seed).p_value)


@case("linalg.tail_rivals.vuong, truncated", "300 values of exponent 2.5", "test", 400, wide=True)
def rivals(random: Random, seed: int) -> bool:
    found = power_law_tail((1 - random.random(300)) ** (-1 / 1.5), least=300, resamples=0).against["truncated"]
    return rejects(found.p)


@cache
def between() -> float:
    """The power c of `1 + Eᶜ`, E exponential, for which a power law and an exponential one are equally near: Vuong's null."""
    E = numpy_generator(0, "calibration truth").exponential(size=1_000_000)

    def nearer(c: float) -> float:
        logs = float(np.log1p(E**c).mean())
        return math.log(float((E**c).mean())) - math.log(logs) - logs

    return float(scipy.optimize.brentq(nearer, 1.0, 4.0))


@case("linalg.tail_rivals.vuong, exponential", "500 values of a law as near to both", "test", 4000)
def not_nested(random: Random, seed: int) -> bool:
    x = 1 + random.exponential(size=500) ** between()
    return rejects(vuong(x, 1 + 1 / float(np.log(x).mean()), RIVALS["exponential"]).p)


@case("linalg.tail_rivals.vuong, log-normal", "300 values of exponent 2.5", "test", 400, wide=True)
def log_normal_rival(random: Random, seed: int) -> bool:
    x = (1 - random.random(300)) ** (-1 / 1.5)
    return rejects(vuong(x, 1 + 1 / float(np.log(x).mean()), RIVALS["log-normal"]).p)


# -- matrices -----------------------------------------------------------------------------------------------------------------


def entries(random: Random, law: str, shape: tuple[int, int]) -> torch.Tensor:
    return torch.from_numpy(getattr(random, law)(size=shape))


for _law, _shape in (("normal", (20, 30)), ("uniform", (20, 30)), ("laplace", (20, 30))):

    @case(
        f"linalg.spike_test, permutation, {_law}",
        f"{_shape[0]} × {_shape[1]}",
        "test",
        4000 if _law == "normal" else 400,
    )
    def permuted(random: Random, seed: int, law: str = _law, shape: tuple[int, int] = _shape) -> bool:
        return rejects(spike_test(entries(random, law, shape), draws=39, seed=seed).p_value)


for _law, _shape in (("normal", (20, 30)), ("normal", (60, 80)), ("uniform", (30, 50)), ("uniform", (60, 80))):

    @case(f"linalg.spike_test, Tracy–Widom, {_law}", f"{_shape[0]} × {_shape[1]}", "test")
    def tracy_widom(random: Random, seed: int, law: str = _law, shape: tuple[int, int] = _shape) -> bool:
        return rejects(spike_test(entries(random, law, shape), null="tracy-widom").p_value)

    CASES[f"linalg.spike_test, Tracy–Widom, {_law} {_shape[0]}"] = CASES.pop(f"linalg.spike_test, Tracy–Widom, {_law}")


@case("linalg.spike_test, initial weights", "20 × 30, permuted", "test", 4000, wide=True)
def initial(random: Random, seed: int) -> bool:
    W0 = entries(random, "normal", (20, 30))
    W = W0.reshape(-1)[torch.from_numpy(random.permutation(600))].view(20, 30)
    return rejects(spike_test(W, null=W0, draws=39, seed=seed).p_value)


for _law in ("normal", "uniform", "laplace"):

    @case(f"linalg.spike_test, initial weights, {_law}", "20 × 30, drawn again", "test", 4000)
    def redrawn(random: Random, seed: int, law: str = _law) -> bool:
        W0, W = (entries(random, law, (20, 30)) for _ in range(2))
        return rejects(spike_test(W, null=W0, draws=39, seed=seed).p_value)


@case("linalg.haar_control, p", "10 × 6, random eigenvectors", "test", 400)
def haar(random: Random, seed: int) -> bool:
    Q = np.linalg.qr(random.normal(size=(10, 10)))[0]
    K = Q @ np.diag(0.5 ** np.arange(10)) @ Q.T
    return rejects(haar_control(random.normal(size=(10, 6)), K, draws=39, seed=seed).p_value)


@case("kernels proj-*, confidence_interval", "an entry of 256 projections", "interval")
def sketched(random: Random, seed: int) -> bool:
    left = random.normal(size=(2, 40))
    features = torch.from_numpy(left @ random.normal(size=(40, 256)) / 16)
    low, high = FactoredGram(features, groups=16).confidence_interval(0.95)
    return within(float(left[0] @ left[1]), (float(low[0, 1]), float(high[0, 1])))


@case("kernels proj-*, cosines", "an entry of 256 projections", "interval")
def sketched_cosine(random: Random, seed: int) -> bool:
    left = random.normal(size=(2, 40))
    left[1] += left[0]
    features = torch.from_numpy(left @ random.normal(size=(40, 256)) / 16)
    low, high = FactoredGram(features, groups=16).normalized().confidence_interval(0.95)  # type: ignore[attr-defined]
    truth = float(left[0] @ left[1] / np.linalg.norm(left[0]) / np.linalg.norm(left[1]))
    return within(truth, (float(low[0, 1]), float(high[0, 1])))


def spectrum(random: Random) -> torch.Tensor:
    Q = np.linalg.qr(random.normal(size=(120, 120)))[0]
    return torch.from_numpy((Q * 0.95 ** np.arange(120)) @ Q.T)


@case("linalg.stochastic_trace ± 2.13 errors", "120 × 120, 16 probes", "interval", 400)
def trace(random: Random, seed: int) -> bool:
    value, error = stochastic_trace(spectrum(random), lambda x: x.clamp_min(0).sqrt(), steps=40, seed=seed)
    truth = float((0.95 ** (np.arange(120) / 2)).sum())
    return abs(value - truth) <= scipy.stats.t.ppf(0.975, 15) * error


@case("linalg.spectral_density ± 2.13 errors", "120 × 120, 16 probes, at one point", "interval", 400)
def density(random: Random, seed: int) -> bool:
    K, at = spectrum(random), torch.tensor([0.3], dtype=torch.float64)
    found = spectral_density(K, grid=at, width=0.05, method="quadrature", steps=60, seed=seed)
    truth = spectral_density(K, grid=at, width=0.05, method="exact")
    return abs(float(found.density - truth.density)) <= scipy.stats.t.ppf(0.975, 15) * float(found.standard_error)


def classifier(seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 30)
        return torch.nn.Sequential(*layers).double(), torch.randn(3, 6, dtype=torch.float64)


@case("kernels, outputs=OutputSketch(16) ± 2.13 errors", "an entry of 30 outputs", "interval", 400)
def sketched_outputs(random: Random, seed: int) -> bool:
    model, x = classifier(seed)
    K = ns.kernel("trntk0", model, x, outputs=ns.OutputSketch(16, seed), certify=False)
    error = K.meta["error"]["standard_error"][0, 1]
    truth = ns.kernel("trntk0", model, x, certify=False).numpy()[0, 1]
    return abs(K.numpy()[0, 1] - truth) <= scipy.stats.t.ppf(0.975, 15) * float(error)


@case("feature_matrices, outputs=OutputSketch(16) ± 2.13 errors", "an entry of 30 outputs", "interval", 400)
def sketched_features(random: Random, seed: int) -> bool:
    model, x = classifier(seed)
    options: dict[str, Any] = {"layers": "0", "certify": False}
    found = ns.feature_matrices(model, x, outputs=ns.OutputSketch(16, seed), **options)["0"]
    truth = ns.feature_matrices(model, x, **options)["0"].ptk[0, 1]
    assert found.standard_error is not None
    return abs(float(found.ptk[0, 1] - truth)) <= scipy.stats.t.ppf(0.975, 15) * float(found.standard_error[0, 1])


@case("linalg.estimate_effective_rank ± 1.96 errors", "120 × 120, 16 probes", "interval", 400, wide=True)
def rank_error(random: Random, seed: int) -> bool:
    K = spectrum(random)
    found = estimate_effective_rank(K, deflate=8, seed=seed)
    return abs(found.value - float(effective_rank(K))) <= 1.96 * found.standard_error


@case("xray comparison, McNemar's p", "200 items", "test", 4000, wide=True)
def mcnemar(random: Random, seed: int) -> bool:
    a, b = random.binomial(1, 0.8, (2, 200)).astype(bool)
    one, other = int((a & ~b).sum()), int((b & ~a).sum())
    return rejects(float(scipy.stats.binomtest(one, one + other).pvalue))


def counted(job: tuple[str, range]) -> int:
    torch.set_num_threads(1)
    return CASES[job[0]].count(job[1])


def measured(names: Iterable[str], workers: int, runs: int | None = None) -> dict[str, tuple[int, int]]:
    """Counts and runs of each case, in several processes."""
    jobs = []
    for name in names:
        total = runs or CASES[name].runs
        jobs += [(name, range(start, min(start + 50, total))) for start in range(0, total, 50)]
    found: dict[str, tuple[int, int]] = {}
    with ProcessPoolExecutor(workers) as pool:
        for (name, seeds), count in zip(jobs, pool.map(counted, jobs)):
            before = found.get(name, (0, 0))
            found[name] = before[0] + count, before[1] + len(seeds)
    return found


def table(found: dict[str, tuple[int, int]]) -> str:
    rows = ["| interval or test | data | nominal | measured | data sets |", "| --- | --- | --- | --- | --- |"]
    for name, (count, runs) in found.items():
        one = CASES[name]
        nominal = ("95 %" if one.kind == "interval" else "5 %") + (
            "" if not one.wide else " (may be more)" if one.kind == "interval" else " (may be less)"
        )
        low, high = one.bounds(runs)
        flag = "" if low <= count / runs <= high else " **!**"
        rows.append(f"| {name} | {one.data} | {nominal} | {100 * count / runs:.1f} %{flag} | {runs:,} |")
    return "\n".join(rows)


if __name__ == "__main__":
    workers, runs = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    print(table(measured(CASES, workers, runs)))
