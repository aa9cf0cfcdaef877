"""The time budget is kept: what no longer fits is skipped, says so, and is computed by the next attempt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import ntkscope as ns
from ntkscope.kernels.costs import Rates
from ntkscope.machines import kernel_seconds
from ntkscope.xray import job
from ntkscope.xray.budget import Budget, Clock
from ntkscope.xray.plan import EXACT, LEAST_TRAIN, fewer_items, kernel_step, make_plan, section_step
from ntkscope.xray.registry import SECTIONS
from xray.small import blobs, only, trained, workload


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
        plan.steps.update({step: seconds for step, seconds in slow.items() if step in plan.steps})
        return plan

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
