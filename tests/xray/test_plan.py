"""The plan: inside its budget, fewer kernels before fewer items, and said; what no longer fits the time is skipped."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

import ntkscope as ns
import ntkscope.xray.sections
from ntkscope.core import Record, UsageError
from ntkscope.core.progress import progress
from ntkscope.kernels.costs import Rates
from ntkscope.machines import kernel_seconds, measure_rates, rates
from ntkscope.xray import job, pairs, resuming
from ntkscope.xray.budget import MOMENT, Budget, Clock, Pace
from ntkscope.xray.context import Context
from ntkscope.xray.plan import (
    EXACT,
    INITIAL_STEP,
    LEAST_TRAIN,
    SAFETY,
    Plan,
    fewer_items,
    kernel_step,
    make_plan,
    section_step,
    standard,
)
from ntkscope.xray.registry import SECTIONS, in_order, on_the_page
from ntkscope.xray.task import CLASSIFICATION
from xray.small import blobs, network, only, trained, workload

RATES = Rates(
    setup=0.05, sample=1e-3, pair=1e-5, forward=1e-4, double=2e-10, single=1e-10, draw=1e-8, parameters=24_000, outputs=10
)  # fmt: skip


def plan(time: Any = None, memory: str = "2GiB", **options: Any) -> Plan:
    chosen = {name: options.pop(name) for name in ("max_train", "max_test", "kernels", "pace") if name in options}
    work = workload(RATES, **{"train": 2000, "test": 500, "initial": True, **options})
    return make_plan(work, Budget(time, memory), **chosen)


def test_with_time_everything_is_done() -> None:
    made = plan()
    assert made.kernels == standard() == ("trntk0", "ck", "em", "pntk", "proj-pntk", "proj-trntk")
    assert (made.train, made.test, made.subsampled) == (2000, 500, None)
    assert "2,000 of 2,000 training items" in made.text[0]
    assert made.text[-1].startswith("expected: about")
    assert made.expected_seconds == pytest.approx(sum(made.steps.values()))


@pytest.mark.parametrize("time", [20, 40, 60, 90, 120, 300])
def test_it_fits_and_kernels_go_before_items(time: int) -> None:
    made = plan(time)
    assert made.expected_seconds <= SAFETY * time
    assert made.kernels == standard()[: len(made.kernels)]
    if made.train < 2000:
        assert len(made.kernels) == 1
        assert made.subsampled is not None
        assert "in its proportion" in " ".join(made.text)


def test_more_time_is_never_less() -> None:
    plans = [plan(time) for time in (10, 20, 40, 80, 160, 320, 640)]
    assert [p.train for p in plans] == sorted(p.train for p in plans)
    assert [len(p.kernels) for p in plans] == sorted(len(p.kernels) for p in plans)


def test_a_busy_machine_changes_a_plan_only_where_the_essential_does_not_fit() -> None:
    at_rest, busy = plan(1000), plan(1000, pace=5.0)
    assert (busy.kernels, busy.train, busy.test) == (at_rest.kernels, at_rest.train, at_rest.test)
    assert busy.expected_seconds == pytest.approx(5 * at_rest.expected_seconds)
    assert plan(60, pace=5.0).train < plan(60).train


def test_the_essential_comes_first() -> None:
    order = [section.essential for section in in_order() if not section.every_attempt]
    assert order == sorted(order, reverse=True)
    assert 0 < sum(order) < len(order)


def test_memory_limits_the_kernel() -> None:
    made = plan(memory="32MiB")
    assert made.train < 1000
    assert 8 * made.train**2 * 4 <= 32 * 2**20  # four matrices in float64
    assert "would not fit 32MiB" in (made.subsampled or "")


def test_what_the_caller_asks_for() -> None:
    made = plan(max_train=300, max_test=100, kernels=["pntk", "trntk"])
    assert (made.train, made.test, made.kernels) == (300, 100, ("trntk0", "pntk"))
    assert "that many were requested" in (made.subsampled or "")
    with pytest.raises(UsageError, match="an X-ray knows"):
        plan(kernels=["ntk"])


def test_never_more_items_than_there_are_and_every_class_has_one() -> None:
    made = plan(train=2, test=3, classes=10)
    assert (made.train, made.test) == (2, 3)
    made = plan(10, train=9000, test=5000, classes=1000)
    assert made.test >= 1000
    assert min(made.initial_train, made.initial_test) >= 1000
    assert plan(max_train=3, max_test=3).test == 10


def test_no_time_at_all_is_said_and_not_hidden() -> None:
    made = plan(0.01)
    assert made.train >= 20
    assert "more than the budget" in made.text[-1]


def test_a_probe_that_is_stopped_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(nn.Linear):
        calls = torch.zeros(1)  # nothing that autograd or a state dict knows of

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x)

    def stopped(run: Any) -> float:
        run()
        raise KeyboardInterrupt

    model = Counting(4, 3)
    monkeypatch.setattr(rates, "_least", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure_rates(model, torch.randn(20, 4))
    assert model.calls.item() == 0


def test_a_probe_without_time_measures_what_is_missing_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    timed = rates._time_kernel

    def counted(*given: Any) -> Any:
        calls.append(1)
        return timed(*given)

    monkeypatch.setattr(rates, "_time_kernel", counted)
    measured = measure_rates(nn.Linear(4, 3), torch.randn(100, 4), wait=0.0)
    assert len(calls) <= rates.REPEATS  # on one number of items alone
    assert measured.parameters == 15
    assert 0 < measured.sample < 1


def test_rates_are_measured() -> None:
    train, _ = blobs()
    rates = measure_rates(network().eval(), train.x)
    assert rates.outputs == 3
    assert rates.parameters == 5 * 16 + 16 + 16 * 3 + 3
    assert min(rates.sample, rates.pair, rates.forward, rates.double, rates.single, rates.draw) > 0
    wide = nn.Sequential(nn.Linear(5, 700), nn.ReLU(), nn.Linear(700, 30), nn.Linear(30, 3))
    assert measure_rates(wide.eval(), train.x).activations == 700 + 30  # as em counts them
    few = measure_rates(network().eval(), torch.zeros(2, 5))  # fewer items than a probe would like
    assert few.sample > 0


def test_budgets() -> None:
    assert Budget("1h 30m").seconds == 5400
    assert str(Budget(None, "1GiB")) == "no time limit, 1GiB"
    for wrong in ("soon", "10 parsecs", 0, -3, "m"):
        with pytest.raises(UsageError, match=r"got .*; expected"):
            Budget(wrong)
    with pytest.raises(UsageError, match="at least"):
        Budget(memory="3kB")


def states(record: ns.Record) -> dict[str, str]:
    return {name: record.metrics[f"section:{name}"]["status"] for name in record.metrics["sections"]}


def test_a_clock_says_what_does_not_fit() -> None:
    assert Clock(None).too_short_for(1e9) is None
    assert Clock(60.0, reserved=3.0).too_short_for(50.0) is None
    never = str(Clock(60.0, reserved=3.0).too_short_for(58.0))
    assert "expected to take 58" in never
    assert "start the same X-ray again" not in never  # it would not fit then either
    assert "allow more than 1 min 01 s (--time)" in never
    late = Clock(60.0, began=time.perf_counter() - 40.0, reserved=3.0)
    assert "start the same X-ray again" in str(late.too_short_for(50.0))
    assert Clock(1.0, reserved=3.0).too_short_for(0.0) is None  # what costs nothing is never skipped


def test_what_does_not_fit_is_skipped_and_computed_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = blobs()
    _, model = trained(train)
    made, slow = job.make_plan, {section_step("layers"): 1e6, kernel_step("pntk"): 1e6}

    def planned(*given: Any, **options: Any) -> Any:
        plan = made(*given, **options)
        return replace(plan, steps={step: slow.get(step, seconds) for step, seconds in plan.steps.items()})

    monkeypatch.setattr(job, "make_plan", planned)
    said: list[str] = []
    options: dict[str, Any] = {"kernels": ["ck", "pntk"], "budget": "60s", "progress": False, "say": said.append}
    few = [SECTIONS[name] for name in ("summary", "layers", "weight_spectra", "computed")]
    with only(*few):
        record = ns.xray(model, train, test, tmp_path, **options)
    assert states(record)["layers"] == "skipped"
    assert "were left" in record.metrics["section:layers"]["why"]
    assert "however often" in record.metrics["section:layers"]["why"]  # 1e6 s do not fit a minute
    assert {state for name, state in states(record).items() if name != "layers"} == {"done"}
    table = record.metrics["section:surrogates"]["data"]["table"]
    assert list(dict.fromkeys(row["kernel"] for row in table)) == ["trntk", "trntk0", "ck"]
    assert record.metrics["left_out"] == ["pntk"]
    assert any(line.startswith("left out, since the time") and "pntk" in line for line in said)
    assert "were left" in ns.report.write_page(tmp_path).read_text()
    monkeypatch.setattr(Clock, "left", lambda clock: 1e9)
    with only(*few):
        assert states(ns.xray(model, train, test, tmp_path, **options))["layers"] == "done"


def test_a_large_network_is_explained_by_its_last_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = blobs()
    _, model = trained(train)

    def rates(model: Any, x: Any, **how: Any) -> Rates:
        return replace(RATES, sample=10.0 if how["params"] is None else 1e-5, parameters=7)

    monkeypatch.setattr(job, "measure_rates", rates)
    with only(SECTIONS["summary"]):
        record = ns.xray(model, train, test, tmp_path, kernels=["ck"], budget="60s", progress=False)
    plan = record.metrics["plan"]
    assert (plan["train"], plan["params"]) == (
        len(train),
        ["readout.weight", "readout.bias"],
    )  # it has no numbered blocks
    assert any("tangent kernels of the last 7 of" in line for line in plan["text"])
    assert record.metrics["rates"]["whole"] == 10.0  # what sections take that look at the whole network
    assert all(name.startswith("readout") for name in record.metrics["coverage"]["numbers"])
    assert set(states(record).values()) == {"done"}


@pytest.mark.parametrize("kernels", [["ck"], ["trntk"]])
def test_what_holds_by_construction_is_known_without_the_conjugate_kernel_too(
    tmp_path: Path, kernels: list[str]
) -> None:
    """The trace-NTK by the last layer alone is the conjugate kernel, whether that was computed or not; its cosines are not."""
    train, test = blobs()
    _, model = trained(train)
    with only(SECTIONS["summary"]):
        record = ns.xray(model, train, test, tmp_path, kernels=kernels, params="last", progress=False)
    rows = [row for row in record.metrics["section:surrogates"]["data"]["table"] if row["kernel"] != "ck"]
    trivial = {(row["kernel"], row["target"]) for row in rows if row["trivial"]}
    assert trivial == {("trntk0", "logits")}
    assert record.metrics["section:summary"]["data"]["best_kernel"] == "trntk"


def test_what_takes_longer_than_the_limit_is_stopped() -> None:
    """Where it reports progress, and in the main thread wherever it is."""

    def reporting(context: Any) -> Any:
        for _ in progress(range(10**6), enabled=False):
            time.sleep(0.01)

    def silent(context: Any) -> Any:
        time.sleep(60)

    context: Any = SimpleNamespace(
        clock=Clock(None),
        too_short_for=lambda step: None,
        allowed=lambda section: 0.2,
        kernel_seconds=0.0,
        pace=Pace(1.0),
    )
    for run in (reporting, silent):
        entry = job.look(replace(SECTIONS["layers"], run=run), context)
        assert (entry["status"], entry["late"]) == ("skipped", True)
        assert "longer than expected" in entry["why"]
        assert entry["seconds"] < 2
    with ThreadPoolExecutor(1) as elsewhere:
        entry = elsewhere.submit(job.look, replace(SECTIONS["layers"], run=reporting), context).result()
    assert entry["late"] is True


def test_one_good_or_bad_moment_does_not_decide_what_is_computed() -> None:
    """A long section begins only where it fits at the pace of all steps; a kernel is not left out for one slow step."""
    pace = Pace(1.0)
    pace.saw(6.0, 30.0)
    pace.saw(4.0, 4.0)
    assert pace.now() == 3.4
    pace.saw(4.0, 36.0)
    assert pace.now() == 5.0


def test_the_kernel_of_the_initial_network_is_kept_free_with_the_essential() -> None:
    steps = {section_step("explain"): 1.0, section_step("summary"): 2.0, section_step("shift"): 50.0, INITIAL_STEP: 4.0}
    there: set[str] = set()
    context: Any = SimpleNamespace(
        task=CLASSIFICATION,
        given=(),
        initial=object(),
        plan=SimpleNamespace(steps=steps),
        pace=Pace(3.0),
        pairs=SimpleNamespace(has=lambda name, prefix: prefix in there),
    )
    assert Context.kept_free(context, "surrogates") == 3 * (1 + 2 + 4)
    there.add("initial.")
    assert Context.kept_free(context, "explain") == 3 * 2
    assert Context.kept_free(context, "summary") == Context.kept_free(context, "shift") == 0


def test_a_short_essential_section_runs_though_a_longer_one_that_follows_will_not_fit() -> None:
    steps = {section_step("explain"): 0.5, section_step("words"): 100.0}
    context: Any = SimpleNamespace(
        clock=Clock(60.0), plan=SimpleNamespace(steps=steps), pace=Pace(4.0), kept_free=lambda name: 400.0
    )
    assert Context.allowed(context, SECTIONS["explain"]) == MOMENT + 2 * 4 * 0.5
    context.clock = Clock(0.001)  # nothing is left at all
    time.sleep(0.01)
    assert Context.allowed(context, SECTIONS["explain"]) < 0


def test_decompositions_do_not_wait_for_a_second_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine two threads that wait for each other took 30 times as long as one: no limit of time holds then."""
    train, test = blobs()
    _, model = trained(train)
    seen = []
    monkeypatch.setattr(job, "_run", lambda context, tell: seen.append(blas_threads()))
    with threadpool_limits(2, user_api="blas"):
        ns.xray(model, train, test, tmp_path, kernels=["ck"], progress=False)
        assert seen == [{1}]
        assert blas_threads() == {2}


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_a_kernel_that_does_not_fit_is_left_out_alone_and_another_time_adds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The essential sections are there without it; the same command with more time computes it and nothing else again."""
    train, test = blobs()
    _, model = trained(train)
    computed, made = [], pairs.parts

    def counted(name: str, *given: Any, **options: Any) -> Any:
        computed.append(name)
        if name == "em" and len(computed) < 4:
            time.sleep(60)
        return made(name, *given, **options)

    monkeypatch.setattr(pairs, "parts", counted)
    monkeypatch.setattr(job, "measure_rates", lambda *given, **how: RATES)
    monkeypatch.setattr(Clock, "left", lambda clock: 3.0 if computed[-1:] == ["ck"] else 1e9)  # at em, not before
    monkeypatch.setattr(Pace, "now", lambda pace: 1.0)
    monkeypatch.setattr(Context, "allowed", lambda context, section: math.inf)
    options: dict[str, Any] = {"kernels": ["ck", "em", "pntk"], "progress": False}
    with only(SECTIONS["summary"], SECTIONS["explain"]):
        record = ns.xray(model, train, test, tmp_path, budget="60s", **options)
        assert computed == ["trntk0", "ck", "em", "pntk"]
        assert record.metrics["left_out"] == ["em"]
        assert set(states(record).values()) == {"done"}
        assert "what is finished is not computed again:" in ns.report.write_page(tmp_path).read_text()
        record = ns.xray(model, train, test, tmp_path, budget="90s", **options)
    assert computed == ["trntk0", "ck", "em", "pntk", "em"]
    assert record.metrics["left_out"] == []
    table = record.metrics["section:surrogates"]["data"]["table"]
    assert list(dict.fromkeys(row["kernel"] for row in table)) == ["trntk", "trntk0", "ck", "em", "pntk"]


def test_more_kernels_have_only_what_shows_them_computed_again(tmp_path: Path) -> None:
    sections = on_the_page()
    with Record.create(tmp_path, kind="xray", name="x") as record:
        record.put(**{section.key: section.entry("done") for section in sections})
        resuming.reopen(record, SECTIONS["surrogates"], sections)
    assert [section.name for section in sections if record.metrics[section.key]["status"] == "waiting"] == [
        *("summary", "surrogates", "explain")
    ]


def test_without_time_for_the_main_kernel_everything_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = blobs()
    _, model = trained(train)
    monkeypatch.setattr(Clock, "left", lambda clock: -1.0)
    record = ns.xray(model, train, test, tmp_path, kernels=["ck"], budget="60s", progress=False)
    assert "failed" not in states(record).values()
    assert states(record)["surrogates"] == "skipped"
    assert f"kernels.{EXACT}.train" not in record.arrays


def test_what_would_fit_is_said_truthfully() -> None:
    """As many items as are said to fit do fit, a few more do not; where too few would, none are named."""
    rates = Rates(0.1, 1e-2, 1e-3, 1e-4, 1e-10, 1e-10, 1e-8, 10_000, 10)
    work = workload(rates, 1000, 200)
    plan = make_plan(work, Budget(None), kernels=["ck"])
    step = kernel_step(EXACT)
    found = fewer_items(step, plan, work, 60.0)
    assert found is not None
    assert LEAST_TRAIN < found < plan.train

    def seconds(n: int) -> float:
        return kernel_seconds(EXACT, n, 200 * n // 1000, rates)

    assert seconds(found) <= 60.0 < seconds(found + found // 50 + 2)
    assert plan.steps[step] > 60.0
    assert fewer_items(step, plan, work, 0.5) is None


def test_gradients_that_do_not_fit_the_memory_are_forecast_as_they_are_planned() -> None:
    """How many stay is what the kernel's own plan says; each group of them meets all other items, which are run again."""
    sides = [torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3), torch.nn.ReLU()]
    model = torch.nn.Sequential(*sides, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))
    x = torch.randn(24, 1, 10, 10, generator=torch.Generator().manual_seed(0))
    rates = measure_rates(model, x, memory=24 * 2**20)
    plan = ns.kernel("trntk0", model, torch.cat([x, x]), memory=24 * 2**20).meta["plan"]
    assert 0 < plan.resident < len(x)
    assert rates.resident == plan.resident
    groups = math.ceil(2 * len(x) / plan.resident)
    runs = sum(2 * len(x) - group * plan.resident for group in range(groups))
    assert rates.running(2 * len(x)) == pytest.approx(runs * max(rates.again, rates.sample))
    assert measure_rates(model, x, memory=2**32).resident == 0
