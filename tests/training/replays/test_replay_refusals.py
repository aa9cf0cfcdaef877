"""What a replay refuses: trainings without a derivative, changed ones, wrong arguments, budgets and stores."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.training_problems import classes_part, small_net
from ntkscope.core import NtkscopeError, NumericalError, Part, UsageError
from ntkscope.core.errors import DataCorrupt, MemoryBudgetError, RecordError
from ntkscope.training import CropFlip, Loop, fit, replay

ASKED = classes_part(30, dtype=torch.float64).x[20:24]


def outputs(model: nn.Module) -> Tensor:
    return model(ASKED)[:, 0]


def recorded(
    folder: Path, model: nn.Module | None = None, part: Part | None = None, *, train: bool = True, **options: Any
) -> Any:
    model, part = model or small_net(dtype=torch.float64), part or classes_part(12, dtype=torch.float64)
    keywords = {"lr": 0.1, "steps": 12, "batch_size": 4, "store": folder, "measure": False, **options}
    trajectory = fit(model, part, **keywords)
    if train:
        trajectory.final()
    return trajectory


TRAININGS: dict[str, tuple[dict[str, Any], type[NtkscopeError], str]] = {
    "not recorded": ({"store": None}, UsageError, "was not recorded; expected fit.*store="),
    "no start kept": ({"snapshots": "final"}, UsageError, "no snapshot of step 0"),
    "adagrad": ({"optimizer": "adagrad"}, UsageError, "Adagrad.*expected one of SGD, Adam, AdamW"),
    "adadelta": ({"optimizer": "adadelta"}, UsageError, "Adadelta"),
    "rmsprop": ({"optimizer": lambda p: torch.optim.RMSprop(p)}, UsageError, "RMSprop"),
    "amsgrad": ({"optimizer": "adam", "optimizer_options": {"amsgrad": True}}, UsageError, "amsgrad=True"),
    "maximize": ({"optimizer_options": {"maximize": True}}, UsageError, "maximize=True"),
    "own optimizer": ({"optimizer": lambda p: type("Mine", (torch.optim.SGD,), {})(p, lr=0.1)}, UsageError, "Mine"),
    "autocast": ({"autocast": "bfloat16"}, UsageError, "autocast"),
    "redrawn": ({"mode": "reinit"}, UsageError, "redraws"),
    "one loss for a batch": ({"loss": nn.functional.cross_entropy}, UsageError, r"losses of shape \(\); expected one per item"),
    "moving statistics": ({"model": small_net(norm=True, dtype=torch.float64)}, UsageError, "running_mean.*BatchNorm1d"),
    "noise of another stream": (
        {"augment": lambda x, draw: x + 1e-4 * torch.randn(x.shape, dtype=x.dtype)},
        NumericalError,
        "random numbers with a seed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAININGS)
def test_trainings_that_have_no_derivative(name: str, tmp_path: Path) -> None:
    options, kind, words = TRAININGS[name]
    training = recorded(**{"folder": tmp_path, **options})
    with pytest.raises(kind, match=words):
        replay(training, outputs)


def test_an_unfinished_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has not ended; call \.final\(\)"):
        replay(recorded(tmp_path, train=False), outputs)
    training = recorded(tmp_path / "half", train=False, snapshots=6)
    next(training), next(training)
    with pytest.raises(UsageError, match="has not ended"):
        replay(training, outputs)
    training.final()


def _data(training: Any) -> None:
    training.run.part.x[3] *= 1.5


def _labels(training: Any) -> None:
    training.run.part.y[0] = (training.run.part.y[0] + 1) % 3


def _layer(training: Any) -> None:
    training.run.model[2] = nn.ReLU()


def _hook(training: Any) -> None:
    training.run.model[0].register_forward_hook(lambda module, given, output: output * 1.5)


@pytest.mark.parametrize("change", [_data, _labels, _layer, _hook])
@pytest.mark.parametrize("at", [1.0, 0.5])
def test_what_changed_after_the_training(change: Callable[[Any], None], at: float, tmp_path: Path) -> None:
    training = recorded(tmp_path)
    change(training)
    with pytest.raises(RecordError):
        replay(training, outputs, at=at)


def test_weights_of_the_network_that_changed_do_not_matter(tmp_path: Path) -> None:
    training = recorded(tmp_path)
    before = replay(training, outputs, directions=0)
    with torch.no_grad():
        training.run.model[0].weight.mul_(2)
    torch.testing.assert_close(replay(training, outputs, directions=0).weights, before.weights, rtol=0, atol=0)


@pytest.mark.wrong_type
@pytest.mark.parametrize(
    "at",
    [
        -0.1,
        float("nan"),
        float("inf"),
        [1.0, 2.0],
        torch.ones(3, 4),
        -torch.ones(12),
        "half",
        None,
        torch.ones(12) * 1j,
    ],
)
def test_weights_that_are_none(at: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected"):
        replay(recorded(tmp_path), outputs, at=at)


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (lambda model: None, "returned NoneType"),
        (lambda model: 3.0, "returned float"),
        (lambda model: model(ASKED), r"returned shape \(4, 3\)"),
        (lambda model: model(ASKED).argmax(1), r"returned shape \(4,\)"),
        (lambda model: model(ASKED)[:0, 0], r"returned shape \(0,\)"),
        (lambda model: model(ASKED)[:, 0].detach(), "does not depend"),
        (lambda model: model(ASKED)[:, 0] / 0, "NaN or infinity"),
    ],
)
def test_functions_that_give_nonsense(of: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(NtkscopeError, match=words):
        replay(recorded(tmp_path), of)


@pytest.mark.wrong_type
@pytest.mark.parametrize("training", [None, small_net(), "folder"])
def test_what_is_no_training(training: Any) -> None:
    with pytest.raises(UsageError, match="expected"):
        replay(training, outputs)


@pytest.mark.parametrize("kept", [False, True])
def test_the_smallest_budget_that_is_named_works(kept: bool, tmp_path: Path) -> None:
    training = recorded(tmp_path / "fit", steps=40, momentum=0.9)
    folder = {"store": tmp_path / "kept"} if kept else {}
    with pytest.raises(MemoryBudgetError, match="the smallest budget that works is") as refused:
        replay(training, outputs, memory=100, directions=0, **folder)
    least = int(re.search(r"\((\d+) bytes\)", str(refused.value))[1])
    small = replay(training, outputs, memory=least, directions=0, **folder)
    torch.testing.assert_close(small.weights, replay(training, outputs, directions=0).weights, rtol=1e-9, atol=1e-12)
    with pytest.raises(MemoryBudgetError):
        replay(training, outputs, memory=least - 1, directions=0)


class Mine(Loop):
    """A loop whose parts can be changed."""

    def __init__(self, optimizer: Any = None, model: nn.Module | None = None, **parts: Any) -> None:
        self.parts, self.part = parts, classes_part(12, dtype=torch.float64)
        model = model or small_net(dtype=torch.float64)
        optimizer = (optimizer or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)))(model.parameters())
        super().__init__(model, optimizer, items=12, steps=8)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.arange(4) + (0 if step == self.parts.get("other") else step % 3 * 4)
        return rows, self.part.x[rows], self.part.y[rows]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = self.parts.get("scale", 1.0) * nn.functional.cross_entropy(outputs, targets, reduction="none")
        return self.parts.get("shaped", lambda loss: loss)(each)

    def rate(self, step: int) -> float:
        return self.parts.get("rate", 1.0) if step == 4 else 1.0

    def seed(self, step: int) -> int | None:
        return self.parts["seed"] + step if "seed" in self.parts else None


def _taken(parameters: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


def _hooked(parameters: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.register_step_pre_hook(lambda *given: None)
    return optimizer


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"optimizer": _taken}, "has taken steps"),
        ({"optimizer": _hooked}, "hooks"),
        ({"optimizer": lambda p: torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)}, "no parameter of the model"),
        ({"optimizer": lambda p: torch.optim.AdamW(p, amsgrad=True)}, "amsgrad"),
        ({"model": small_net(dropout=0.3, dtype=torch.float64)}, r"expected seed\(step\)"),
        ({"model": small_net(norm=True, dtype=torch.float64)}, "running_mean"),
        ({"shaped": torch.mean}, r"losses of shape \(\); expected one per item, \(4,\)"),
        ({"shaped": lambda loss: loss.mean()[None]}, r"losses of shape \(1,\)"),
        ({"shaped": lambda loss: loss[:, None]}, r"losses of shape \(4, 1\)"),
    ],
)
def test_loops_that_cannot_be_replayed(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replay(Mine(**parts), outputs)


def test_dropout_with_its_seeds_and_a_schedule_that_was_made_before(tmp_path: Path) -> None:
    def late(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 8)  # sets the rate to 0
        return optimizer

    found = replay(Mine(late, small_net(dropout=0.3, dtype=torch.float64), seed=5), outputs)
    plain = replay(Mine(None, small_net(dropout=0.3, dtype=torch.float64), seed=5), outputs)
    assert found.certificate.relative_error < 1e-7
    torch.testing.assert_close(found.weights, plain.weights, rtol=0, atol=0)


OTHERS: dict[str, dict[str, Any]] = {
    "batch": {"other": 5},
    "loss": {"scale": 2.0},
    "rate": {"rate": 0.5},
    "seed": {"seed": 1},
    "optimizer": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.2)},
    "start": {"model": small_net(1, dtype=torch.float64)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_store_of_another_loop(name: str, tmp_path: Path) -> None:
    replay(Mine(), outputs, store=tmp_path, directions=0)
    with pytest.raises(NtkscopeError, match="another"):
        replay(Mine(**OTHERS[name]), outputs, store=tmp_path, directions=0)


def test_the_store_of_another_replay(tmp_path: Path) -> None:
    training = recorded(tmp_path / "fit")
    first = replay(training, outputs, store=tmp_path / "kept", directions=0)
    with pytest.raises(NtkscopeError, match="another"):
        replay(training, outputs, at=0.5, store=tmp_path / "kept", directions=0)
    with pytest.raises(NtkscopeError, match="another"):
        replay(training, lambda model: model(ASKED)[:, 1], store=tmp_path / "kept", directions=0)
    again = replay(training, outputs, store=tmp_path / "kept", directions=0)
    torch.testing.assert_close(again.weights, first.weights, rtol=0, atol=0)
    for memory in (30_000, 12_000):  # groups of another size, states at other steps
        other = replay(training, outputs, store=tmp_path / "kept", directions=0, memory=memory)
        torch.testing.assert_close(other.weights, first.weights, rtol=1e-9, atol=1e-12)


def test_files_in_a_store_that_are_not_what_was_written(tmp_path: Path) -> None:
    training = recorded(tmp_path / "fit")
    replay(training, outputs, store=tmp_path / "kept", directions=0)
    for path in sorted((tmp_path / "kept").glob("*.safetensors")):
        for number, harm in enumerate((lambda b: b[:-9] + b"123456789", lambda b: b[:100], lambda b: b"")):
            copy = tmp_path / f"{path.stem}-{number}"
            shutil.copytree(tmp_path / "kept", copy)
            (copy / path.name).write_bytes(harm(path.read_bytes()))
            needed = path.name.startswith("adjoint") or path.name == "state-000000012.safetensors"
            with pytest.raises(DataCorrupt, match=path.name) if needed else nullcontext():
                replay(training, outputs, store=copy, directions=0)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = recorded(tmp_path / "fit")
    whole = replay(training, outputs, directions=0)
    from ntkscope.training.replays import states

    real, left = states.save_snapshot, [1]

    def full(*given: Any, **named: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*given, **named)

    monkeypatch.setattr(states, "save_snapshot", full)
    with pytest.raises((OSError, NtkscopeError), match="No space left"):
        replay(training, outputs, store=tmp_path / "kept", directions=0, memory=12_000)
    monkeypatch.undo()
    after = replay(training, outputs, store=tmp_path / "kept", directions=0, memory=12_000)
    torch.testing.assert_close(after.weights, whole.weights, rtol=1e-9, atol=1e-12)


def test_global_randomness_and_the_model_are_left_as_they_were(tmp_path: Path) -> None:
    images = Part(torch.randn(12, 1, 6, 6).double(), torch.arange(12) % 3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.Dropout(0.2)).double()
    training = recorded(tmp_path, model, images, augment=CropFlip(1))
    before, state = torch.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
    model.eval()
    replay(training, lambda network: network(images.x[:2]).flatten(), at=0.5)
    assert torch.equal(before, torch.get_rng_state())
    assert not model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
