"""Networks and losses that could give a wrong derivative without a word: each is right, or refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from contracts.training_problems import classes_part
from ntkscope.core import NtkscopeError, Part, generator
from ntkscope.training import StopWhen, fit, replay
from ntkscope.training.replays.replay import Replay

PART = classes_part(12, dtype=torch.float64)
WORDS = Part(torch.randint(0, 9, (12, 4), generator=generator(0, "words")), torch.arange(12) % 3)
IMAGES = Part(torch.randn(12, 2, 8, 8, generator=generator(0, "images"), dtype=torch.float64), torch.arange(12) % 3)
RIGHT = 1e-7  # of central differences: (10⁻⁵)² of a third derivative and 10⁻¹⁶ / 10⁻⁵ of rounding, magnified


def trained(model: Callable[[], nn.Module], folder: Path, part: Part = PART, **options: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = model().to(part.x.dtype if part.x.is_floating_point() else torch.float64)
    keywords = {"lr": 0.1, "steps": 10, "batch_size": 4, "measure": False, "store": folder, **options}
    trajectory = fit(network, part, **keywords)
    trajectory.final()
    return trajectory


def replayed(model: Callable[[], nn.Module], folder: Path, part: Part = PART, **options: Any) -> Replay:
    return replay(trained(model, folder, part, **options), lambda net: net(part.x[:4]).square().sum(1), directions=2)


class Read(nn.Module):
    """What one layer makes of the hidden units is read out linearly."""

    def __init__(
        self, middle: nn.Module | Callable[[Tensor], Tensor], width: int = 6, enter: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.enter, self.middle = enter or nn.Linear(5, width), middle
        self.leave = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.middle(self.enter(x).tanh()))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.inner = kind(6, 6, batch_first=True, **options)

    def forward(self, h: Tensor) -> Tensor:
        return self.inner(h[:, None].expand(-1, 3, -1).contiguous())[0][:, -1]


class Attends(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(6, 2, 8, dropout=dropout, batch_first=True, activation="gelu")

    def forward(self, h: Tensor) -> Tensor:
        places = torch.arange(1, 4, dtype=h.dtype)[:, None]
        return self.inner(h[:, None] * places)[:, 0]


class Noise(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h + 0.1 * torch.randn(h.shape, dtype=h.dtype) if self.training else h


class InPlace(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return nn.functional.relu_(h.clone().mul_(1.5))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, h: Tensor) -> Tensor:
        return self.inner(self.inner(h).tanh()) @ self.inner.weight.T.view(6, 6)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(2, 2)
        self.register_buffer("scale", torch.tensor(1.5), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        return h * self.scale


class Straight(torch.autograd.Function):
    """A plain function with a backward that PyTorch can differentiate."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.save_for_backward(h)
        return h.sin()

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> Tensor:
        return up * ctx.saved_tensors[0].cos()


RIGHT_ONES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "gru": (lambda: Read(Recurrent(nn.GRU)), {}),
    "lstm with dropout": (lambda: Read(Recurrent(nn.LSTM, num_layers=2, dropout=0.3)), {}),
    "attention": (lambda: Read(Attends(0.0)), {}),
    "attention with dropout": (lambda: Read(Attends(0.2)), {}),
    "batch statistics": (lambda: Read(nn.BatchNorm1d(6, track_running_stats=False)), {}),
    "noise": (lambda: Read(Noise()), {}),
    "in place": (lambda: Read(InPlace()), {}),
    "used twice, and a view": (lambda: Read(Twice()), {}),
    "parameters without gradient": (lambda: Read(Unused()), {"weight_decay": 0.1, "momentum": 0.9}),
    "orthogonal": (lambda: Read(parametrizations.orthogonal(nn.Linear(6, 6))), {}),
    "own function": (lambda: Read(Straight.apply), {}),
    "embedding": (lambda: Read(lambda h: h.mean(1), enter=nn.Embedding(9, 6)), {"part": WORDS}),
    "padded embedding": (lambda: Read(lambda h: h.mean(1), enter=filled_padding()), {"part": WORDS, "lr": 0.3}),
    "convolutions": (
        lambda: Read(nn.Sequential(nn.MaxPool2d(2), nn.GroupNorm(2, 4), nn.Flatten()), 36, nn.Conv2d(2, 4, 3)),
        {"part": IMAGES},
    ),
    "linear loss": (lambda: nn.Linear(5, 3), {"loss": lambda outputs, y: outputs[torch.arange(len(y)), y]}),
    "stopped early": (lambda: Read(nn.Identity()), {"stop": StopWhen(loss=1.0), "steps": None, "epochs": 40}),
    "item weights of its own, short batches": (
        lambda: Read(nn.Identity()),
        {"batch_size": 5, "weights": torch.linspace(0, 1, 12).double()},
    ),
    "parameters in two groups": (lambda: Read(nn.Identity()), {"optimizer": lambda p: grouped(list(p))}),
}  # fmt: skip


def grouped(every: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        [{"params": every[:2], "lr": 0.1, "weight_decay": 0.3}, {"params": every[2:]}], lr=0.02, eps=1e-3
    )


