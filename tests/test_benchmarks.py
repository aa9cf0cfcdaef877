"""The benchmarks' machinery on tiny networks: timing, tables, the torch.func peer, the answering loop. No times."""

from __future__ import annotations

import doctest
import importlib
import json
import runpy
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import ntkscope as ns

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def benchmarks_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_a_ratio_compares_neighbours_in_time() -> None:
    from benchmarks.timing import Spread, fewest, interleaved, ratio, still_improving

    assert still_improving([5.0])
    assert not still_improving([5.0, 4.99])
    assert fewest({1: 2.0, 2: 1.0}) == 2
    clock = {"slow": iter([10.0, 40.0, 30.0]), "fast": iter([1.0, 2.0, 1.0])}
    seconds = interleaved({k: partial(next, ticks) for k, ticks in clock.items()}, rounds=3, say=lambda line: None)
    faster = ratio(seconds["slow"], seconds["fast"])
    assert (faster.median, faster.low, faster.high) == (20.0, 10.0, 30.0)
    with pytest.raises(ValueError, match="interleave"):
        ratio(seconds["slow"], Spread((1.0,)))


@pytest.mark.parametrize("convolutional", [False, True])
def test_the_torch_peers_compute_the_trace_ntk(convolutional: bool) -> None:
    from benchmarks import networks
    from benchmarks.peers import vmap as peer_vmap

    if convolutional:
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 3))
        shape: tuple[int, ...] = (5, 1, 4, 4)
    else:
        model, shape = networks.mlp(4, 6, 3), (5, 4)
    inputs = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    reference = networks.oracle_trace_ntk(model, inputs)
    kernels = [
        peer_vmap.jacobian_contraction(model, inputs, chunk=5),
        peer_vmap.jacobian_contraction(model, inputs, chunk=2),  # 5 is no multiple of 2
        peer_vmap.jacobian_contraction(model, inputs, chunk=2, triangle=True),
        peer_vmap.vector_products(model, inputs),
    ]
    for K in kernels:
        assert networks.relative_error(K, reference) < 1e-5  # float32 against float64
    assert networks.relative_error(kernels[0] * 1.001, reference) > 1e-4  # the measure can fail
    assert set(peer_vmap.sweep(model, inputs, (2, 4, 8), held_bytes=1e9)) == {2, 4, 5}
    with pytest.raises(MemoryError):
        peer_vmap.sweep(model, inputs, (2,), held_bytes=1.0)


def test_the_blocked_peer_of_a_gpu_computes_the_trace_ntk() -> None:
    from benchmarks import networks
    from benchmarks.gpu import peers as gpu_peers

    model, x = networks.mlp(4, 6, 3), torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    reference = networks.oracle_trace_ntk(model, x)
    for chunk, held in ((7, 7), (2, 7), (2, 3), (3, 3)):
        K = gpu_peers.blocked(model, x, chunk, held)
        assert networks.relative_error(K, reference) < 1e-5
        assert torch.equal(K, K.T)
    found = gpu_peers.peer(model, x, "cpu", 1e9, 60.0, (2, 4))
    assert found["measured"]
    assert found["block"] in (2, 4)
    assert not gpu_peers.peer(model, x, "cpu", 1e9, 0.0, (2,))["measured"]
    assert "failed" in gpu_peers.peer(model, x, "cpu", 10.0, 60.0, (2,))


@pytest.mark.guard
@pytest.mark.parametrize("name", ["vit-tiny", "bert-base"])
def test_the_gpu_comparisons_on_tiny_networks(name: str, tmp_path: Path) -> None:
    from benchmarks.gpu import grid as gpu_grid
    from benchmarks.gpu import harvest as gpu_harvest
    from benchmarks.gpu import peers as gpu_peers
    from benchmarks.gpu import profile as gpu_profile
    from benchmarks.gpu import roofline as gpu_roofline

    assert gpu_peers.main([name], tmp_path / "peers", quick=True) == 0
    run = json.loads((tmp_path / "peers" / f"{name}.json").read_text())["runs"][0]
    assert run["exact"]["relative error"] < 1e-5
    assert run["torch.func"]["relative error"] < 1e-4
    assert run["exact"]["certificate"]["checked"] > 0
    assert gpu_roofline.main([name], None, "layers", 0, tmp_path / "roof", quick=True) == 0
    record = json.loads((tmp_path / "roof" / f"{name}-exact-layers.json").read_text())
    assert record["plan"].startswith("layers")
    assert {row["stage"] for row in record["stages"]} >= {"capture", "features", "products", "outside"}
    assert gpu_harvest.main([name], None, 6, tmp_path / "harvest", quick=True) == 0
    record = json.loads((tmp_path / "harvest" / f"{name}-exact.json").read_text())
    assert [row["taken"] for row in record["ways"]] == ["as told"] * 4
    assert len(record["calls"]) == 4
    assert gpu_profile.main([name], out=tmp_path / "profile", quick=True) == 0
    record = json.loads((tmp_path / "profile" / f"{name}-5-exact.json").read_text())
    assert "aten::mm" in {row["name"] for row in record["processor"]}
    assert gpu_grid.main([name], out=tmp_path / "grid.json", quick=True) == 0
    cells = json.loads((tmp_path / "grid.json").read_text())["cells"]
    assert {(cell["kept"], cell["place"]) for cell in cells} >= {("memory", "device"), ("memory", "host")}
    assert all(cell["measured"] > 0 and cell["predicted"] > 0 for cell in cells)
    assert "</svg>" in (tmp_path / "grid.svg").read_text()


