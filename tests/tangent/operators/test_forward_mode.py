"""`J v`: in several threads at a time, and of fused attention, whose kernels have first derivatives alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ntkscope.tangent.operators.forward_mode import jvp
from ntkscope.tangent.operators.jacobian import Jacobian


class Attentive(nn.Module):
    """One attention head over a sequence; without `forward_mode` it refuses to be transformed, as some libraries' models do."""

    def __init__(self, forward_mode: bool = True) -> None:
        super().__init__()
        self.embed, self.readout, self.forward_mode = nn.Linear(3, 12), nn.Linear(4, 2), forward_mode

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part[:, None] for part in self.embed(x).chunk(3, -1))
        if not self.forward_mode:
            torch.zeros(1).requires_grad_()
        return self.readout(scaled_dot_product_attention(q, k, v)[:, 0].mean(1))


def test_directional_derivatives_of_fused_attention() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(5, 6, 3, generator=draw, dtype=torch.float64)
    for forward_mode in (True, False):
        model = Attentive(forward_mode).double().eval()
        direction = {name: torch.randn(p.shape, generator=draw, dtype=p.dtype) for name, p in model.named_parameters()}
        found = Jacobian(model, x).jvp(direction)
        step = 1e-5  # central differences in float64: an error of about step² = 1e-10
        sides = []
        with torch.no_grad():
            for sign in (1, -1):
                for name, parameter in model.named_parameters():
                    parameter.add_(sign * step * direction[name])
                sides.append(model(x))
                for name, parameter in model.named_parameters():
                    parameter.sub_(sign * step * direction[name])
        torch.testing.assert_close(found, (sides[0] - sides[1]) / (2 * step), rtol=1e-6, atol=1e-7)


def test_the_callers_choice_of_attention_is_kept() -> None:
    model = Attentive().eval()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        Jacobian(model, torch.ones(2, 6, 3)).jvp({"readout.bias": torch.ones(2)})
        assert torch.backends.cuda.flash_sdp_enabled()
        assert not torch.backends.cuda.math_sdp_enabled()


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
