"""What is written, read and followed: records, stores, pages, tracking, budgets, verdicts, seeds."""

from __future__ import annotations

from typing import Any

import torch

import ntkscope as ns
from laws.table import Case, case, choice, count, given, nonnegative, seed
from ntkscope import core, report, storage, tracking
from ntkscope import xray as _  # noqa: F401
from ntkscope.xray import Budget, read_review
from ntkscope.xray.verdict import Observations, judge

NO_PATHS = (None, 3, object(), b"x", float("nan"), "a\0b", "no such folder")
NO_NUMBER = ("x", object(), 1j, [1.0], True)
TIME: tuple[Any, ...] = ("x", "", 0, -1, "1.5.2s", "1 0s", "5 5 5m", float("nan"), float("inf"), object(), [], True)
MEMORY: tuple[Any, ...] = (None, "x", "", 0, -1, "-1GiB", float("nan"), float("inf"), object(), [])


def judged(**seen: Any) -> Any:
    """The X-ray measures these itself; one that is not finite means that it could not be measured."""
    return judge(Observations(items=100, **seen))


def opened(call: Any, name: str, bad: tuple[Any, ...] = NO_PATHS) -> Case:
    """What reads a folder: all that is no folder of its kind is refused."""
    return Case(call, {"path": given(".", bad=bad, odd=(".", "/dev/null"))}, name=name, of=lambda found: 0, reader=True)


# fmt: off
CASES: list[Case] = [
    case(core.derive_seed, seed=seed()),
    case(core.generator, seed=seed(), device=given("cpu", bad=("no such", 3.5, object(), [])),
        options={"of": lambda found: found.initial_seed()}),
    case(core.numpy_generator, seed=seed(), options={"of": lambda found: found.random()}),
    case(core.Registry, kind=given("thing"), options={"of": lambda found: 0}),
    case(core.Part, x=given(torch.eye(3), bad=(None, "x", 3, object(), torch.eye(2))),
        y=given(torch.arange(3), bad=(None, 3, object(), torch.arange(2), torch.tensor(3)))),
    case(core.Claim, id=given("a", bad=(None, 3, "", object())), source=given("b", bad=(None, 3, object())),
        published=given(1.0), measured=given(1.0), tolerance=given(0.1), verdict=choice("reproduced"),
        note=given("", bad=(None, 3, object()))),
    case(tracking.OnPlateau, window=count(10), least=nonnegative(0.01)),
    case(Budget, time=given("10m", bad=TIME), memory=given("2GiB", bad=MEMORY)),
    Case(judged, {"linearisation": given(0.1), "kernel_change": given(0.2), "rotation": given(0.1),
        "tau_before": given(0.1), "tau_after": given(0.2)}, name="xray.judge", ranges={"score": (0, 1)}),
]
# fmt: on
READERS: list[Case] = [
    opened(lambda path: storage.open_kernel(path), "storage.open_kernel"),
    opened(lambda path: storage.KernelStore.open(path), "storage.KernelStore"),
    opened(lambda path: storage.FeatureStore.open(path), "storage.FeatureStore"),
    opened(lambda path: core.Record.open(path), "core.Record"),
    opened(lambda path: report.Page(path), "report.Page"),
    opened(lambda path: report.write_page(path), "report.write_page"),
    opened(lambda path: report.write_index(path), "report.write_index"),
    opened(lambda path: report.records(path), "report.records", NO_PATHS[:-1]),
    opened(lambda path: read_review(path), "xray.read_review"),
    opened(lambda path: ns.models.read_weights(path), "models.read_weights"),
    opened(lambda path: ns.models.load_weights(torch.nn.Linear(2, 2), path), "models.load_weights"),
    opened(lambda path: ns.training.load_snapshot(path), "training.load_snapshot"),
]
CASES += READERS