def test_a_kernel_that_disagrees_is_not_timed() -> None:
    from benchmarks import networks
    from benchmarks.kernels.trace_ntk import Bout
    from benchmarks.peers import PeerUnavailable

    bout = Bout(networks.Case("tiny", networks.mlp(2, 2), torch.ones(3, 2), "test"), 3, None)
    with pytest.raises(PeerUnavailable, match="relative error"):
        bout.enter("wrong", lambda: 0.0, torch.eye(3), 2 * torch.eye(3), 1e-4, "")
    bout.enter("right", lambda: 0.0, torch.eye(3), torch.eye(3), 1e-4, "")
    assert list(bout.timed) == ["right"]


def test_written_results_come_back_as_one_page(tmp_path: Path) -> None:
    from benchmarks import machine
    from benchmarks.outcome import Check, Outcome, as_outcome, write
    from benchmarks.timing import Spread

    checks = [Check("fast", "≥ 2×", "3×", True), Check("small", "< 1", "2", False), Check("gone", "> 1", "", None)]
    outcome = Outcome("A title", [{"who": "us", "seconds": Spread((1.0, 2.0, 3.0))}], checks, ("a note",))
    write("one", outcome, machine.describe(), 1.5, tmp_path)
    write("two", as_outcome("two", {"ratio": 4.0, "details": [1]}), machine.describe(), 1.5, tmp_path)
    record = json.loads((tmp_path / "one.json").read_text())
    assert record["rows"][0]["seconds"]["repeats"] == [1.0, 2.0, 3.0]
    assert record["machine"]["torch"] == torch.__version__
    page = (tmp_path / "bench.md").read_text()
    for expected in ("| us | 2 (1–3) |", "holds", "FAILS", "not measured", "- a note", "| 4 |"):
        assert expected in page
    with pytest.raises(TypeError, match="expected an Outcome"):
        as_outcome("three", 3)


def test_a_peer_answers_lines_and_its_death_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import peers

    script = (
        "from benchmarks.peers import serve\n"
        "def add(a, b):\n    print('noise on stdout'); return {'sum': a + b, 'seconds': 0.5}\n"
        "serve({'add': add})\n"
    )
    (tmp_path / "tiny_peer.py").write_text(script)
    monkeypatch.setitem(peers.RECIPES, "tiny", peers.Recipe("unused", "tiny_peer"))
    monkeypatch.setattr(peers, "environment", lambda recipe: Path(sys.executable))
    monkeypatch.setattr(peers, "SEARCH", f"{ROOT}:{tmp_path}")
    with peers.Peer("tiny") as peer:
        assert peer.ask("add", a=1, b=2)["sum"] == 3
        assert peer.timed("add", a=1, b=2)() == 0.5
        with pytest.raises(peers.PeerUnavailable, match="KeyError: 'divide'"):
            peer.ask("divide")


def test_cases_are_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from benchmarks import networks

    monkeypatch.delenv("NTKSCOPE_DATA", raising=False)
    first, second = networks.case("mlp", 3), networks.case("mlp", 3)
    assert first.parameters == 932_362
    torch.testing.assert_close(first.x, second.x, rtol=0, atol=0)
    torch.testing.assert_close(first.model.state_dict(), second.model.state_dict(), rtol=0, atol=0)
    networks.save(first, tmp_path / "case.npz")
    with np.load(tmp_path / "case.npz") as arrays:
        assert arrays["__x"].shape == (3, 784)
        assert arrays["0.weight"].shape == (512, 784)
    with pytest.raises(KeyError, match="no case"):
        networks.case("vgg", 3)


