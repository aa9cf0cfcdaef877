"""Attributions judged by retraining: the contract, the networks' data, and TRAK against its definition."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, made_record, run_of
from ntkscope.core import Part, generator, numpy_generator
from ntkscope.core.records.soundness import DamageWarning
from ntkscope.measures.log_odds import correct_class_log_odds
from ntkscope_papers.framework import Run
from ntkscope_papers.own import trak
from ntkscope_papers.own.attribution_methods import Checkpoint, margin_kernel, methods
from ntkscope_papers.own.attribution_quality import AttributionQuality
from ntkscope_papers.own.attribution_tasks import Task, task
from ntkscope_papers.own.retraining import nearest_groups, reliability, retrained_margins


@pytest.mark.guard
class TestAttributionQuality(ExperimentContract):
    name = "attribution-quality"
    tiny = given(tasks=("mlp-mnist", "minilm-cola"), points=40, items=6, epochs=1, subsets=4, removals=3)
    own = True

    def test_every_method_is_scored_with_one_checkpoint_and_with_all(self, record: ns.Record) -> None:
        record = ns.Record.open(record.folder)  # another test may have replaced its arrays
        for name in AttributionQuality.at("smoke").methods:
            row = record.metrics[f"mlp-mnist/{name}"]["by checkpoints"]
            assert set(row) == {"1", "2"}
            for count, found in row.items():
                items = record.arrays[f"lds-mlp-mnist-{name}-{count}"]
                assert found["lds"] == pytest.approx(items.mean())
                assert found["seconds"] >= 0
                assert {"point", "group"} <= set(found["removal"])
        assert len(record.metrics["mlp-mnist/trak"]["by checkpoints"]["1"]["variants"]) == 4
        assert "group, together" in record.metrics["mlp-mnist/loo-trntk"]["by checkpoints"]["1"]["removal"]

    def test_results_whose_arrays_were_lost_are_computed_again(self, record: ns.Record, tmp_path: Path) -> None:
        before = ns.Record.open(record.folder)
        shutil.copytree(record.folder, tmp_path / "run")
        lost = ("mlp-mnist-halves-0", "lds-mlp-mnist-random-1")
        for name in lost:
            (tmp_path / "run" / f"{name}.npy").unlink()
        with pytest.warns(DamageWarning, match="halves-0"):
            again = self.run(tmp_path / "run")
        for name in lost:
            np.testing.assert_array_equal(again.arrays[name], before.arrays[name])


@pytest.mark.guard
@pytest.mark.parametrize("name", ["cnn-cifar2", "resnet9-cifar10"])
def test_the_convolutional_tasks_run(name: str, tmp_path: Path) -> None:
    some = ("loo-trntk", "gn-entk", "trak", "similarity")
    options = {"points": 24, "items": 4, "epochs": 1, "subsets": 3, "repeats": 1, "checkpoints": 1, "methods": some}
    record = ns.run("attribution-quality", out=tmp_path / "run", device="cpu", tasks=(name,), **options)
    assert record.status == "done"
    assert set(record.metrics[f"{name}/loo-trntk"]["by checkpoints"]) == {"1"}


def tiny_task(tmp_path: Path) -> tuple[Run, Task]:
    config = AttributionQuality.at("smoke", {"points": 40, "items": 5, "epochs": 2})
    run = run_of(config, made_record(tmp_path / "run", "attribution-quality"))
    return run, task("mlp-mnist", run)


def test_margins_are_those_of_networks_trained_alone(tmp_path: Path) -> None:
    run, one = tiny_task(tmp_path)
    masks = np.zeros((2, 40), dtype=bool)
    masks[0, :20], masks[1, 20:] = True, True
    found = retrained_margins(run, one, "halves", masks, 2, 3)
    part = one.train.take(torch.arange(20, 40))
    model = one.build(1_000 + 1_000 + 1)
    ns.training.fit(model, part, seed=1_000 + 1_000 + 1, measure=False, **one.how).final()
    with torch.no_grad():
        expected = correct_class_log_odds(model.eval()(one.test.x).double(), one.test.y)
    assert np.allclose(found[1, 1], expected, atol=1e-3)  # float32, 4 updates in another order of summation
    assert not np.allclose(found[1, 1], found[0, 1], atol=1e-2)
    before = dict(run.record.metrics)
    assert np.array_equal(retrained_margins(run, one, "halves", masks, 2, 3), found)
    assert dict(run.record.metrics) == before  # nothing was trained again
    run.record.discard("mlp-mnist-halves-0")
    assert np.array_equal(retrained_margins(run, one, "halves", masks, 2, 3), found)


def test_groups_are_of_the_class_of_their_item(tmp_path: Path) -> None:
    _, one = tiny_task(tmp_path)
    groups = nearest_groups(one, 5, 3)
    assert (one.train.y.numpy()[groups] == one.test.y.numpy()[:5, None]).all()


def test_the_ceiling_of_noise_is_right_where_it_is_known() -> None:
    """Signal and noise of one size per network: means of 8 have a correlation of √(8/9) with the truth."""
    random = numpy_generator(0, "test", "ceiling")
    margins = random.normal(size=(400, 1, 50)) + random.normal(size=(400, 8, 50))
    assert reliability(margins) == pytest.approx((8 / 9) ** 0.5, abs=0.01)
    assert np.isnan(reliability(margins[:, :1]))


class TestTrak:
    def part(self, n: int, seed: int) -> Part:
        draw = generator(seed, "test", "trak")
        return Part(torch.randn(n, 4, generator=draw), torch.randint(0, 3, (n,), generator=draw))

    def model(self) -> nn.Module:
        return ns.models.build("mlp", in_features=4, classes=3, widths=6, depth=1, seed=0)

    def test_gradients_are_those_of_the_log_odds(self) -> None:
        model, part = self.model(), self.part(3, 0)
        blocks = list(trak.margin_gradients(model, part))
        found, p = (torch.cat(column) for column in zip(*blocks))
        for i in range(3):
            z = model(part.x[i : i + 1])
            chosen = torch.softmax(z, 1)[0, part.y[i]]
            model.zero_grad()
            torch.log(chosen / (1 - chosen)).backward()
            expected = torch.cat([q.grad.flatten() for q in model.parameters()])
            torch.testing.assert_close(found[i], expected, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(p[i], chosen.detach())

    def test_scores_are_the_equation(self) -> None:
        found = trak.features(self.model(), self.part(20, 0), self.part(4, 1), 8, seed=0)
        x, t = found.train.double().numpy(), found.test.double().numpy()
        core = x.T @ x
        expected = t @ np.linalg.inv(core + 0.5 * np.trace(core) / 8 * np.eye(8)) @ x.T
        assert np.allclose(trak.whitened(found, 8, 0.5), expected, rtol=1e-6, atol=1e-9)

    def test_projections_keep_inner_products_on_average(self) -> None:
        exact = trak.features(self.model(), self.part(6, 0), self.part(4, 1), None, 0)
        products = [trak.features(self.model(), self.part(6, 0), self.part(4, 1), 64, s) for s in range(30)]
        mean = torch.stack([f.test @ f.train.T for f in products]).mean(0)
        size = exact.test.norm(dim=1)[:, None] * exact.train.norm(dim=1)
        gap = (mean - exact.test @ exact.train.T).abs() / size
        assert float(gap.max()) < 4 * (2 / (64 * 30)) ** 0.5  # four standard errors of 30 projections to 64


@pytest.mark.guard
def test_every_method_prefers_what_it_should_on_an_easy_case(tmp_path: Path) -> None:
    """Scores of every method but chance are higher, on average, for training points of the item's own class."""
    _, one = tiny_task(tmp_path)
    longer = dataclasses.replace(one, how={**one.how, "epochs": 30})
    model = longer.build(0)
    ns.training.fit(model, longer.train, seed=0, measure=False, **longer.how).final()
    checkpoint = Checkpoint(longer, model.eval(), 0, 0, {"memory": "1GiB"})
    same = checkpoint.y_test[:, None] == checkpoint.y[None]
    for name, method in methods((32,), (0.1,)).items():
        found = list(method([checkpoint], [1]))
        assert found
        for count, scored in found:
            assert (count, scored.scores.shape) == (1, (5, 40))
            if name != "random":
                assert scored.scores[same].mean() > scored.scores[~same].mean(), (name, scored.variant)


def test_the_margin_kernel_is_trak_without_projection(tmp_path: Path) -> None:
    """`κ (K + λ I)⁻¹` between samples is `Φ_x (ΦᵀΦ + λ I)⁻¹ Φᵀ` between parameters."""
    _, one = tiny_task(tmp_path)
    checkpoint = Checkpoint(one, one.build(0).eval(), 0, 0, {"memory": "1GiB"})
    exact = trak.features(checkpoint.model, one.train, one.test, None, 0)
    test, train = exact.test.double(), exact.train.double()
    mean = train.square().sum(1).mean()
    basis = torch.linalg.qr(torch.cat([train, test]).T)[0]  # of what the gradients span: few numbers instead of all
    train, test = train @ basis, test @ basis
    for _, scored in margin_kernel([checkpoint], [1]):
        core = train.T @ train + float(scored.variant.split()[0]) * mean * torch.eye(train.shape[1])
        expected = (test @ torch.linalg.solve(core, train.T)) * exact.doubt
        np.testing.assert_allclose(scored.scores, expected.numpy(), rtol=2e-3, atol=2e-4 * float(expected.abs().max()))
