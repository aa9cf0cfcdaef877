"""Orthant symmetry: the contract, the tables' arithmetic, networks taken from another record, and verdicts that can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract, readings
from contracts.made_up import REMOVED, Changes, made_up
from ntkscope.core import Record, UsageError
from ntkscope_papers.balakrishnan_2023.orthants import networks as store
from ntkscope_papers.balakrishnan_2023.orthants.arithmetic import implied_counts, recovered_counts
from ntkscope_papers.balakrishnan_2023.orthants.networks import logits
from ntkscope_papers.balakrishnan_2023.orthants.orthant_symmetry import OrthantSymmetry
from ntkscope_papers.balakrishnan_2023.orthants.readings import DEPTHS, shown_orthants
from ntkscope_papers.framework import Run

READINGS = readings("orthant-symmetry")
SMALL = given(
    depths=(1, 3),
    widths=(8,),
    decays=(0.0,),
    grid_epochs=1,
    epochs=2,
    patience=1,
    empties=(2,),
    sparse=(2,),
    coverage_steps=10,
    coverage_patience=10,
    kernel_seeds=1,
    costs=(0.01, 1.0),
    gammas=(1.0,),
)


@pytest.mark.guard
class TestOrthantSymmetry(ExperimentContract):
    name = "orthant-symmetry"
    tiny = SMALL
    identities = ("relu-ntk-definition", "relu-t1-ci-implied-n", "relu-t2-ci-wilson")


def test_table_1_implies_50000_items_everywhere() -> None:
    found = implied_counts()
    assert found["entries"] == 17
    assert found["empty"] == pytest.approx([50000, 50010, 50002, 50015, 50007, 50003, 50015], rel=1e-4)
    assert found["largest deviation from 50,000"] < 0.003


def test_table_2_has_wilson_centres() -> None:
    found = recovered_counts()
    assert list(found["counts of 500"].values()) == [66, 471, 16, 399, 495, 440, 15, 488, 495]
    assert found["entries as printed"] == found["whole counts"] == found["entries"] == 9
    assert found["entries of 0 ± 0 or 1 ± 0"] == 11


# -- networks of another record ---------------------------------------------------------------------------------------------


def a_run(folder: Path, **changes: Any) -> Run:
    sizes = {"dimension": 4, "per_class": 10, "test_per_class": 5, "widths": (4,), "rates": (1e-2,), "decays": (0.0,)}
    config = OrthantSymmetry(**{**sizes, "folds": 2, "grid_epochs": 1, "epochs": 2, "seeds": 2, **changes})
    settings, seeds = config.settings(), {"seed": 0}
    record = Record.create(folder, kind="experiment", name="orthant-symmetry", config=settings, seeds=seeds)
    return Run(config, record, torch.device("cpu"), None, 0, progress=False)


def networks(run: Run, depth: int, arms: tuple[str, ...]) -> dict[str, list[torch.nn.Module]]:
    assert isinstance(run.experiment, OrthantSymmetry)
    return run.experiment.networks(run, depth, *arms)


@pytest.mark.guard
def test_networks_are_taken_from_another_record_and_are_those_trained_alone(tmp_path: Path) -> None:
    first = a_run(tmp_path / "first")
    arms = networks(first, 2, ("plain", "near", "far"))
    assert not list((tmp_path / "first" / "networks").glob("unfinished*"))
    second = a_run(tmp_path / "second", networks_from=str(tmp_path / "first"))
    taken = networks(second, 2, ("plain",))["plain"]
    assert second.record.metrics["training/plain/2"]["networks in the call"] == 6
    alone = networks(a_run(tmp_path / "third"), 2, ("plain",))["plain"]
    x = torch.randn(5, 4)
    for a, b, c, swapped in zip(arms["plain"], taken, alone, arms["near"]):
        assert torch.equal(logits(a, x), logits(b, x))
        torch.testing.assert_close(logits(c, x), logits(a, x), atol=1e-5, rtol=1e-4)
        assert not torch.allclose(logits(swapped, x), logits(a, x))


@pytest.mark.guard
def test_a_run_killed_while_networks_are_stored_trains_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first arm is on disk, the second is not: only what is missing is trained, and all is as in one go."""
    whole = networks(a_run(tmp_path / "whole"), 1, ("plain", "near"))
    run, kept = a_run(tmp_path / "killed"), store.save_tensors

    def dies(tensors: Any, path: Path) -> None:
        if path.name.startswith("near"):
            raise KeyboardInterrupt
        kept(tensors, path)

    monkeypatch.setattr(store, "save_tensors", dies)
    with pytest.raises(KeyboardInterrupt):
        networks(run, 1, ("plain", "near"))
    monkeypatch.setattr(store, "save_tensors", kept)
    folder = tmp_path / "killed" / "networks"
    before = (folder / "plain-1.safetensors").stat().st_mtime_ns
    again = networks(run, 1, ("plain", "near"))
    assert (folder / "plain-1.safetensors").stat().st_mtime_ns == before
    assert sorted(path.name for path in folder.iterdir()) == ["near-1.safetensors", "plain-1.safetensors"]
    assert run.record.metrics["training/near/1"]["networks in the call"] == 2
    x = torch.randn(5, 4)
    for arm in ("plain", "near"):
        for a, b in zip(whole[arm], again[arm]):
            torch.testing.assert_close(logits(a, x), logits(b, x), atol=1e-5, rtol=1e-4)


