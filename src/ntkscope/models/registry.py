"""The registry of architectures; each file of this room registers one or a family."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ntkscope.core import Registry

MODELS: Registry[Callable[..., nn.Module]] = Registry("model", check=True)