def test_counted_work_adds_up_to_the_upper_triangle() -> None:
    from benchmarks.gpu.trace_ntk import counted

    assert counted(6, None, 6, 1) == (6, 21)  # all resident, block 1: each pair once
    assert counted(6, None, 6, 6) == (6, 36)  # one block: both halves
    assert counted(6, 4, 4, 2) == (10, 24)
    assert counted(7, None, 3, 1)[1] == 28  # passing samples change what is captured, not which pairs


@pytest.mark.guard
@pytest.mark.parametrize("network", ["digits", "resnet18"])
def test_surrogates_of_logits_and_labels_side_by_side(network: str, tmp_path: Path) -> None:
    from benchmarks.learning import distilled

    assert distilled.main([distilled.Network(network)], out=tmp_path, quick=True) == 0
    rows = json.loads((tmp_path / f"distilled-{network}.json").read_text())["details"]["surrogates"]
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    assert [(row["kernel"], row["target"]) for row in rows] == [(k, t) for k in kernels for t in ("logits", "labels")]
    assert kernels == (["ck", "trntk", "trntk0", "pntk"] if network == "digits" else ["ck", "proj-trntk"])
    assert [row["trivial"] for row in rows[:2]] == [True, False]
    assert all(0 <= row["agreement"] <= 1 for row in rows)


@pytest.mark.nightly
def test_the_trust_verdict_is_compared_with_the_truth() -> None:
    from benchmarks.learning import trust

    found = trust.run(quick=True)
    assert sum(row[word] for row in found.rows[:3] for word in trust.LEVELS) == len(trust.STATES)  # a page each


def test_a_large_kernel_is_scaled_without_being_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.learning import distilled

    from ntkscope.linalg import FactoredGram
    from ntkscope.machines import KernelPair

    features = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pair = KernelPair("linear", FactoredGram(features[:5]), FactoredGram(features[5:], features[:5]))
    formed = distilled.unit(pair)
    monkeypatch.setattr(distilled, "FORMED", 4)
    seen = distilled.unit(pair)
    assert isinstance(seen.train, FactoredGram)
    torch.testing.assert_close(seen.train.dense(), formed.train.dense())
    torch.testing.assert_close(seen.test.dense(), formed.test.dense())


def test_a_search_ends_in_a_place_that_is_better_than_its_neighbours() -> None:
    from benchmarks.learning.grid import downhill

    asked: list[tuple[int, int]] = []

    def error(place: tuple[int, int]) -> float:
        asked.append(place)
        return abs(place[0] - 7) + abs(place[1] - 1)

    assert downhill(error, (2, 3), (8, 5)) == (7, 1)
    assert len(asked) == len(set(asked)) < 40
    assert downhill(lambda place: 0.0, (2, 3), (8, 5)) == (2, 3)  # ties stay
    with pytest.raises(ValueError, match="no more than all 10 inputs"):
        importlib.import_module("benchmarks.kernels.feature_matrices").slices(10, 4, 3)


def test_passes_that_stop_short_of_the_weights_leave_the_network_as_it_was() -> None:
    from benchmarks import networks
    from benchmarks.kernels import feature_matrices

    model = networks.mlp(4, 3)
    feature_matrices.plain_passes(model, torch.ones(5, 4))
    feature_matrices.passes_to_the_input(model, torch.ones(5, 4))
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


