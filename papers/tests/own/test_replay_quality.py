"""Replay judged by retraining: the contract, retrainings in the same batches, the ceiling and the paired intervals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record, run_of
from ntkscope.core import Part, numpy_generator
from ntkscope.measures.datamodeling import item_scores
from ntkscope.measures.log_odds import correct_class_log_odds
from ntkscope_papers.own.attribution_methods import Checkpoint, replay_margins
from ntkscope_papers.own.attribution_tasks import Sentences, Task, fewer_words, numbered, task
from ntkscope_papers.own.replay_quality import RECIPES, SHARES, WAYS, ReplayQuality, ceiling, resampled_scores
from ntkscope_papers.own.retraining import retrained_margins
from ntkscope_papers.shared.sentences import build_encoder


@pytest.mark.guard
class TestReplayQuality(ExperimentContract):
    name = "replay-quality"
    tiny = given(tasks=("mlp-digits",), points=30, items=4, epochs=1, subsets=6, mistakes=1, removed=(1,))
    timed = ("mlp-digits",)
    own = True


@pytest.mark.guard
@pytest.mark.parametrize("name", ["lenet-mnist1k", "lenet-mnist1k-smooth", "resnet9-cifar10", "finetuned-cola"])
def test_the_other_tasks_run(name: str, tmp_path: Path) -> None:
    options = {"points": 16, "items": 3, "epochs": 1, "subsets": 6, "seeds": 1, "mistakes": 1, "removed": (1,)}
    record = ns.run("replay-quality", out=tmp_path / "run", device="cpu", tasks=(name,), **options)
    assert record.status == "done"
    for removal in SHARES:
        for method in ReplayQuality().methods:
            row = record.metrics[f"{name}/{removal}/{method}"]["by networks"]["1"]
            assert set(row) == {*WAYS, "seconds"}


def tiny_task(tmp_path: Path) -> tuple[ns.Record, ReplayQuality, Task]:
    config = ReplayQuality.at("smoke", {"points": 40, "items": 5, "epochs": 3})
    record = made_record(tmp_path / "run", "replay-quality")
    return record, config, task("mlp-digits", run_of(config, record), RECIPES)


def test_retrainings_in_the_same_batches_are_those_of_the_loop_one_network_at_a_time(tmp_path: Path) -> None:
    record, config, one = tiny_task(tmp_path)
    masks = np.ones((2, 40), dtype=bool)
    masks[1, ::2] = False
    found = retrained_margins(run_of(config, record, seed=7), one, "tried", masks, 2, 3, same=True)
    for s, r in ((0, 1), (1, 0), (1, 1)):
        kept = torch.from_numpy(masks[s]).float()
        part = Part(one.train.x, one.train.y, {"kept": kept / 40})
        model = one.build(7 + r)
        ns.training.fit(model, part, seed=7 + r, measure=False, weights="kept", **one.how).final()
        with torch.no_grad():
            expected = correct_class_log_odds(model.eval()(one.test.x).double(), one.test.y)
        assert np.allclose(found[s, r], expected, atol=1e-4)  # float32, products of several networks at once
    assert not np.allclose(found[0], found[1], atol=1e-2)


def test_an_encoder_without_the_words_that_do_not_occur_learns_the_same() -> None:
    tokens, mask = torch.tensor([[7, 3, 0], [7, 30, 9]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    part = Part({"input_ids": tokens, "attention_mask": mask}, torch.tensor([0, 1]))
    words, (fewer,) = numbered(part)
    assert words == [0, 3, 7, 9, 30]
    large, small = (Sentences(build_encoder("tiny", 3)) for _ in range(2))
    fewer_words(small.encoder, words)
    for model, own in ((large, part), (small, fewer)):
        ns.training.fit(model, own, optimizer="adamw", weight_decay=0.0, lr=0.1, steps=3, measure=False).final()
    with torch.no_grad():
        assert torch.equal(large(**part.x), small(**fewer.x))
    assert torch.equal(
        large.encoder.embeddings.word_embeddings.weight[words], small.encoder.embeddings.word_embeddings.weight
    )


def test_a_replay_tells_what_its_own_retraining_does_to_few_points(tmp_path: Path) -> None:
    record, config, one = tiny_task(tmp_path)
    checkpoint = Checkpoint(one, one.build(7), 0, 7)
    scores, seconds = replay_margins(checkpoint, None)
    masks = np.ones((9, 40), dtype=bool)
    masks[np.arange(8), np.arange(8)] = False
    margins = retrained_margins(run_of(config, record, seed=7), one, "tried", masks, 1, 9, same=True)[:, 0]
    drops = margins[8] - margins[:8]
    assert np.corrcoef(drops.ravel(), scores[:, :8].T.ravel())[0, 1] > 0.99
    assert seconds > 0


def test_the_ceiling_is_the_noise_of_one_seed_and_of_the_mean_of_the_others() -> None:
    """Signal and noise of one size: the correlation is 1 / √(2 · 5/4) of normal numbers, their ranks' a little less."""
    draw = numpy_generator(0, "test", "ceiling")
    margins = draw.normal(size=(400, 1, 50)) + draw.normal(size=(400, 5, 50))
    rho = 1 / (2 * 1.25) ** 0.5
    assert ceiling(margins) == pytest.approx(6 / np.pi * np.arcsin(rho / 2), abs=0.01)
    assert np.isnan(ceiling(margins[:, :1]))


