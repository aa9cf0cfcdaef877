"""Table 8: the contract, the pieces it is measured with, and the verdicts on records made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, made_record, readings
from ntkscope_papers.wang_2023.linear_width import LinearWidth, bulk_distance
from ntkscope_papers.wang_2023.linear_width_claims import CLASSES, TABLE_8, key_of, mostly
from ntkscope_papers.wang_2023.teacher import Case, Student, label_moments, train_case
from ntkscope_papers.wang_2023.teacher_spectra import alignments, beyond, spectra_of, weight_spectrum

CPU = torch.device("cpu")
JUDGED = readings("linear-width", "spectra-")
SMALL = Student(items=60, width=30, dimension=20, test_items=40)


@pytest.mark.guard
class TestLinearWidth(ExperimentContract):
    name = "linear-width"
    tiny = given(
        items=100,
        width=90,
        dimension=60,
        test_items=50,
        seeds=1,
        most=(20, 40, 40, 20, 20),
        expected=(20, 40, 40, 20, 20),
        moments=1,
    )
    identities = tuple(
        f"spectra-{name}"
        for name in ("loss", "ck-definition", "ntk-formula", "lazy-predictor", "activation-constants", "kta")
    )


def test_the_rate_of_half_the_loss_is_half_the_step_of_the_whole() -> None:
    trained = train_case(SMALL, Case("gd", 4.0, None, expected=1, most=1), [3], CPU)
    model = SMALL.network(3)
    part = trained.splits[0].train
    loss = (model(part.x)[:, 0] - part.y).square().sum() / (2 * len(part))  # Eq. 74
    slope = torch.autograd.grad(loss, model.get_parameter("layer1.weight"))[0]
    wanted = model.get_parameter("layer1.weight").detach() - 4.0 * slope
    torch.testing.assert_close(trained.ensemble.params["layer1.weight"][0], wanted)


def test_members_stop_at_the_loss_they_are_trained_on() -> None:
    case = Case("adam", 0.05, 60, expected=100, most=4000, threshold=1e-3)
    found = train_case(SMALL, case, [0, 1], CPU).scores()
    assert all(one["train_mse"] <= 2.1e-3 and one["steps"] < 4000 for one in found)
    assert all(one["not_odd"] < 1e-5 for one in found)
    assert all(one["test_error"] == pytest.approx((1 - one["r2"]) * one["variance"]) for one in found)


def test_formulas_hold_and_the_printed_one_does_not(tmp_path: Path) -> None:
    record = ns.run("linear-width", out=tmp_path / "run", device="cpu", seed=5, legs=("definitions/formulas",))
    found = record.metrics["definitions/formulas"]
    assert found["ck"] < 1e-12
    assert found["ntk"] < 1e-10
    assert found["gradient"] < 1e-10
    assert found["lazy"] < 1e-8
    assert found["ck_printed_in_section_4_1"] > 0.01


def test_spectra_are_those_of_the_matrices() -> None:
    model, split = SMALL.network(1), SMALL.split(1)
    found = spectra_of(model, split, CPU)
    W = model.get_parameter("layer1.weight").detach().double()
    torch.testing.assert_close(found["weights"].values, torch.linalg.svdvals(W).square() / 20)
    x = split.train.x.double()
    hidden = torch.tanh(x @ W.T / 20**0.5) / 0.3942943**0.5 / 30**0.5
    assert float(found["ck"].values.sum()) == pytest.approx(float(hidden.square().sum()), rel=1e-6)
    assert found["ntk"].values[0] > found["ck"].values[0]
    told = alignments(found, split)
    assert 0 <= told["weights"] <= 1
    assert 0 <= told["kta"] <= 1
    assert beyond(torch.tensor([3.0, 2.0, 1.0]), 2.0) == 1


def test_a_planted_direction_is_found_and_the_rest_follows_the_law() -> None:
    draw = torch.Generator().manual_seed(0)
    W = torch.randn(300, 200, generator=draw, dtype=torch.float64)
    beta = torch.zeros(200, dtype=torch.float64)
    beta[0] = 1.0
    planted = W + 3 * torch.outer(torch.randn(300, generator=draw, dtype=torch.float64), beta)
    spectrum = weight_spectrum(planted)
    assert float(spectrum.first[0].abs()) > 0.9
    assert bulk_distance(spectrum) < 0.02
    assert bulk_distance(weight_spectrum(1.1 * W)) > 0.05


def test_label_moments_are_those_of_many_labels() -> None:
    student = Student(items=200_000, width=1, dimension=3, test_items=1, tau=0.2)
    part = student.split(0).train
    z = part.x.double() @ student.split(0).extras["directions"][0].double()
    found = label_moments(student)
    assert float((part.y * z).mean()) == pytest.approx(found["linear"], abs=0.02)
    assert float(part.y.double().square().mean()) == pytest.approx(found["second"], abs=0.03)


def record_of(tmp_path: Path, rows: Mapping[str, Mapping[str, Any]], **more: Any) -> ns.Record:
    """A record with the published numbers of every case, or others."""
    record = made_record(tmp_path, "linear-width", **more)
    for case, row in rows.items():
        variance = row["test_error"] / (1 - row["r2"])
        told = {**row, "variance": variance, "train_mse": 1e-6, "steps": 10, "diverged": False, "not_odd": 0.0}
        record.put(**{key_of(case): {"members": [told] * 5, "moments": []}})
    return record


def test_the_published_rows_reproduce_and_their_order_is_seen(tmp_path: Path) -> None:
    record = record_of(tmp_path, TABLE_8)
    config = LinearWidth()
    for case in ("case1", "lazy"):
        assert JUDGED[f"table8-{case}"](config, record).holds
    assert JUDGED["table8-order"](config, record).holds
    assert JUDGED["large-step-helps"](config, record).holds
    missing = JUDGED["tau-zero"](config, record)
    assert missing.measured is None
    assert "tau-zero/case1" in missing.lacks
    record.put(**{f"tau-zero/{case}": record.metrics[key_of(case)] for case in TABLE_8})
    assert (
        JUDGED["tau-zero"].verdict("linear-width", JUDGED["tau-zero"](config, record)).outcome
        == "reproduced on a stand-in"
    )


@pytest.mark.parametrize(("second", "holds"), [(5.0, True), (5.3, False)])
def test_the_third_case_has_one_spike(second: float, holds: bool, tmp_path: Path) -> None:
    spectra = {"spectra": {"weights": {"top": [6.5, second]}}, "alignment": {"weights": 0.85}}
    record = record_of(tmp_path, {"case3": {**TABLE_8["case3"], **spectra}})
    assert JUDGED["table8-case3"](LinearWidth(), record).holds is holds


def test_no_row_may_pass_the_ceiling_of_an_odd_network(tmp_path: Path) -> None:
    even = {"members": [{"r2": -0.6, "not_odd": 0.0}]}
    rows = {**TABLE_8, "lazy": {"r2": 0.93, "test_error": 0.07}}
    ceiling = JUDGED["odd-network-ceiling"]
    assert ceiling(LinearWidth(), record_of(tmp_path / "one", TABLE_8, even=even)).holds
    assert not ceiling(LinearWidth(), record_of(tmp_path / "two", rows, even=even)).holds


def test_each_number_of_case_2_is_judged(tmp_path: Path) -> None:
    record = record_of(tmp_path, {"case2": {"r2": 0.66, "test_error": 0.34, **still()}})
    reading = JUDGED["table8-case2"](LinearWidth(), record)
    assert not reading.holds
    assert "R² fails, error holds, invariance holds" in reading.note
    assert "contradict" in reading.note


@pytest.mark.parametrize(("ks", "holds"), [(0.0, True), (0.2, False)])
def test_the_spectra_of_case_2_are_judged_too(ks: float, holds: bool, tmp_path: Path) -> None:
    record = record_of(tmp_path, {"case2": {**TABLE_8["case2"], **still(ks)}})
    assert JUDGED["table8-case2"](LinearWidth(), record).holds is holds


@pytest.mark.parametrize(("variance", "holds"), [(1.04, True), (0.94, False)])
def test_labels_without_noise_have_a_variance_near_one(variance: float, holds: bool, tmp_path: Path) -> None:
    rows = {case: {"r2": 0.7, "test_error": 0.3 * variance} for case in TABLE_8}
    assert JUDGED["table8-noise-free-test"](LinearWidth(), record_of(tmp_path, rows)).holds is holds


def still(ks: float = 0.0) -> dict[str, Any]:
    """Spectra that are those of the start, but for the KS distance of the NTK."""
    spectra = {kind: {"ks": ks if kind == "ntk" else 0.0, "top_ratio": 1.0} for kind in ("weights", "ck", "ntk")}
    classes = {kind: {"label": CLASSES["case2"]} for kind in spectra}
    return {"spectra": spectra, "classes": classes}


def test_another_order_is_not_reproduced(tmp_path: Path) -> None:
    swapped = {**TABLE_8, "lazy": TABLE_8["case4"], "case4": TABLE_8["lazy"]}
    assert not JUDGED["table8-order"](LinearWidth(), record_of(tmp_path, swapped)).holds


@pytest.mark.parametrize(("most", "holds"), [(4, True), (3, False)])
def test_a_class_must_be_that_of_most_seeds(most: int, holds: bool) -> None:
    assert mostly({"heavy tail": most, "undecided": 5 - most}, CLASSES["case4"]) is holds


@pytest.mark.parametrize(("adam", "step", "holds"), [(5, 5, True), (5, 4, False), (3, 5, False)])
def test_heavy_tails_hold_with_adam_and_with_one_step_of_adagrad(
    tmp_path: Path, adam: int, step: int, holds: bool
) -> None:
    def members(above: int) -> list[dict[str, Any]]:
        kinds = ("weights", "ck", "ntk")
        ends = {name: {"above": above, "hill": hill} for name, hill in (("spectra", 2.0), ("start", 4.0))}
        classes = {kind: {"label": CLASSES["case4"]} for kind in kinds}
        return [
            {"diverged": False, "classes": classes, **{end: dict.fromkeys(kinds, row) for end, row in ends.items()}}
        ] * 5

    legs = {"table8/case4": adam, "adagrad": 2, "adagrad/0.3": step}
    record = record_of(tmp_path, {}, **{key: {"members": members(above)} for key, above in legs.items()})
    reading = JUDGED["heavy-tail-case4"](LinearWidth(), record)
    assert reading.holds is holds
    assert ("holds with AdaGrad, step 0.3" if step == 5 else "holds with none") in reading.note
