"""X-rays of networks that predict real values: which task it is, what the page says, influence against real refits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import Part, UsageError, generator
from ntkscope.machines import KernelPair, fit_machine
from ntkscope.xray.comparison import compare
from ntkscope.xray.items import collect_both
from ntkscope.xray.sections import explain, problems, summary, surrogates
from ntkscope.xray.task import task_of
from xray.small import found_in, network, regressed, waves


def states(record: ns.Record) -> dict[str, str]:
    return {name: record.metrics[f"section:{name}"]["status"] for name in record.metrics["sections"]}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two outputs in different units, a wrong target among the training items."""
    folder = tmp_path_factory.mktemp("regression")
    train, test = waves(outputs=2)
    initial, model = regressed(train)
    train.y[7, 0] += 5.0
    record = ns.xray(
        model, train, test, folder, initial=initial, kernels=["ck"], classes=["<i>wave", "line"], progress=False
    )
    return record, model, train, test


# -- which task it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        ([0, 1, 2], "classification"),
        ([0.0, 1.0, 2.0], "classification"),
        ([-1.0, 1.0, 1.0], "classification"),
        ([0.5, 1.0, 2.0], "regression"),
        ([[0.5, 3.0], [1.0, 2.0]], "regression"),
        ([[0.5], [1.0]], "regression"),
    ],
)
def test_labels_tell_the_task(labels: Any, task: str) -> None:
    assert task_of([torch.tensor(labels)]).name == task


@pytest.mark.parametrize("labels", [[[1.0, 0.0], [0.0, 1.0]], [[0.3, 0.7], [0.9, 0.1]]])
def test_what_may_be_classes_is_asked_for(labels: Any) -> None:
    with pytest.raises(UsageError, match="task='regression'"):
        task_of([torch.tensor(labels)])


def test_whole_numbers_are_targets_when_it_is_said() -> None:
    x, y = torch.zeros(4, 2), torch.tensor([3, 1, 4, 1])
    items, _ = collect_both((x, y), (x, y), task="regression")
    assert items.y.dtype == torch.float64
    assert items.y[:, 0].tolist() == [3, 1, 4, 1]
    with pytest.raises(UsageError, match="one class number per item"):
        collect_both((x, y + 0.5), (x, y + 0.5), task="classification")
    with pytest.raises(UsageError, match="expected one of classification, regression"):
        collect_both((x, y), (x, y), task="ranking")
    spoiled = torch.tensor([0.5, 1.0, float("nan"), 2.0])
    with pytest.raises(UsageError, match="NaN or infinity in the targets of 1 items, the first at index 2"):
        collect_both((x, spoiled), (x, y), task="regression")


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    train, test = waves(20)
    model = network(classes=3)
    with pytest.raises(UsageError, match="has 1 real targets per item, and the network has 3 outputs"):
        ns.xray(model, train, test, tmp_path / "a", progress=False)
    far = Part(train.x, train.y * 1000), Part(test.x, test.y * 1000)
    with pytest.raises(UsageError, match="unit, the scale"):
        ns.xray(network(classes=1), *far, tmp_path / "b", progress=False)
    whole = Part(train.x, torch.arange(20.0)), Part(test.x, torch.arange(20.0))
    with pytest.raises(UsageError, match="task='regression'"):
        ns.xray(network(classes=1), *whole, tmp_path / "c", progress=False)
    constant = Part(train.x, torch.full((20,), 0.5)), test
    with pytest.raises(UsageError, match="same target for every item"):
        ns.xray(network(classes=1), *constant, tmp_path / "d", progress=False)


# -- the page -------------------------------------------------------------------------------------------------------------