class Idle(torch.nn.Module):
    """A layer that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.idle, self.last = torch.nn.Linear(4, 5), torch.nn.Linear(4, 2), torch.nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x))) + 0 * self.idle(x).sum(1, keepdim=True)


def test_tables_of_the_feature_ansatz(monkeypatch: pytest.MonkeyPatch) -> None:
    """Centred forms where initial weights are known; a layer that no output depends on says why it has no ρ."""
    from benchmarks.kernels import feature_tables

    def small(size: feature_tables.Size) -> feature_tables.Network:
        x = torch.randn(size.inputs, 4, generator=torch.Generator().manual_seed(0))
        return feature_tables.Network(Idle().eval(), x, 0.5, 0.25, "made up", Idle().eval())

    def gone(size: feature_tables.Size) -> feature_tables.Network:
        raise ns.core.errors.DataNotFound("no such data")

    monkeypatch.setattr(feature_tables, "NETWORKS", {"Small": small, "Gone": gone})
    with torch.random.fork_rng(devices=[]):
        outcome = feature_tables.run(quick=True)
    assert [check.holds for check in outcome.checks] == [True, None]
    layers = {layer["layer"]: layer for layer in outcome.details["tables"][0]["layers"]}
    assert layers["last"]["centred"]["both"] is None  # its tangents are the outputs', trained or not
    assert "its K is zero" in layers["idle"]["undefined"]
    assert set(layers["first"]["centred"]) == set(feature_tables.CENTRINGS)


def test_the_page_of_the_feature_ansatz_is_that_of_its_record() -> None:
    from benchmarks.kernels import feature_tables

    assert feature_tables.PAGE.read_text() == feature_tables.page(json.loads(feature_tables.RECORD.read_text()))


@pytest.mark.guard
def test_support_vector_machines_on_the_engines_kernel_are_scikit_learns() -> None:
    from benchmarks.learning import kernel_svm

    for outcome in (kernel_svm.run(quick=True), kernel_svm.large(200, "cpu", (1.0,))):
        assert [check.holds for check in outcome.checks] == [True] * len(outcome.checks)
    assert len(outcome.details["gaps"]) == 3


def test_every_comparison_has_a_run() -> None:
    from benchmarks.__main__ import EVERY

    for module in EVERY.values():
        assert callable(importlib.import_module(f"benchmarks.{module}").run)


EXAMPLES = (
    "timing outcome gpu.trace_ntk gpu.peers kernels.precision kernels.store kernels.feature_matrices learning.grid"
)


@pytest.mark.parametrize(
    "name", [*EXAMPLES.split(), "learning.trust", "learning.mislabel", "learning.mislabel_flags", "kernels.soak"]
)
def test_the_examples_in_docstrings(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert (failed, tried > 0) == (0, True)


def test_an_unknown_comparison_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "speed"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)  # as `python -m benchmarks` does
    assert left.value.code == 2
    assert "there are trace_ntk" in capsys.readouterr().err


def test_the_explicit_fisher_matrix_is_damped_to_products_of_gradients() -> None:
    """λ ≫ F: influences are plain products over λ; the next term, -F / λ², is what the factors are for."""
    from benchmarks.learning import ekfac

    given = ekfac.case("with biases")
    params = list(given.model.parameters())

    def gradients(x: torch.Tensor, y: torch.Tensor, target: str) -> torch.Tensor:
        each = ekfac.values(given.model(x), y, target)
        rows = [torch.autograd.grad(one, params, retain_graph=True) for one in each]
        return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])

    plain = gradients(given.x, given.y, "loss") @ gradients(given.x_test, given.y_test, "margin").T
    damped = 1e6 * ekfac.explicit(given, "margin", 1e6)
    np.testing.assert_allclose(damped, plain.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert np.abs(ekfac.explicit(given, "margin", 1e-3) - 1e3 * plain.detach().numpy()).max() > 1


def test_the_score_of_an_xray_is_the_one_that_is_promised() -> None:
    from benchmarks.learning.mislabel import EARLY, OURS, TARGET, Block, Measured, Ranked, outcome

    block = Block("MNIST", lambda seed: None, 2, (), folded=0)  # type: ignore[return-value]
    for worse, holds in ((0.0, True), (0.01, False)):
        found = [Ranked("MNIST", EARLY, who, TARGET - worse, 1.0, 1.0, 1.0) for who in (OURS, "loss ranking")] * 2
        (check,) = outcome([Measured(block, "MNIST", 10, found, {EARLY: [0.9]})]).checks
        assert check.holds is holds


def test_flags_are_promised_by_both_their_precision_and_their_recall() -> None:
    from benchmarks.learning.mislabel_flags import OURS, Flagged, Planted, outcome

    for right, flagged, holds in ((98, 110, True), (97, 100, False), (98, 120, False)):
        found = [Flagged("mnist", OURS, seed, 100, flagged, right, 1.0, 1.0, 1.0) for seed in (0, 1)]
        (check,) = outcome(Planted("mnist", 0.04), found, [], measured=True).checks
        assert check.holds is holds


def test_draws_stop_without_changing_a_decision() -> None:
    """Early stopping of the calibration: the same matrices are significant at both levels as with all draws."""
    from benchmarks.gpu.spikes import CERTAIN, LEVELS, band, exceedances, significant
    from benchmarks.statistics.families import noise

    matrices = noise("t5", (6, 12, 20), torch.Generator().manual_seed(0))
    matrices[0, :, 0] += 3.0
    every, early = (exceedances(matrices, 5, 1 << 16, certain) for certain in (1000, CERTAIN))
    assert bool((early <= every).all())
    assert [significant(every, level) for level in LEVELS] == [significant(early, level) for level in LEVELS]
    assert significant(every, 0.05) >= 1
    assert band(0.05, 1000) == (33, 69)