def test_intervals_are_of_subsets_and_items_drawn_together() -> None:
    draw = numpy_generator(0, "test", "resampled")
    actual = draw.normal(size=(60, 20))
    good, bad = (actual + noise * draw.normal(size=actual.shape) for noise in (0.5, 2.0))
    found = resampled_scores([good, good, bad], actual, 200, 0)
    assert np.array_equal(found[:, 0], found[:, 1])  # the same draw for each
    gap = found[:, 0] - found[:, 2]
    told = (item_scores(good, actual) - item_scores(bad, actual)).mean()
    assert gap.min() < told < gap.max()
    assert np.quantile(gap, 0.025) > 0


def results(lds: float, top: float, gap: tuple[float, float]) -> dict[str, object]:
    """Made results of one task, the same for both removals and ways."""
    config, made = ReplayQuality(), dict[str, object]()
    for removal in SHARES:
        key = f"mlp-digits/{removal}"
        made[f"{key}/retrained"] = {"seconds": 0.0, "ceiling": dict.fromkeys(WAYS, top)}
        rows = {way: {"lds": lds} for way in WAYS}
        for method in config.methods:
            made[f"{key}/{method}"] = {"seconds": 0.0, "by networks": {"5": rows}}
        gaps = {f"{m}, 5": list(gap) for m in config.methods}
        made[f"{key}/intervals"] = {"seconds": 0.0, **{way: {"replay minus": gaps} for way in WAYS}}
    return made


@pytest.mark.parametrize(
    ("lds", "top", "low", "verdicts"),
    [
        (0.86, 0.95, 0.01, ("reproduced", "reproduced")),
        (0.84, 0.95, 0.01, ("not reproduced", "reproduced")),
        (0.77, 0.80, -0.01, ("reproduced", "not reproduced")),
        (0.75, 0.80, 0.01, ("not reproduced", "reproduced")),
    ],
)
def test_verdicts(lds: float, top: float, low: float, verdicts: tuple[str, str], tmp_path: Path) -> None:
    claims = judged(made_record(tmp_path / "run", "replay-quality", **results(lds, top, (low, 0.1))))
    found = [claims[f"own-replay-{which}-mlp-digits"].verdict for which in ("lds", "first-same", "first-other")]
    assert found == [verdicts[0], verdicts[1], verdicts[1]]
    assert claims["own-replay-lds-lenet-mnist5k"].verdict == "not testable here"
    assert 'legs=["lenet-mnist5k/half/retrained"' in claims["own-replay-lds-lenet-mnist5k"].note


def test_one_removal_alone_is_a_part(tmp_path: Path) -> None:
    made = {key: value for key, value in results(0.86, 0.95, (0.01, 0.1)).items() if "/half/" in key}
    claims = judged(made_record(tmp_path / "run", "replay-quality", **made))
    for which in ("lds", "first-same", "first-other"):
        found = claims[f"own-replay-{which}-mlp-digits"]
        assert found.verdict == "stand-in"
        assert "mlp-digits/five-percent/retrained" in found.note


def test_the_tables_of_the_guide_are_those_of_the_record() -> None:
    root = Path(__file__).parents[3]
    record = json.loads((root / "papers/ntkscope_papers/own/results/replay-quality/record.json").read_text("utf-8"))
    page, task = (root / "docs/guides/replay.md").read_text("utf-8"), record["metrics"]

    def table(head: str) -> dict[str, list[str]]:
        rows = page.partition(f"| {head}")[2].partition("\n\n")[0].splitlines()[2:]
        return {
            cells[1].strip(" `"): [cell.strip() for cell in cells[2:-1]] for cells in (row.split("|") for row in rows)
        }

    def score(name: str, method: str, networks: str, way: str) -> str:
        if method == "ceiling":
            return f"{task[f'{name}/half/retrained']['ceiling'][way]:.3f}"
        return f"{task[f'{name}/half/{method}']['by networks'][networks][way]['lds']:.3f}"

    names = [*ReplayQuality().methods, "ceiling"]
    digits, images = table("random halves of 400 digits"), table("random halves, five networks")
    assert set(digits) == set(images) == set(names)
    for method in names:
        counts = ("1", "5")
        expected = [
            "" if method == "ceiling" and k == "5" else score("mlp-digits", method, k, way)
            for way in WAYS
            for k in counts
        ]
        assert digits[method] == expected
        tasks = ("lenet-mnist1k", "lenet-mnist5k")
        assert images[method] == [", ".join(score(name, method, "5", way) for way in WAYS) for name in tasks]