def test_networks_trained_again_are_the_same_or_refused(tmp_path: Path) -> None:
    """In a call of another size, on a GPU, they may differ: then the record's results are not of them."""
    run = a_run(tmp_path / "run", depths=(1,))
    networks(run, 1, ("plain",))
    told, path = dict(run.record.metrics["training/plain/1"]), tmp_path / "run" / "networks" / "plain-1.safetensors"
    first = path.read_bytes()
    path.unlink()
    networks(run, 1, ("plain",))
    assert path.read_bytes() == first
    assert run.record.metrics["training/plain/1"]["weights"] == told["weights"]
    run.record.put(**{"training/plain/1": {**told, "weights": "of another"}})
    path.unlink()
    with pytest.raises(UsageError, match=r"network plain/1 has weights .*, expected of another"):
        networks(run, 1, ("plain",))


def test_networks_of_other_settings_are_refused(tmp_path: Path) -> None:
    a_run(tmp_path / "first")
    second = a_run(tmp_path / "second", networks_from=str(tmp_path / "first"), epochs=3)
    with pytest.raises(UsageError, match="epochs=2; expected a record whose networks were trained with the settings"):
        networks(second, 2, ("plain",))


# -- verdicts ---------------------------------------------------------------------------------------------------------------

EMPTY = {1: 0.74, 2: 0.6, 3: 0.83, 4: 0.5, 5: 0.5}
REMAINING = {1: 0.93, 2: 0.89, 3: 0.98, 4: 0.9, 5: 0.99}
TANGENT = {1: (0.7, 0.87), 2: (0.54, 0.85), 3: (0.7, 0.73), 4: (0.498, 0.85), 5: (0.5, 0.81)}
CLASS_0 = {1: 0.0, 2: 0.13, 3: 0.8, 4: 0.03, 5: 0.0}
RADII = np.arange(5, 26) / 10


def good() -> dict[str, Any]:
    """Results in which every published statement holds."""
    rows: dict[str, Any] = {
        "arithmetic": {"implied n": implied_counts(), "wilson": recovered_counts()},
        "data": {
            "train": 25400,
            "test": 25600,
            "orthants": 128,
            "largest distance from a shell": 1e-6,
            "training items in the empty orthant": 0,
            "matches by distance of inputs": [[0.0, 1.0]] * 10,
        },
        "definition": {"error": 1e-9, "asymmetry": 0.0, "smallest eigenvalue": -1e-12},
    }
    for depth in DEPTHS:
        rows[f"networks/{depth}"] = {
            "networks": [
                {
                    "seed": seed,
                    "empty": EMPTY[depth] + 0.002 * seed,
                    "remaining": REMAINING[depth],
                    "initial matches": {"hidden": [0.0, 1.0], "logit": [0.5, 0.5]},
                    "matches": {"hidden": [CLASS_0[depth], 0.93], "logit": [0.5, 0.5]},
                }
                for seed in range(10)
            ]
        }
        for seed in range(5):
            machine = {"empty": TANGENT[depth][0], "remaining": TANGENT[depth][1]}
            rows[f"svm/ntk/{depth}/{seed}"] = {"probability": dict(machine), "logit": dict(machine)}
    for seed in range(5):
        rows[f"svm/linear/{seed}"] = {"empty": 0.5, "remaining": 0.5, "kernel": "linear", "C": 1.0}
        rows[f"svm/rbf/{seed}"] = {"empty": 0.5, "remaining": 1.0, "kernel": "γ=1", "C": 1.0}
    return rows


