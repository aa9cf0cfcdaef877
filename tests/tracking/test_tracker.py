"""The tracker: training is the same with and without it, and what it writes is what the network was."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import Part, Record, UsageError
from ntkscope.core.errors import RecordError
from ntkscope.tracking import LogSpaced
from ntkscope.tracking.probe import as_probe
from tracking.runs import EVERYTHING, data, network, rows, tracker, train

# -- training is untouched ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, *(pytest.param(o, marks=pytest.mark.guard) for o in ({"accumulate": 2}, {"autocast": True}))],
    ids=str,
)
def test_training_is_the_same_to_the_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    """BatchNorm's buffers, Dropout's random states, momentum, gradients, modes and flags included."""
    expected = train(network(), **options)
    model = network()
    with tracker(model, tmp_path / "run", watch=EVERYTHING) as watching:
        found = train(model, lambda loss, _: watching.step(loss), **options)
    assert found == expected
    assert [row["step"] for row in rows(tmp_path / "run", "moments")] == [0, 1, 2, 3, 5, 8]


def test_canary_the_comparison_sees_what_moves(tmp_path: Path) -> None:
    model = network()
    assert train(model, lambda loss, step: torch.rand(1)) != train(network())
    model = network()
    assert train(model, lambda loss, step: model(data()[0])) != train(network())  # moves BatchNorm's buffers


def test_inside_autocast_and_without_gradients(tmp_path: Path) -> None:
    model = network()
    watching = tracker(model, tmp_path / "run", watch=("ck", "trntk"), when=[1], total=1)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        watching.step(1.0)
    watching.close()
    first, second = rows(tmp_path / "run", "spectra", ("moment", "step"))[:2], rows(tmp_path / "run", "spectra")[2:]
    assert [row["values"] for row in first] == [row["values"] for row in second]  # nothing was trained


@pytest.mark.guard
def test_a_compiled_network(tmp_path: Path) -> None:
    expected = network()
    train(expected, run=torch.compile(expected, backend="eager"))
    model = network()
    compiled = torch.compile(model, backend="eager")
    with tracker(compiled, tmp_path / "run") as watching:
        train(model, lambda loss, _: watching.step(loss), run=compiled)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), expected.state_dict().values()))
    torch.compiler.reset()


def test_fit_with_a_tracker(tmp_path: Path) -> None:
    part = Part(*data())
    how: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "steps": 8, "batch_size": 6}
    expected = ns.training.fit(network(), part, **how).final()
    model = network()
    watching = tracker(model, tmp_path / "run", when=LogSpaced(4))
    final = ns.training.fit(model, part, **how, on_step=watching.on_step).final()
    watching.close()
    assert all(torch.equal(final.params[name], value) for name, value in expected.params.items())
    assert all(torch.equal(final.buffers[name], value) for name, value in expected.buffers.items())
    moments = rows(tmp_path / "run", "moments")
    assert [row["step"] for row in moments] == [0, 1, 2, 4, 8]
    assert moments[0]["loss"] is None
    assert all(math.isfinite(row["loss"]) for row in moments[1:])


def test_only_the_first_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    model = network()
    with tracker(model, tmp_path / "run") as watching:
        assert train(model, lambda loss, _: watching.step(loss)) == train(network())
    assert watching.record is None
    assert not (tmp_path / "run").exists()


@pytest.mark.guard
def test_distributed_data_parallel(tmp_path: Path) -> None:
    expected = train(network())
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = network()
        parallel = nn.parallel.DistributedDataParallel(model)
        with tracker(parallel, tmp_path / "run") as watching:
            found = train(model, lambda loss, _: watching.step(loss), run=parallel)
    finally:
        torch.distributed.destroy_process_group()
    assert found["weights"] == expected["weights"]
    assert len(rows(tmp_path / "run", "moments")) == 6


# -- what is written ---------------------------------------------------------------------------------------------------


def test_the_rows_are_what_the_network_was(tmp_path: Path) -> None:
    model, kept = network(), {0: copy.deepcopy(network()).eval()}

    def told(loss: Tensor, step: int) -> None:
        watching.step(loss)
        kept[step] = copy.deepcopy(model).eval()
        losses[step] = float(loss.detach())

    losses: dict[int, float] = {}
    watching = tracker(model, tmp_path / "run", watch=EVERYTHING)
    train(model, told)
    watching.close()
    record = Record.open(tmp_path / "run")
    assert (record.kind, record.status, record.metrics["moments"], record.metrics["end_measured"]) == (
        "tracking",
        "done",
        6,
        True,
    )
    moments = list(record.series("moments"))
    assert [set(row) for row in moments] == [
        {"moment", "step", "loss", "seconds", "cost", "probe_items", "waited"}
    ] * len(moments)
    assert [row["loss"] for row in moments[1:]] == [pytest.approx(losses[row["step"]]) for row in moments[1:]]
    probe = as_probe(data(12, 1), 0)
    before: dict[str, tuple[int, np.ndarray]] = {}
    spectra = {(row["step"], row["of"]): row for row in record.series("spectra")}
    aligned = {(row["step"], row["of"]): row for row in record.series("alignment")}
    for step in (0, 1, 2, 3, 5, 8):
        for name in ("0.weight", "5.weight", "7.weight"):
            row = spectra[step, f"weights:{name}"]
            W = kept[step].get_parameter(name).detach().flatten(1).double()
            np.testing.assert_allclose(row["values"], torch.linalg.svdvals(W), rtol=2e-7)
            assert (row["kind"], row["shape"], row["left_out"]) == ("singular", list(W.shape), 0)
        for name in ("ck", "trntk"):
            K = ns.kernel(name, kept[step], probe.x).dense().double().numpy()
            values, vectors = np.linalg.eigh(K)
            row = spectra[step, name]
            np.testing.assert_allclose(row["values"], values[::-1], rtol=1e-5, atol=1e-5 * values[-1])
            found = aligned[step, name]
            Y = np.eye(3)[probe.y]
            assert found["kta"] == pytest.approx(
                np.sum(K * (Y @ Y.T)) / np.linalg.norm(K) / np.linalg.norm(Y @ Y.T), rel=1e-5
            )
            assert found["cumulative_power"][-1] == pytest.approx(1, abs=1e-6)  # of all twelve
            assert found["cumulative_power"][0] == pytest.approx(((vectors[:, -1] @ Y) ** 2).sum() / 12, abs=1e-4)
            if name in before:
                then, K0 = before[name]
                speed = np.linalg.norm(K / np.linalg.norm(K) - K0 / np.linalg.norm(K0)) / (step - then)
                assert found["velocity"] == pytest.approx(speed, rel=1e-3, abs=1e-6)
            else:
                assert "velocity" not in found
            before[name] = (step, K)


def test_long_spectra_are_cut_and_say_so() -> None:
    from ntkscope.tracking.weights import spectrum_row

    values = torch.linspace(1, 0, 5001, dtype=torch.float64)
    row = spectrum_row(values)
    assert len(row["values"]) + row["left_out"] == 5001
    assert len(row["values"]) <= 2000
    assert row["values"][:50] == pytest.approx(values[:50].tolist(), rel=1e-6)
    assert row["values"] == sorted(row["values"], reverse=True)
    assert row["values"][-1] == 0.0
    assert np.median(row["values"][50:]) == pytest.approx(0.495, abs=0.01)  # the shape stays


def test_a_probe_without_labels_and_other_kernels(tmp_path: Path) -> None:
    model = network()
    with tracker(model, tmp_path / "run", probe=data(12, 1)[0], watch=("trntk0", "alignment")) as watching:
        train(model, lambda loss, _: watching.step(loss))
    assert {row["of"] for row in rows(tmp_path / "run", "spectra")} == {"trntk0"}
    assert set(rows(tmp_path / "run", "alignment")[-1]) == {"moment", "step", "of", "velocity"}


def test_what_is_not_finite_is_recorded_and_training_goes_on(tmp_path: Path) -> None:
    model = network()
    with tracker(model, tmp_path / "run", when=[1, 2], total=2) as watching:
        with torch.no_grad():
            model[5].weight[0, 0] = torch.nan
        watching.step(torch.tensor(math.nan))
        with torch.no_grad():
            model[5].weight[0, 0] = 0.0
        watching.step(math.inf)
    moments = rows(tmp_path / "run", "moments")
    assert math.isnan(moments[1]["loss"])
    assert moments[2]["loss"] == math.inf
    assert "NaN" in moments[1]["note"]
    broken = {row["of"]: row for row in rows(tmp_path / "run", "spectra") if row["step"] == 1}
    assert broken["weights:5.weight"]["values"] == []
    assert broken["weights:5.weight"]["left_out"] == 8
    assert "NaN" in broken["weights:5.weight"]["note"]
    assert broken["weights:0.weight"]["values"]
    assert broken["ck"]["values"] == []
    assert all(row["values"] for row in rows(tmp_path / "run", "spectra") if row["step"] == 2)


def test_directions_are_compared_with_singular_vectors() -> None:
    from ntkscope.tracking.weights import alignments, directions_for

    draw = torch.Generator().manual_seed(0)
    W, D, left = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((7, 5), (5, 2), (7, 1)))
    expected = [[abs(float(nn.functional.cosine_similarity(w, d, dim=0))) for d in D.T] for w in W]
    torch.testing.assert_close(
        alignments(nn.functional.normalize(W, dim=1).T, D), torch.tensor(expected, dtype=torch.float64)
    )
    chosen = {"a": W, "b": W.T.clone()}
    assert set(directions_for(D, chosen)) == {"a"}
    assert set(directions_for({"b": left}, chosen)) == {"b"}
    with pytest.raises(UsageError, match="4 entries, which no watched matrix"):
        directions_for(torch.ones(4), chosen)
    with pytest.raises(UsageError, match="column of zeros"):
        directions_for(torch.zeros(5), chosen)


def test_spikes_and_their_directions(tmp_path: Path) -> None:
    """A planted direction is found, at the right place and in the right units; a layer of few values is undecided."""
    draw = torch.Generator().manual_seed(0)
    beta = torch.randn(80, generator=draw)
    model = nn.Sequential(nn.Linear(80, 60), nn.ReLU(), nn.Linear(60, 3))
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(60, 80, generator=draw))
        model[2].weight.zero_()
    probe = (torch.randn(60, 80, generator=draw), torch.arange(60) % 3)
    watching = tracker(
        model, tmp_path / "run", probe=probe, directions=beta, when=[1], total=1, watch=("weights", "ck")
    )
    with torch.no_grad():
        model[0].weight.add_(torch.outer(torch.randn(60, generator=draw).sign(), 5 * beta / beta.norm()))
        model[2].weight.normal_(generator=draw)
    watching.step(1.0)
    watching.close()
    found = {(row["step"], row["of"]): row for row in Record.open(tmp_path / "run").series("spikes")}
    before, after = found[0, "weights:0.weight"], found[1, "weights:0.weight"]
    assert (before["label"], before["count"], before["alignments"]) == ("invariant bulk", 0, [])
    assert (after["label"], after["count"]) == ("bulk + spikes", 1)
    assert after["values"][0] == pytest.approx(float(torch.linalg.matrix_norm(model[0].weight.detach(), 2)), rel=0.01)
    assert after["values"][0] > after["edge"] > 10
    assert after["alignments"][0][0] == pytest.approx(after["overlaps"][0][1], abs=0.03)
    assert (0, "weights:2.weight") not in found  # all zero: there is no test for it
    assert found[1, "weights:2.weight"] == {
        "moment": 1,
        "step": 1,
        "of": "weights:2.weight",
        "label": "undecided",
        "count": 0,
    }
    assert found[1, "ck"]["label"] == "bulk + spikes"
    assert len(found[1, "ck"]["values"]) == found[1, "ck"]["count"] > 0


class Writer:
    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[float, int]]] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.seen.setdefault(name, []).append((value, step))


def test_tensorboard(tmp_path: Path) -> None:
    model, writer = network(), Writer()
    with tracker(model, tmp_path / "run", tensorboard=writer) as watching:
        train(model, lambda loss, _: watching.step(loss))
    found = [row for row in rows(tmp_path / "run", "alignment") if row["of"] == "ck"]
    assert writer.seen["ntkscope/ck/kta"] == [(row["kta"], row["step"]) for row in found]
    assert [step for _, step in writer.seen["ntkscope/weights:0.weight/largest"]] == [0, 1, 2, 3, 5, 8]
    with pytest.raises(UsageError, match="add_scalar"):
        tracker(model, tmp_path / "other", tensorboard=3)


# -- the share of the time ---------------------------------------------------------------------------------------------


def test_a_measurement_that_is_not_earned_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    watching = tracker(model, tmp_path / "run", when=[1], total=None, overhead=0.5)
    now = [1000.0]
    watching._budget.clock = lambda: now[0]
    watching._budget.start = now[0] - watching._budget.spent
    watching.step(1.0)
    assert watching._measured == 0
    cost = watching._budget.spent
    now[0] += cost  # half of it is earned
    watching.step(1.0)
    assert watching._measured == 0
    now[0] += 4 * cost
    watching.step(1.0)
    assert watching._measured == 3
    watching.step(1.0)
    now[0] -= 5 * cost
    watching.close()
    moments = rows(tmp_path / "run", "moments", ())
    assert [(row["step"], row["waited"]) for row in moments] == [(0, 0), (3, 2), (4, 0)]  # the end does not wait


@pytest.mark.parametrize("steps", [1, 3])
def test_the_shortest_run_has_a_start_and_an_end(steps: int, tmp_path: Path) -> None:
    model = network()
    with tracker(model, tmp_path / "run", when=[], total=None, overhead=1e-9) as watching:
        train(model, lambda loss, _: watching.step(loss), steps=steps)
    assert [row["step"] for row in rows(tmp_path / "run", "moments")] == [0, steps]
    assert Record.open(tmp_path / "run").metrics["end_measured"] is True


def test_it_is_shown_on_one_line(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with ns.Tracker(model, torch.randn(8, 2), tmp_path / "run", watch="weights") as tracker:
        assert repr(tracker) == f"Tracker(Sequential: {tmp_path / 'run'}, moments: 1)"


def test_a_run_that_had_ended_keeps_its_end(tmp_path: Path) -> None:
    model = network()
    with tracker(model, tmp_path / "run") as watching:
        train(model, lambda loss, _: watching.step(loss))
    tracker(network(), tmp_path / "run").close()  # the same script again: nothing is left to train
    assert [row["step"] for row in rows(tmp_path / "run", "moments")] == [0, 1, 2, 3, 5, 8]
    assert Record.open(tmp_path / "run").metrics["steps"] == 8


def test_fewer_items_where_all_are_too_expensive(tmp_path: Path) -> None:
    model = network()
    watching = tracker(model, tmp_path / "run", probe=data(400, 1), when=[1], total=1, watch=("ck",), overhead=1.0)
    first = rows(tmp_path / "run", "moments")[0]["probe_items"]
    assert first in (50, 100, 200, 400)
    now = [1000.0]
    watching._budget.clock = lambda: now[0]
    watching._budget.start = now[0] - watching._budget.spent
    last = watching._budget.last
    assert last is not None
    now[0] += watching._budget.spent + 1.2 * last.predict(100)
    watching.step(1.0)
    watching.close()
    last_row = rows(tmp_path / "run", "moments")[-1]
    assert last_row["probe_items"] == 100
    assert rows(tmp_path / "run", "spectra")[-1]["shape"] == [100, 100]


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_a_killed_run_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    whole = network()
    with tracker(whole, tmp_path / "whole") as watching:
        train(whole, lambda loss, _: watching.step(loss))
    model, checkpoints = network(), {}
    killed = tracker(model, tmp_path / "run")

    def told(loss: Tensor, step: int) -> None:
        if step <= 5:
            killed.step(loss)
        checkpoints[step] = (copy.deepcopy(model.state_dict()), loss)

    train(model, told)
    assert killed._log is not None
    killed._log.record.series("spectra").append({"moment": 5, "step": 8, "of": "ck"})  # what a kill leaves of a moment
    for series in killed._log.record._series.values():
        series.close()
    assert len(rows(tmp_path / "run", "moments")) == 5
    model.load_state_dict(checkpoints[3][0])  # trained on from step 3, so the moment of step 5 is measured again
    resumed = tracker(model, tmp_path / "run")
    for step in (4, 5, 6, 7, 8):
        model.load_state_dict(checkpoints[step][0])
        resumed.step(checkpoints[step][1], at=step)
    resumed.close()
    for name in ("moments", "spectra", "alignment"):
        found, expected = rows(tmp_path / "run", name), rows(tmp_path / "whole", name)
        if name == "alignment":  # the kernel before the kill is gone, and with it one velocity
            found = [{k: v for k, v in row.items() if k != "velocity"} for row in found]
            expected = [{k: v for k, v in row.items() if k != "velocity"} for row in expected]
        assert found == expected
    record = Record.open(tmp_path / "run")
    assert (record.status, len(record.to_json()["earlier"])) == ("done", 1)


def test_the_same_start_again_keeps_moment_zero(tmp_path: Path) -> None:
    model = network()
    tracker(model, tmp_path / "run").step(1.0)
    again = tracker(network(), tmp_path / "run")
    again.step(1.0)
    again.close()
    assert [row["step"] for row in rows(tmp_path / "run", "moments")] == [0, 1]
    with pytest.raises(RecordError, match=r"started from other weights.*tracker\.step\(loss, at=…\)"):
        tracker(network(seed=1), tmp_path / "run").step(1.0)


def test_the_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    tracker(network(), tmp_path / "run").close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    wider = nn.Sequential(*network()[:7], nn.Linear(8, 4))
    for options in ({"probe": data(12, 2)}, {"watch": ("ck",)}, {"seed": 1}, {"directions": torch.ones(8)}):
        with pytest.raises(RecordError, match="choose another folder"):
            tracker(network(), tmp_path / "run", **options)
    with pytest.raises(RecordError, match=r"parameters\.7\.weight.*choose another folder"):
        tracker(wider, tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    Record.create(tmp_path / "other", kind="example").finish()
    with pytest.raises(RecordError, match="kind 'example'"):
        tracker(network(), tmp_path / "other")


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"probe": (torch.zeros(0, 1, 6, 6), torch.zeros(0))}, "empty probe"),
        ({"probe": tuple(t.to("meta") for t in data())}, "expected both on one device"),
        ({"watch": ()}, "empty watch"),
        ({"watch": ("weights", "sharpness")}, "'sharpness' in watch"),
        ({"watch": ("alignment",)}, "without a kernel"),
        ({"watch": "weights:nothing.*"}, "no parameter that is a matrix"),
        ({"memory": "much"}, "memory='much'"),
        ({"directions": torch.ones(9, 9, 9)}, "directions of shape"),
        ({"when": "daily"}, "expected Every"),
    ],
)
def test_bad_arguments(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        tracker(network(), tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"torch\.nn\.Module"):
        tracker(lambda x: x, tmp_path / "run")
    unending = tracker(network(), tmp_path / "a", when=LogSpaced(60), total=None)
    with pytest.raises(UsageError, match="pass total="):
        unending.step(1.0)
    watching = tracker(network(), tmp_path / "b")
    watching.step(1.0, at=5)
    watching.step(1.0, at=5)  # another batch of the same step
    with pytest.raises(UsageError, match="got step 4 after step 5"):
        watching.step(1.0, at=4)
    watching.close()
    watching.close()
    with pytest.raises(UsageError, match="after close"):
        watching.step(1.0)
    with pytest.raises(UsageError, match="loss of type str"):
        tracker(network(), tmp_path / "c", when=[1]).step("low")


def test_a_network_that_has_no_kernel_is_refused_at_once(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(36, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x.flatten(1))
            return y - y.mean(0)

    with pytest.raises(UsageError, match="a sample's outputs change with the other samples"):
        tracker(Mixed(), tmp_path / "run")
    assert Record.open(tmp_path / "run").status == "failed"


def test_a_failure_in_the_middle_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    watching = tracker(model, tmp_path / "run", when=[1, 2], total=2)
    with monkeypatch.context() as patched:
        patched.setattr(ns.Tangent, "kernel", lambda *args, **kwargs: (_ for _ in ()).throw(UsageError("no memory")))
        watching.step(1.0)
    watching.step(1.0)
    watching.close()
    assert "no memory" in rows(tmp_path / "run", "moments")[1]["note"]
    assert "note" not in rows(tmp_path / "run", "moments")[2]


def test_an_error_in_the_loop_is_in_the_record(tmp_path: Path) -> None:
    with pytest.raises(KeyError), tracker(network(), tmp_path / "run"):
        raise KeyError("x")
    assert Record.open(tmp_path / "run").status == "failed"


# -- features ----------------------------------------------------------------------------------------------------------


def test_features_are_what_the_network_was_and_survive_resuming(tmp_path: Path) -> None:
    """ρ of every layer, plain and centred by the weights of moment 0, and training as it was without; then once more."""
    expected = train(network())
    model, kept = network(), {0: copy.deepcopy(network()).eval()}

    def told(loss: Tensor, step: int) -> None:
        watching.step(loss)
        kept[step] = copy.deepcopy(model).eval()

    watching = tracker(model, tmp_path / "run", watch=("nfa",), when=[3, 8])
    assert train(model, told) == expected
    watching.close()
    found = rows(tmp_path / "run", "alignment")
    assert [(row["step"], row["of"]) for row in found] == [(s, of) for s in (0, 3, 8) for of in ("nfa:0", "nfa:5")]
    probe = as_probe(data(12, 1), 0)
    for row in found:
        name = row["of"].removeprefix("nfa:")
        initial = None if row["step"] == 0 else kept[0]
        layer = ns.feature_matrices(kept[row["step"]], probe.x, layers=name, initial=initial)[name]
        assert row["correlation"] == pytest.approx(layer.correlation(), rel=1e-5)
        assert -1 <= row["control_low"] <= row["control_high"] <= 1
        if initial is None:
            assert "centred" not in row  # the weights have not moved
        else:
            assert row["centred"] == pytest.approx(layer.correlation("weights"), rel=1e-4)
    model = network()
    watching = tracker(model, tmp_path / "run", watch=("nfa",), when=[3, 8])
    train(model, lambda loss, step: watching.step(loss, at=step) if step > 3 else None)  # resumes after a kill
    watching.close()
    assert rows(tmp_path / "run", "alignment") == found


def test_features_of_some_layers_and_of_none(tmp_path: Path) -> None:
    with tracker(network(), tmp_path / "some", watch="nfa:5", when=[1], total=1) as watching:
        watching.step(1.0)
    assert {row["of"] for row in rows(tmp_path / "some", "alignment")} == {"nfa:5"}
    with pytest.raises(UsageError, match="no affine layer of this network"):
        tracker(network(), tmp_path / "none", watch="nfa:conv*")
    page = ns.report.write_page(tmp_path / "some").read_text()
    assert "weights and gradients of each layer" in page
