"""The table of architectures: enough of them, and a row that can say no."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def benchmarks_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_there_are_enough_under_names_of_their_own() -> None:
    from benchmarks.kernels.architecture_catalogue import architectures

    names = [(each.family, each.name) for each in architectures()]
    assert len(set(names)) == len(names)
    assert len(names) >= 150


def test_a_row_and_its_page() -> None:
    from benchmarks.kernels.architecture_catalogue import architectures
    from benchmarks.kernels.architectures import measure, page

    row = measure(next(iter(architectures())))
    assert row.status == "exact"
    assert row.error < 1e-6
    assert "| mlp | 499 |" in page([row], "cpu")


def test_a_wrong_kernel_and_a_model_that_does_not_build_are_told() -> None:
    from benchmarks.kernels.architecture_catalogue import Architecture
    from benchmarks.kernels.architectures import measure, page

    torch.manual_seed(0)
    scales = iter([1.0, 1.01])  # the second copy, which the reference uses, is another model
    other = Architecture("other", "canary", lambda: (_scaled(next(scales)), torch.ones(4, 2)))
    broken = Architecture("broken", "canary", lambda: (torch.nn.Linear(2, 3), torch.ones(4, 5)))
    rows = [measure(other), measure(broken)]
    assert [row.status for row in rows] == ["WRONG", "not built"]
    assert "WRONG" in page(rows, "cpu")


def _scaled(scale: float) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 3))
    with torch.no_grad():
        model[1].weight.mul_(scale)
    return model