def curves() -> dict[str, np.ndarray]:
    rising = 1 / (1 + np.exp(-4 * (RADII - 1.5)))
    dipping = 1 - 0.9 * np.exp(-20 * (RADII - 1) ** 2)
    found = {"profile-3": np.tile(rising, (10, 128, 1))}
    for seed in range(5):
        found |= {f"share-{reading}-3-{seed}": np.tile(dipping, (128, 1)) for reading in ("logit", "probability")}
    return found


CONFIG = OrthantSymmetry()


def test_all_statements_hold_in_a_made_up_record_that_fits_them() -> None:
    claims = list(CONFIG.judge(made_up(good(), arrays=curves()), ""))
    assert len(claims) == 32
    assert {claim.id: claim.note for claim in claims if claim.verdict != "reproduced"} == {}


def networks_set(depth: int, name: str, value: Any) -> dict[tuple[str, ...], Any]:
    return {(f"networks/{depth}", "networks", "*", name): value}


def machine_set(what: str, column: str, value: float) -> Changes:
    reading = ("probability",) if "ntk" in what else ()
    return {(f"svm/{what}/{seed}", *reading, column): value for seed in range(5)}


def hidden_matches(class_0: float, class_1: float) -> dict[str, list[float]]:
    return {"hidden": [class_0, class_1], "logit": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        ("orthant-data", {("data", "train"): 25399}),
        ("orthant-data", {("data", "largest distance from a shell"): 1e-4}),
        ("orthant-data", {("data", "training items in the empty orthant"): 1}),
        ("raw-distance-class1", {("data", "matches by distance of inputs"): [[0.05, 1.0]]}),
        ("ntk-definition", {("definition", "error"): 1e-4}),
        ("ntk-definition", {("definition", "smallest eigenvalue"): -1e-5}),
        ("t1-linear-svm", machine_set("linear", "remaining", 0.55)),
        ("t1-linear-chance", machine_set("linear", "empty", 0.55)),
        ("t1-rbf-svm", machine_set("rbf", "remaining", 0.98)),
        ("t1-rbf-memorises", machine_set("rbf", "empty", 0.6)),
        ("t1-1nn", networks_set(1, "empty", 0.5)),
        ("t1-2nn", networks_set(2, "remaining", 0.79)),
        ("t1-3nn", networks_set(3, "empty", 0.6)),
        ("t1-4nn", networks_set(4, "empty", 0.75)),
        ("t1-5nn", networks_set(5, "remaining", 0.85)),
        ("t1-1ntk", machine_set("ntk/1", "remaining", 0.99)),
        ("t1-2ntk", machine_set("ntk/2", "empty", 0.95)),
        ("t1-3ntk", machine_set("ntk/3", "empty", 0.99)),
        ("t1-3ntk", machine_set("ntk/3", "remaining", 0.55)),
        ("t1-4ntk", machine_set("ntk/4", "remaining", 0.6)),
        ("t1-5ntk", machine_set("ntk/5", "empty", 0.8)),
        ("t1-nn-at-least-ntk", networks_set(1, "remaining", 0.5) | networks_set(2, "remaining", 0.5)),
        ("t1-3nn-best-empty", networks_set(1, "empty", 0.9)),
        ("t1-3nn-best-empty", machine_set("ntk/5", "empty", 0.95)),
        ("t1-3nn-best-empty", machine_set("rbf", "empty", 0.95)),
        ("deep-nets-chance", networks_set(5, "empty", 0.7)),
        ("remaining-by-depth", networks_set(5, "remaining", 0.94)),
        ("remaining-by-depth", networks_set(2, "remaining", 0.96)),
        ("remaining-by-depth", networks_set(3, "remaining", 0.999)),
        ("t2-d1", networks_set(1, "matches", hidden_matches(0.2, 1.0))),
        ("t2-d2", networks_set(2, "matches", hidden_matches(0.6, 1.0))),
        ("t2-d2", networks_set(2, "initial matches", hidden_matches(0.2, 1.0))),
        ("t2-d3", networks_set(3, "initial matches", hidden_matches(0.2, 1.0))),
        ("t2-d4", networks_set(4, "matches", hidden_matches(0.1, 0.7))),
        ("t2-d4", networks_set(4, "initial matches", hidden_matches(0.0, 0.8))),
        ("t2-d5", networks_set(5, "initial matches", hidden_matches(0.3, 1.0))),
        ("t2-folding-d3", networks_set(4, "matches", hidden_matches(0.65, 1.0))),
    ],
)
def test_a_verdict_follows_what_was_measured(claim: str, changes: Changes) -> None:
    assert READINGS[f"relu-{claim}"](CONFIG, made_up(good(), changes, curves())).holds is False


