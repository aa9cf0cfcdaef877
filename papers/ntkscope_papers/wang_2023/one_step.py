"""The spike after one step: what one large gradient step does to the singular values of the first layer.

`f(x) = h^(-1/2) Σ vᵢ σ(wᵢ·x/√d)`, W (h, d) of standard normal entries, one step of size η on `1/(2n) ‖y - f(X)‖²`.
Eq. 74 of Wang et al., in the PNNL report (2023). Up to terms that vanish as n, h and d grow alike, the gradient is of rank one
(Ba et al. 2022, proposition 2): with `μ = E σ'(z)` and the residuals `r`,

    W₁ = W₀ + (η μ / √(hd)) v uᵀ,    u = Xᵀr / n.

Only the row of W along `v̂ = v/‖v‖` moves, and it is independent of all other rows. So `W₁ᵀW₁ = A + s sᵀ`, where A is a Wishart
matrix and `s = W₁ᵀv̂`: the spike is decided by `‖s‖²`, not by the step alone. In units of √d, with `k = η μ ‖v‖ / (√h d)`,

    s = (1 - kμ√ρ) g + k (c β + noise),

g a unit vector (the row before the step), ρ = ‖v‖²/h, c = E[y β·x], and the noise of squared length `(d/n) E r²`. The term
`kμ√ρ g` is there when the network's own output f₀ is part of the residual: its linear part is `μ W₀ᵀv/√(hd)`, the very row that
is moved, with the opposite sign. The naive formula takes u as independent of W₀ and adds the square of that term; in truth it
is subtracted first, `(1 - kμ√ρ)² - 1` in place of `(kμ√ρ)²`, smaller by `2kμ√ρ`. Equivalent strength: `θ² = d (‖s‖²/d - 1)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ntkscope.linalg.random_matrices.spiked import spiked_value


@dataclass(frozen=True)
class OneStepSetting:
    """Everything that decides the spike after one step but the step itself.

    `slope`: μ = E σ'(z). `linear`: c = E[y β·x]. `second`: E y², label noise included. `readout`: ρ = ‖v‖²/h. `start`: E f₀²
    where the network's own output is part of the residual (ρ for a normalised σ), 0 where it is not.
    """

    items: int
    width: int
    dimension: int
    slope: float
    linear: float
    second: float
    readout: float = 1.0
    start: float = 0.0

    @property
    def ratio(self) -> float:
        return self.width / self.dimension

    @property
    def own(self) -> float:
        """μ√ρ where f₀ is part of the residual, else 0: how much of the moved row a unit of k takes away."""
        return self.slope * math.sqrt(self.readout) if self.start else 0.0

    @property
    def pushed(self) -> float:
        """c² + (d/n) E r²: squared length of what the step adds, per unit of k, besides the row itself."""
        return self.linear**2 + self.dimension / self.items * (self.second + self.start)

    def push(self, lr: float) -> float:
        """k = η μ ‖v‖ / (√h d)."""
        return lr * self.slope * math.sqrt(self.readout) / self.dimension


@dataclass(frozen=True)
class OneStepSpike:
    """`value`: λ₁ of W₁ᵀW₁/d, the edge without a spike. `alignment`: |β·u₁|. `strength`: θ²/d, 0 if nothing was gained."""

    value: float
    alignment: float
    strength: float
    spike: bool


def one_step_threshold(setting: OneStepSetting, *, naive: bool = False) -> float:
    """The step η* beyond which a singular value of W₁ leaves the bulk: `θ²/d = √(h/d)`.

    >>> setting = OneStepSetting(2000, 1500, 1000, slope=0.964609, linear=0.959563, second=1.09)
    >>> round(one_step_threshold(setting))
    948
    """
    own = setting.own
    square, linear, wanted = own**2 + setting.pushed, 0.0 if naive else own, math.sqrt(setting.ratio)
    push = (linear + math.sqrt(linear**2 + square * wanted)) / square
    return push / setting.push(1.0)


def one_step_spike(lr: float, setting: OneStepSetting, *, naive: bool = False) -> OneStepSpike:
    """λ₁ and the alignment of its vector with β after one step of size `lr`; `naive` takes f₀ as independent of W₀.

    `t = θ²/d`: λ₁ = (t + 1)(t + h/d)/t beyond `t² = h/d`; |⟨u₁, ŝ⟩|² = 1 - (h/d)/t²; and ŝ·β = kc/√(1 + t).

    >>> setting = OneStepSetting(2000, 1500, 1000, slope=0.964609, linear=0.959563, second=1.09)
    >>> found = one_step_spike(2 * one_step_threshold(setting), setting)
    >>> round(found.value, 2), round(found.alignment, 2)
    (7.71, 0.7)
    """
    push, shape = setting.push(lr), (setting.width, setting.dimension)
    gained = (setting.own * push) ** 2 if naive else (1 - setting.own * push) ** 2 - 1
    t = max(0.0, gained + push**2 * setting.pushed)
    value = spiked_value(math.sqrt(t * setting.dimension), shape) ** 2 / setting.dimension
    if t**2 <= setting.ratio:
        return OneStepSpike(value, 0.0, t, spike=False)
    alignment = math.sqrt(1 - setting.ratio / t**2) * push * abs(setting.linear) / math.sqrt(1 + t)
    return OneStepSpike(value, alignment, t, spike=True)