def test_every_section_is_done_or_says_why_not(two: Any) -> None:
    record, *_ = two
    found = states(record)
    for name in ("confusion", "tangent"):
        assert found.pop(name) == "skipped"
        assert "not for regression" in record.metrics[f"section:{name}"]["why"]
    assert set(found.values()) == {"done"}
    assert {"output_summary", "output_surrogates", "output_explain", "output_problems", "kernel", "layers"} <= set(
        found
    )
    assert not {"summary", "surrogates", "explain", "problems"} & set(found)
    page = ns.report.write_page(record.folder).read_text()
    assert "undrawn" not in page.replace(".undrawn", "")
    assert "&lt;i&gt;wave" in page
    assert "<i>wave" not in page
    assert "R² of the network" in page
    assert "accuracy" not in page.partition("<script")[0].lower()


def test_figures_are_those_of_the_network(two: Any) -> None:
    record, model, _, test = two
    found = found_in(summary.SECTION, record)
    assert found is not None
    with torch.no_grad():
        missed = (model(test.x) - test.y).double().numpy()
    spread = test.y.double().numpy()
    r2 = 1 - np.square(missed).sum(0) / np.square(spread - spread.mean(0)).sum(0)
    assert [one.r2 for one in found.outputs] == pytest.approx(r2.tolist(), abs=1e-5)
    assert [one.rmse for one in found.outputs] == pytest.approx(np.sqrt(np.square(missed).mean(0)).tolist(), rel=1e-5)
    assert found.r2 == pytest.approx(r2.mean(), abs=1e-5)
    assert found.trust in ("high", "medium")
    assert {item.what for item in found.evidence} >= {"linearisation error", "increase in alignment"}
    rows = found_in(surrogates.SECTION, record)
    assert rows is not None
    assert rows.explained is not None
    assert {(row.kernel, row.target) for row in rows.table} == {
        (kernel, target) for kernel in ("trntk", "trntk0", "ck") for target in ("outputs", "targets")
    }
    assert [row.trivial for row in rows.table if row.kernel == "ck"] == [True, False]
    assert rows.explained.worst_r2 > 0.8


def test_terms_add_up_and_removals_are_real_refits(two: Any) -> None:
    record, *_ = two
    found = found_in(explain.SECTION, record)
    assert found is not None
    arrays = {name: np.asarray(record.arrays[name], dtype=np.float64) for name in record.arrays if "thumbs" not in name}
    K, near = arrays["kernels.trntk0.train"], arrays["kernels.trntk0.test"]
    own = np.sqrt(np.diag(K))
    raw_near, unit = near, np.diag(K).mean()
    if found.main == "trntk":
        raw_near, unit = near / np.outer(np.sqrt(arrays["kernels.trntk0.test_diagonal"]), own), 1.0
    assert found.main in ("trntk", "trntk0")
    coef = arrays[f"surrogates.coef.{found.main}.outputs"]
    terms = coef[:, None, :-1] * raw_near[None] / unit  # (outputs, items, points)
    made = terms.sum(2).T + coef[:, -1]
    np.testing.assert_allclose(made[list(found.items)], arrays["output_explain.surrogate"], rtol=1e-4, atol=1e-4)
    K = K / np.outer(own, own)
    near = near / np.outer(np.sqrt(arrays["kernels.trntk0.test_diagonal"]), own)
    y = arrays["targets.train"] - arrays["targets.train"].mean(0)
    alpha = np.diag(K).mean()
    for t, item in list(enumerate(found.items))[:2]:
        for place, output in enumerate(found.chosen[t]):
            expected = terms[output, item]
            first = int(arrays["output_explain.top_index"][t, place, 0])
            assert first == int(np.abs(expected).argmax())
            assert arrays["output_explain.top_value"][t, place, 0] == pytest.approx(expected[first], rel=1e-3, abs=1e-4)
            whole = near[item] @ np.linalg.solve(K + alpha * np.eye(len(K)), y[:, output])
            effects = []
            for i in range(len(K)):
                rest = np.delete(np.arange(len(K)), i)
                left = near[item, rest] @ np.linalg.solve(
                    K[np.ix_(rest, rest)] + alpha * np.eye(len(rest)), y[rest, output]
                )
                effects.append(whole - left)
            order = np.argsort(-np.abs(effects), kind="stable")[: found.k]
            size = float(np.abs(effects).max())
            np.testing.assert_allclose(
                np.abs(arrays["output_explain.influence_value"][t, place]), np.abs(effects)[order], atol=2e-5 * size
            )
            i = int(arrays["output_explain.influence_index"][t, place, 0])
            assert arrays["output_explain.influence_value"][t, place, 0] == pytest.approx(effects[i], abs=2e-5 * size)


