"""Forward mode in several threads at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from ntkscope.tangent.operators.forward_mode import jvp


def test_threads_do_not_disturb_each_other() -> None:
    """PyTorch's own jvp fails here: a level that one thread leaves is the one another thread is in."""
    w, u = torch.randn(40, 40, dtype=torch.float64), torch.randn(40, 40, dtype=torch.float64)

    def work(k: int) -> float:
        value, moved = jvp(lambda state: (state["w"] @ state["w"]).tanh() * k, {"w": w}, {"w": u})
        slope = k * (1 - (w @ w).tanh() ** 2) * (w @ u + u @ w)
        assert torch.equal(value, (w @ w).tanh() * k)
        return float((moved - slope).abs().max())

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(work, range(200))) < 1e-9