def filled_padding() -> nn.Module:
    layer = nn.Embedding(9, 6, padding_idx=0)
    nn.init.normal_(layer.weight)
    return layer


@pytest.mark.guard
@pytest.mark.parametrize("name", RIGHT_ONES)
def test_right_against_retrainings(name: str, tmp_path: Path) -> None:
    model, options = RIGHT_ONES[name]
    found = replayed(model, tmp_path, **options)
    assert found.certificate.reproduced in (True, None)
    assert found.certificate.relative_error <= RIGHT


class Detached(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (1 + h.detach().norm(dim=1, keepdim=True))


class Ungraded(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            scale = h.norm(dim=1, keepdim=True)
        return h * (1 + scale)


class Half(Straight):
    """Its backward is a constant to autograd."""

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> Tensor:
        return up * ctx.saved_tensors[0].cos().detach()


class Once(torch.autograd.Function):
    @staticmethod
    def forward(h: Tensor) -> Tensor:
        return h.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, up: Tensor) -> Tensor:
        return up * ctx.saved_tensors[0].cos()


class Late(nn.Module):
    """A buffer that does not move in the first steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, h: Tensor) -> Tensor:
        mean = self.get_buffer("mean")
        if self.training and float(h.detach().abs().max()) > self.limit:
            mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h - mean

    limit = 0.0


class Listed(nn.Module):
    """State that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.zeros(6, dtype=torch.float64)]

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            self.kept[0] = 0.9 * self.kept[0] + 0.1 * h.detach().mean(0)
        return h - self.kept[0]


class Drawn(nn.Module):
    """Random numbers of another library."""

    def forward(self, h: Tensor) -> Tensor:
        import numpy as np

        return h * (1 + 1e-4 * float(np.random.randn()))  # noqa: NPY002


def hooked(factor: float) -> nn.Module:
    model = Read(nn.Identity())
    model.leave.bias.register_hook(lambda gradient: gradient * factor)
    return model


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "detach": lambda: Read(Detached()),
    "no_grad": lambda: Read(Ungraded()),
    "weight_norm": lambda: Read(parametrizations.weight_norm(nn.Linear(6, 6))),
    "spectral_norm": lambda: Read(parametrizations.spectral_norm(nn.Linear(6, 6))),
    "detached backward": lambda: Read(Half.apply),
    "once differentiable": lambda: Read(Once.apply),
    "a buffer": lambda: Read(Late()),
    "a list": lambda: Read(Listed()),
    "numpy": lambda: Read(Drawn()),
    "gradient hook": lambda: hooked(2.0),
    "small gradient hook": lambda: hooked(1.0005),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_autograd_cannot_differentiate_is_refused(name: str, tmp_path: Path) -> None:
    training = trained(REFUSED[name], tmp_path)
    with pytest.raises(NtkscopeError, match=r"expected|answers differently"):
        replay(training, lambda net: net(PART.x[:4]).square().sum(1), directions=0, at=0.5)


@pytest.mark.parametrize("options", [{"sparse": True}, {"scale_grad_by_freq": True}, {"max_norm": 0.5}])
def test_embeddings_that_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    training = trained(lambda: Read(lambda h: h.mean(1), enter=nn.Embedding(9, 6, **options)), tmp_path, WORDS)
    with pytest.raises(NtkscopeError):
        replay(training, lambda net: net(WORDS.x[:4]).square().sum(1), directions=0)


class Precise(nn.Module):
    """Constants of one precision, as many models make them in their forward pass."""

    def forward(self, h: Tensor) -> Tensor:
        return h @ torch.eye(6)


@pytest.mark.guard
@pytest.mark.parametrize("middle", [Precise, nn.Identity, lambda: Recurrent(nn.GRU), lambda: Attends(0.1)])
def test_float32(middle: Callable[[], nn.Module], tmp_path: Path) -> None:
    part = classes_part(12)
    found = replayed(lambda: Read(middle()), tmp_path, part)
    assert found.certificate.correlation > 0.99  # a difference of weights of 5 %, with its third derivative
    if middle is nn.Identity:
        double = replayed(lambda: Read(nn.Identity()), tmp_path / "double", Part(part.x.double(), part.y))
        start = {name: value.double() for name, value in found.loop.start.params.items()}
        assert all(torch.allclose(value, double.loop.start.params[name], atol=1e-7) for name, value in start.items())
        torch.testing.assert_close(found.weights.double(), double.weights, rtol=1e-3, atol=1e-4)


@pytest.mark.guard
@pytest.mark.parametrize("lr", [0.03, 1.0])
def test_a_training_that_magnifies_small_changes_is_warned_of(lr: float, tmp_path: Path) -> None:
    training = trained(lambda: Read(nn.Linear(6, 6)), tmp_path, lr=lr, momentum=0.9, steps=40)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = replay(training, lambda net: net(PART.x[:4]).square().sum(1))
    assert found.weights.isfinite().all()
    assert any("two retrainings" in str(one.message) for one in said) == (lr == 1.0)
    assert (found.certificate.relative_error > 0.5) == (lr == 1.0)