def test_a_wrong_target_is_found(two: Any) -> None:
    record, _, train, _ = two
    found = found_in(problems.SECTION, record)
    assert found is not None
    assert (found.listed[0].original, found.listed[0].output) == (7, 0)
    assert found.listed[0].score > found.threshold
    assert found.listed[0].predicted == pytest.approx(float(train.y[7, 0]) - 5.0, abs=1.0)
    assert 1 <= found.doubtful <= 6


def test_it_is_resumed_and_not_compared(two: Any, tmp_path: Path) -> None:
    record, model, train, test = two
    said: list[str] = []
    options: dict[str, Any] = {"kernels": ["ck"], "classes": ["<i>wave", "line"], "progress": False, "say": said.append}
    initial = regressed(waves(outputs=2)[0])[0]
    assert ns.xray(model, train, test, record.folder, initial=initial, **options).folder == record.folder
    assert any("already holds this X-ray" in line for line in said)
    with pytest.raises(UsageError, match="X-ray of a regression"):
        compare(record, record, tmp_path / "both")


# -- surrogates and trust -------------------------------------------------------------------------------------------------


def test_outputs_are_fitted_as_they_are() -> None:
    """Not centred over outputs, as logits are: one output would be nothing."""
    x = torch.linspace(-1, 1, 12, dtype=torch.float64)
    gram = ns.linalg.DenseGram(torch.outer(x, x), symmetric=True)
    pair = KernelPair("linear", gram, ns.linalg.DenseGram(torch.outer(x[:3], x)))
    for target, given in (("targets", {"y": 5 + 2 * x}), ("outputs", {"y": None, "network": (5 + 2 * x)[:, None]})):
        machine = fit_machine(pair, given.pop("y"), target=target, **given)
        np.testing.assert_allclose(machine.scores(pair.test)[:, 0], 5 + 2 * x[:3], atol=1e-5)
    with pytest.raises(UsageError, match="one row per training input"):
        fit_machine(pair, np.zeros((5, 1)), target="targets")
    with pytest.raises(UsageError, match="without network="):
        fit_machine(pair, None, target="outputs")


@pytest.mark.guard
@pytest.mark.parametrize("seed", range(3))
def test_trust_follows_how_faithful_the_surrogate_is(tmp_path: Path, seed: int) -> None:
    """High or medium for trained networks; "do not trust" for one that its kernel on a few items cannot follow."""
    train, test = waves(150, seed=seed)
    _, model = regressed(train, width=64, steps=400, seed=seed)
    record = ns.xray(model, train, test, tmp_path / "good", kernels=["ck"], progress=False)
    good = found_in(summary.SECTION, record)
    assert good is not None
    assert good.trust in ("high", "medium")

    class Steep(nn.Module):
        """Linear in 512 features that change over a thirtieth of the data's spread: 30 points say little of the others."""

        def __init__(self) -> None:
            super().__init__()
            draw = generator(seed, "steep")
            self.layer, self.readout = nn.Linear(5, 512), nn.Linear(512, 1)
            with torch.no_grad():
                self.layer.weight.copy_(30 * torch.randn(512, 5, generator=draw))
                self.layer.bias.copy_(3 * torch.rand(512, generator=draw))
                self.readout.weight.copy_(0.05 * torch.randn(1, 512, generator=draw))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.readout(torch.sin(self.layer(x)))

    bad = ns.xray(Steep(), train, test, tmp_path / "bad", kernels=["ck"], max_train=30, untrained=True, progress=False)
    found = found_in(summary.SECTION, bad)
    assert found is not None
    assert found.trust == "do not trust"
