"""The judge can say no: every verdict is reached by a case that deserves it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import ntkscope as ns
from oracles.unchanged import copies, differences, optimiser, snapshot, trained
from zoo.case import Case, Sample
from zoo.judge import discrepancy, gradient_rows, judge, kernel_of


def linear() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double(), torch.ones(4, 2).double().cumsum(0)


PLAIN = Case("plain", "canary", linear, "exact", "an ordinary network")


class Diary(Dataset[Any]):
    """Remembers who asked."""

    def __init__(self) -> None:
        self.x, self.asked = linear()[1], 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.asked += 1
        return self.x[i], 0


def off(model: nn.Module, sample: Sample) -> Tensor:
    return 1.0001 * gradient_rows(model, sample)


@pytest.mark.parametrize(
    ("changes", "verdict"), [({}, "exact"), ({"rows": off}, "WRONG"), ({"expect": "refused"}, "WRONG")]
)
def test_numbers_are_exact_or_wrong(changes: dict[str, Any], verdict: str) -> None:
    assert judge(replace(PLAIN, **changes)).kind == verdict


def test_a_refusal_is_a_refusal_and_not_an_answer() -> None:
    verdict = judge(replace(PLAIN, options={"params": "nothing*"}))
    assert verdict.kind == "refused"
    assert not verdict.holds("exact")
    assert verdict.holds("either")


def test_another_exception_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(*arguments: Any, crash: bool = False, **options: Any) -> Any:
        return 1 / 0 if crash else plain(*arguments, **options)

    plain = ns.kernel
    monkeypatch.setattr("zoo.judge.ns.kernel", kernel, raising=False)
    assert judge(replace(PLAIN, options={"crash": True})).kind == "CRASH"


def test_inputs_that_moved_are_changed() -> None:
    samples: Callable[[Any], list[Sample]] = lambda d: [((row[None],), {}) for row in d.x]  # noqa: E731
    verdict = judge(replace(PLAIN, make=lambda: (linear()[0], Diary()), samples=samples))
    assert verdict.kind == "CHANGED"
    assert verdict.changes == ("inputs",)


def test_the_discrepancy_sees_small_samples_beside_large_ones() -> None:
    expected = torch.diag(torch.tensor([1.0, 1e-4], dtype=torch.float64))
    actual = expected.clone()
    actual[1, 1] *= 1.01
    assert discrepancy(actual, expected) == pytest.approx(0.01)
    assert discrepancy(actual[:1], expected) == float("inf")
    assert discrepancy(torch.full((2, 2), float("nan")), expected) == float("inf")


def test_kernels_of_rows_by_hand() -> None:
    rows = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0], [1.0, 0.0]]]).double()  # n = c = p = 2
    assert kernel_of(rows, "trntk0").tolist() == [[5.0, 1.0], [1.0, 3.0]]
    assert kernel_of(rows, "pntk").tolist() == [[2.5, 2.0], [2.0, 2.5]]
    assert kernel_of(rows, "entk")[0].tolist() == [1.0, 0.0, 1.0, 1.0]
    assert kernel_of(rows, "trntk0", [1]).tolist() == [[4.0, 0.0], [0.0, 1.0]]


def _nudged(m: Any) -> None:
    with torch.no_grad():
        m.a.weight[0, 0].add_(1e-7)


def _replaced(m: Any) -> None:
    m.a.weight = nn.Parameter(m.a.weight.detach().clone())


MOVES: dict[str, Callable[[Any], Any]] = {
    "nudged": _nudged,
    "requires_grad": lambda m: m.a.weight.requires_grad_(False),
    "grad": lambda m: m.a.weight.grad.mul_(2),
    "replaced": _replaced,
    "lost": lambda m: m.a._parameters.update(weight=m.a.weight.detach()),
    "sign_of_zero": lambda m: m.mean.mul_(-1),
    "deep": lambda m: m.table["rows"][0].append(1),
    "closure": lambda m: m.function(),
    "hook": lambda m: m.a.register_forward_hook(lambda *_: None),
    "generator": lambda m: torch.rand(1, generator=m.draw),
    "tensor hook": lambda m: m.a.weight.register_hook(lambda g: g),
    "attribute": lambda m: vars(m.a).update(captured=1),
    "statistics": lambda m: m.norm.running_mean.add_(1),
    "mode": lambda m: m.a.train(),
    "seed": lambda m: torch.rand(1),
}


def subject() -> nn.Module:
    model = nn.Module()
    model.a = nn.Linear(2, 2)
    model.a.weight.grad = torch.ones(2, 2)
    model.norm = nn.BatchNorm1d(2)
    model.register_buffer("mean", torch.zeros(2))
    model.table = {"rows": [[]]}  # type: ignore[assignment]
    seen: list[int] = []
    model.function = lambda: seen.append(1)  # type: ignore[assignment]
    model.draw = torch.Generator()  # type: ignore[assignment]
    return model.eval()


@pytest.mark.parametrize("move", MOVES)
def test_a_snapshot_sees(move: str) -> None:
    model, x = subject(), torch.ones(2)
    before = snapshot(model, x)
    assert differences(before, snapshot(model, x)) == []
    with torch.random.fork_rng():
        MOVES[move](model)
        assert len(differences(before, snapshot(model, x))) == 1


def test_a_snapshot_sees_inputs() -> None:
    model, x = nn.Linear(2, 2), (torch.zeros(2), {"mask": torch.ones(2)})
    before = snapshot(model, x)
    x[1]["mask"][0] = 0
    assert differences(before, snapshot(model, x)) == ["inputs"]


def test_a_model_that_lost_its_parameters_trains_otherwise() -> None:
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    models[1].load_state_dict(models[0].state_dict())
    steps = [optimiser(model) for model in models]
    models[1].weight = nn.Parameter(models[1].weight.detach().clone())  # the optimiser moves the old one
    results = [trained(model, step, lambda m: m(torch.ones(1, 2))) for model, step in zip(models, steps)]
    assert results[0] != results[1]


def test_a_model_that_holds_a_graph_does_not_copy() -> None:
    model = nn.Linear(2, 1)
    assert copies(model) == "copies"
    model.last = model(torch.ones(1, 2))
    assert copies(model) != "copies"
    with pytest.raises(RuntimeError):
        copy.deepcopy(model)
