"""Small pieces test networks are made of: a module from a function, seeded noise, randomised parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Case = tuple[Any, Any]  # a model and inputs for it


def randomize(model: nn.Module, seed: int = 0) -> Any:
    """The same model in float64 and eval mode, every value drawn from `seed`; scales near 1, plausible statistics."""
    g = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=g, dtype=torch.float64)
            if bool((parameter == 1).all()):
                parameter.add_(0.2 * noise)
            else:
                fan_in = parameter[0].numel() if parameter.ndim > 1 else 9
                parameter.copy_(noise / fan_in**0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=g, dtype=torch.float64))
            if name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=g, dtype=torch.float64))
    return model


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(*shape: int, vocabulary: int = 7, seed: int = 1) -> Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    """Modules, parameters, buffers (tensors) and plain attributes by keyword; a function of (self, *inputs) as forward."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.run = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def normed_images(n: int) -> Case:
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2, groups=2)]
    return randomize(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3))), noise(n, 2, 6, 6)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(noise(*shape, seed=len(shape)))