@pytest.mark.parametrize(
    ("claim", "prefix", "curve"),
    [
        ("fig2-setting", "profile", np.full(21, 1.5)),
        ("fig2-nn-monotone", "profile", np.full(21, 0.5)),
        ("fig2-nn-monotone", "profile", np.linspace(0.5, 0.6, 21)),
        ("fig2-ntk-dip", "share-probability", np.linspace(0, 1, 21)),
        ("fig2-ntk-dip", "share-probability", 1 - 0.9 * np.exp(-3 * (RADII - 1) ** 2)),  # low from the centre on
    ],
)
def test_a_verdict_follows_the_curves(claim: str, prefix: str, curve: np.ndarray) -> None:
    arrays = {k: np.broadcast_to(curve, v.shape) if k.startswith(prefix) else v for k, v in curves().items()}
    assert READINGS[f"relu-{claim}"](CONFIG, made_up(good(), arrays=arrays)).holds is False


def test_one_depth_where_the_machine_is_better_is_no_refutation() -> None:
    record = made_up(good(), networks_set(1, "remaining", 0.5))
    assert READINGS["relu-t1-nn-at-least-ntk"](CONFIG, record).holds


def test_the_logit_stands_beside_the_probability() -> None:
    better_logit = {(f"svm/ntk/3/{seed}", "logit", "remaining"): 0.99 for seed in range(5)}
    reading = READINGS["relu-t1-3ntk"](CONFIG, made_up(good(), better_logit))
    assert reading.holds
    assert "on the logit's it fails" in reading.note


def test_what_our_own_grid_gives_stands_beside_the_settings_of_the_public_code() -> None:
    rows, theirs = good(), good()
    rows["authors/2"] = {**theirs["networks/2"], "chosen": {}}
    rows |= {f"svm/authors/2/{seed}": theirs[f"svm/ntk/2/{seed}"] for seed in range(5)}
    own = networks_set(2, "matches", hidden_matches(0.75, 1.0)) | machine_set("ntk/2", "empty", 0.95)
    record = made_up(rows, own)
    for claim, word in (("t2-d2", "0.000, 0.750, 1.000, 1.000"), ("t1-2ntk", "empty 0.950, remaining 0.850")):
        reading = READINGS[f"relu-{claim}"](CONFIG, record)
        assert reading.holds
        assert word in reading.note


def test_an_interval_beyond_what_is_asked_for_is_said() -> None:
    record = made_up(good())
    rows = record.metrics["networks/4"]["networks"]
    for row, share in zip(rows, [1.0, *[0.0] * len(rows)]):
        row["matches"]["hidden"] = [share, 1.0]
    reading = READINGS["relu-t2-d4"](CONFIG, record)
    assert reading.holds
    assert "beyond what is asked for: class 0 final" in reading.note


def test_a_machine_is_compared_with_the_network_it_was_made_of() -> None:
    """Networks that were trained again from the same seed may be others than those of the table."""
    trained_again = {(f"svm/ntk/3/{seed}", "network"): {"empty": 0.1, "remaining": 0.2} for seed in range(5)}
    record = made_up(good(), trained_again)
    reading = READINGS["relu-t1-3ntk"](CONFIG, record)
    assert reading.measured["networks of the same seeds"] == {"empty": 0.1, "remaining": 0.2}
    assert reading.holds is False
    gaps = READINGS["relu-t1-nn-at-least-ntk"](CONFIG, record).measured
    assert gaps["probability, depth 3"]["empty"]["estimate"] == pytest.approx(0.1 - TANGENT[3][0])


def test_few_seeds_are_a_stand_in_and_missing_legs_name_the_command() -> None:
    fewer: Changes = {("networks/1", "networks"): good()["networks/1"]["networks"][:2]}
    record = made_up(good(), {**fewer, ("networks/5",): REMOVED, ("definition",): REMOVED}, curves())
    claims = {claim.id: claim for claim in CONFIG.judge(record, "")}
    assert claims["relu-t1-1nn"].verdict == "stand-in"
    assert claims["relu-t1-5nn"].verdict == "not testable here"
    assert '"networks/5"' in claims["relu-deep-nets-chance"].note
    assert '"definition"' in claims["relu-ntk-definition"].note


def test_the_orthants_of_figure_2_are_what_they_are_called() -> None:
    for seed in range(20):
        empty, neighbour, other = shown_orthants(128, seed)
        assert empty == 0
        assert neighbour.bit_count() == 1
        assert other.bit_count() > 1
