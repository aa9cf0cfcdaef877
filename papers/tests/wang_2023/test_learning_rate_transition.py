"""The step at which a spike appears: the contract, the bracket, and BBP's alignment."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract, made_record
from ntkscope_papers.wang_2023.learning_rate_transition import LearningRateTransition, row_length, stepped, targets_of
from ntkscope_papers.wang_2023.teacher import Student
from ntkscope_papers.wang_2023.teacher_spectra import weight_spectrum
from ntkscope_papers.wang_2023.transition_claims import bracket, implied, kernels_align, near, spiked

PAPER = LearningRateTransition()


@pytest.mark.guard
class TestLearningRateTransition(ExperimentContract):
    name = "learning-rate-transition"
    tiny = given(
        items=100,
        width=90,
        dimension=60,
        test_items=20,
        seeds=1,
        rates=(0.1, 1.0),
        most=40,
        expected=40,
        multiples=(0.5, 2.0),
    )


def test_rates_are_dense_where_the_spike_appears() -> None:
    dense = [rate for rate in PAPER.rates if rate >= 13]
    assert len(PAPER.rates) == 16
    assert all(b / a <= 1.1 for a, b in pairwise(dense))


def run(rate: float, value: float, aligned: float, second: float = 4.9) -> dict[str, Any]:
    return {"rate": rate, "top": {"weights": [value, second]}, "alignment": {"weights": aligned}}


def test_the_bracket_is_the_last_below_and_the_first_above() -> None:
    runs = [run(1, 4.93, 0.02), run(2, 4.95, 0.05), run(3, 5.2, 0.4), run(4, 6.0, 0.75), run(5, 7.2, 0.87)]
    assert bracket(PAPER, runs) == {"below": 2.0, "threshold": pytest.approx(6**0.5), "above": 4.0}
    assert bracket(PAPER, [*runs[:2], run(2.5, 7.0, 0.86), run(3, 5.0, 0.1), *runs[3:]])["above"] == 4.0
    assert bracket(PAPER, [run(1, 6.0, 0.8)]) == {"below": None, "threshold": None, "above": 1.0}
    assert not near(bracket(PAPER, runs))
    close = [run(2.3, 4.93, 0.02), run(2.4, 4.95, 0.3), run(2.5, 5.2, 0.4), run(2.7, 6.0, 0.75)]
    assert near(bracket(PAPER, close))


def test_only_networks_with_one_spike_are_held_to_it() -> None:
    runs = [run(1, 4.93, 0.02), run(2, 7.2, 0.86), run(3, 9.0, 0.9, second=1.1 * PAPER.edge)]
    (found,) = spiked(PAPER, runs)
    assert found["implied"] == pytest.approx(0.87, abs=0.01)


@pytest.mark.parametrize(("at_22", "holds"), [(0.9, True), (0.5, False)])
def test_kernels_are_judged_at_the_step_of_case_3(at_22: float, holds: bool, tmp_path: Path) -> None:
    aligned = {1.0: (4.9, 0.1), 22.0: (6.5, at_22), 24.0: (9.0, 0.95)}
    runs = [
        {"rate": rate, "seed": 0, "diverged": False, "top": {"weights": [top, 4.9]}, "alignment": {"ck": ck, "ntk": ck}}
        for rate, (top, ck) in aligned.items()
    ]
    start = {"runs": [{"alignment": {"ck": 0.1, "ntk": 0.1}}]}
    record = made_record(tmp_path, "learning-rate-transition", rates={"runs": runs}, start=start)
    reading = kernels_align(PAPER, record)
    assert (reading.holds, reading.measured["rate"]) == (holds, 22.0)


def test_the_implied_alignment_is_that_of_a_planted_direction() -> None:
    draw = torch.Generator().manual_seed(4)
    config = LearningRateTransition(width=900, dimension=600)
    beta = torch.nn.functional.normalize(torch.randn(600, generator=draw, dtype=torch.float64), dim=0)
    left = torch.randn(900, generator=draw, dtype=torch.float64)
    W = torch.randn(900, 600, generator=draw, dtype=torch.float64) + 1.6 * torch.outer(left, beta)
    spectrum = weight_spectrum(W)
    assert implied(config, float(spectrum.values[0])) == pytest.approx(float((spectrum.first @ beta).abs()), abs=0.03)


def test_one_step_is_a_step_on_the_published_loss_from_zero() -> None:
    student = Student(items=40, width=12, dimension=8, test_items=5)
    model, split = student.network(2), student.split(2)
    part = targets_of(model, split, kept=False)
    W = stepped(student, 2, part, [3.0], torch.device("cpu"))[0]
    residual = part.y - model(part.x)[:, 0]
    torch.testing.assert_close(residual.detach(), split.train.y, atol=1e-5, rtol=1e-5)  # f₀ taken out
    loss = residual.square().sum() / (2 * len(part))
    slope = torch.autograd.grad(loss, model.get_parameter("layer1.weight"))[0]
    torch.testing.assert_close(W, model.get_parameter("layer1.weight").detach() - 3.0 * slope, atol=1e-5, rtol=1e-4)
    v = model.get_parameter("readout.weight").detach()[0]
    before, after = row_length(model.get_parameter("layer1.weight"), model), row_length(W, model)
    assert before == pytest.approx(
        float((v @ model.get_parameter("layer1.weight").detach()).square().sum() / v.square().sum() / 8)
    )
    assert after != pytest.approx(before, rel=1e-3)
