"""A kernel GLM at 20,000 points, in single precision, within memory."""

from __future__ import annotations

import resource

import numpy as np
import pytest
import torch

from ntkscope.surrogates import KernelGLM


@pytest.mark.nightly
def test_twenty_thousand_points_fit_in_memory() -> None:
    """1.6 GB of kernel; never copied to double precision (3.2 GB): the peak stays under four copies of it."""
    n = 20_000
    random = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 10
    x = torch.randn(10, 30, generator=random)[y] + torch.randn(n, 30, generator=random)
    x /= x.norm(dim=1, keepdim=True)
    kernel = x @ x.T
    kernel.pow_(3).mul_(0.4).add_(0.6)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    glm = KernelGLM().fit(kernel, y)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert glm.gradient_norm_ <= 1e-6
    assert grown < 3 * kernel.nbytes
    assert np.mean(glm.predict(kernel[:2000]) == y[:2000].numpy()) > 0.8
