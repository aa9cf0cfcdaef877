"""Six kernels side by side: the contract, the pairs they are made of, and what a killed leg computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import ntkscope as ns
from contracts.experiment import ExperimentContract, made_record, run_of
from ntkscope.core import UsageError
from ntkscope.machines import KernelPair
from ntkscope_papers.engel_2023 import kernel_pairs as pairs_module
from ntkscope_papers.engel_2023.kernel_pairs import SIX, kernel_pairs
from ntkscope_papers.engel_2023.surrogate_kernels import GROUPS, SurrogateKernels
from ntkscope_papers.framework import Run
from ntkscope_papers.shared.images import build_network, load_images

SMALL = {
    **{"exact_points": 20, "feature_points": 24, "embedding_points": 24, "dim": 32, "inspected": 5},
    **{"sgd_seeds": 1, "sgd_points": 20, "compared_points": 20},
}


@pytest.mark.nightly
class TestSurrogateKernels(ExperimentContract):
    name = "surrogate-kernels"
    tiny = {**SMALL, "train_items": 120, "test_items": 40, "epochs": 2, "seeds": 1}


@pytest.mark.parametrize("name", SIX)
def test_a_pair_is_one_kernel_on_train_and_test(name: str) -> None:
    """The same inputs on both sides give the same numbers, up to rounding: normalisation is that of each point alone."""
    model = ns.models.build("small_cnn", image_size=8, classes=3, channels=(4, 4)).double().eval()
    x = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (pair,) = kernel_pairs([name], model, x, x[2:5], dim=50)
    torch.testing.assert_close(pair.test.dense(), pair.train.dense()[2:5], rtol=1e-10, atol=1e-12)
    assert float(pair.train.diagonal().mean()) == pytest.approx(1, abs=1e-12)
    if name in ("trntk", "proj-trntk", "proj-pntk"):
        torch.testing.assert_close(pair.train.diagonal(), torch.ones(7, dtype=torch.float64))


def test_trace_kernels_share_one_run() -> None:
    model, x = torch.nn.Linear(3, 2).eval(), torch.eye(3)
    both = {pair.name: pair for pair in kernel_pairs(["trntk0", "trntk"], model, x, x)}
    assert both["trntk"].seconds == both["trntk0"].seconds
    scaled = both["trntk0"].train.dense() * both["trntk0"].scale
    torch.testing.assert_close(scaled, ns.kernel("trntk0", model, x).dense())


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(UsageError, match=r"got the kernels entk; expected some of trntk"):
        next(kernel_pairs(["entk"], torch.nn.Linear(1, 1), torch.ones(1, 1), torch.ones(1, 1)))


class Untrained(SurrogateKernels):
    """Of a network that was not trained."""

    def prepare(self, run: Run) -> Any:
        split = load_images("digits", root=None, train=60, test=20)
        model = build_network("small_cnn", split).eval()
        return split, lambda s: model


def small(folder: Path, found: Mapping[str, Any] | None = None, **changes: Any) -> Run:
    """A run into a record that has some results."""
    config = Untrained.at("smoke", {**SMALL, **changes})
    return run_of(config, made_record(folder, "surrogate-kernels", **(found or {})))


def kernels_of(run: Run, names: Sequence[str]) -> None:
    assert isinstance(run.experiment, SurrogateKernels)
    run.experiment.measure_kernels(run, 0, names)


def watch(patched: pytest.MonkeyPatch, killed_at: str = "") -> list[str]:
    """The kernels that are asked for from now on; the run dies when it is given `killed_at`."""
    asked: list[str] = []

    def pairs(names: list[str], *args: Any, **options: Any) -> Iterator[KernelPair]:
        asked.extend(names)
        for pair in kernel_pairs(names, *args, **options):
            if pair.name == killed_at:
                raise KeyboardInterrupt
            yield pair

    patched.setattr(pairs_module, "kernel_pairs", pairs)
    return asked


@pytest.mark.guard
@pytest.mark.parametrize("group", list(GROUPS))
def test_a_killed_leg_computes_only_the_kernel_that_is_missing(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = GROUPS[group]
    run = small(tmp_path / "run")
    asked = watch(monkeypatch, killed_at=second)
    with pytest.raises(KeyboardInterrupt):
        kernels_of(run, GROUPS[group])
    assert set(asked) == {first, second}
    before = {key: value for key, value in run.record.metrics.items() if key != "provenance"}  # which grows
    assert f"0/{first}/looks" in before
    assert not any(key.startswith(f"0/{second}") for key in before)
    asked = watch(monkeypatch)
    kernels_of(run, GROUPS[group])
    assert asked == [second]
    assert f"0/{second}/looks" in run.record.metrics
    assert before.items() <= dict(run.record.metrics).items()  # the seconds too: nothing was computed again
    kernels_of(run, GROUPS[group])
    assert asked == [second]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = small(tmp_path_factory.mktemp("whole") / "run")
    kernels_of(run, ("trntk", "trntk0", "ck"))
    return dict(run.record.metrics)


@pytest.mark.guard
@pytest.mark.parametrize(
    ("lost", "kernel"),
    [(f"trntk{row}", "trntk") for row in ("", "/common", "/sgd", "/looks", "/ridges")]
    + [("side by side", "trntk"), ("ck-cosine", "ck"), ("ck-cosine/ridges", "ck")],
)
def test_a_kernel_of_which_a_result_is_missing_is_computed_again(
    lost: str, kernel: str, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small(tmp_path / "run", {key: value for key, value in whole.items() if key != f"0/{lost}"})
    asked = watch(monkeypatch)
    kernels_of(run, ("trntk", "trntk0", "ck"))
    assert asked == [kernel]
    assert set(run.record.metrics) == set(whole)


def test_other_ridges_that_are_not_wanted_are_not_missing(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small(tmp_path / "run", {k: v for k, v in whole.items() if not k.endswith("ridges")}, ridges=False)
    asked = watch(monkeypatch)
    kernels_of(run, ("trntk", "trntk0", "ck"))
    assert asked == []
