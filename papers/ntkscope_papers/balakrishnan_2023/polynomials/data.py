"""Polynomials of a hidden direction: tasks, and the inputs that all degrees share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ntkscope.core import Part, Split, UsageError, generator
from ntkscope.core.arguments import as_dtype
from ntkscope.core.checked import Count, CountOrZero, NonNegative, checked

PARTS = ("train", "validation", "test")
KINDS = ("isotropic", "correlated", "direct")
BOUND = 2.0  # the largest |v|
AUTHORS = "authors"  # in place of the kind of targets: raw ones, and all settings as in the report's public code
# Width and weight decay, at rate 1, of independent coordinates by degree, as the grid of that code chose them after 20 epochs
# (github.com/Bala-A87/UGRC, Code/configs/nn/hidden-func-poly)
CHOSEN = {3: (512, 0.0), 4: (256, 1e-4), 5: (256, 1e-4), 6: (512, 0.0), 7: (512, 1e-3), 8: (256, 10.0), 9: (128, 100.0)}


def polynomial(v: Float[Tensor, " n"], roots: Float[Tensor, " degree"]) -> Float[Tensor, " n"]:
    """Π_k (v - root_k); O(n · degree).

    >>> polynomial(torch.tensor([0.0, 2.0, 3.0]), torch.tensor([1.0, 2.0]))
    tensor([2., 0., 2.])
    """
    return (v[:, None] - roots).prod(dim=1)


def choose_roots(roots: str, degree: int, seed: int) -> Float[Tensor, " degree"]:
    """`degree` roots in [-2, 2], ascending: "equispaced" with both ends, or "stratified" at random.

    "stratified": one root in each of `degree` equal cells, uniform over its middle half, so a quarter of a cell from its walls
    at least; those below 0 mirror those above, so at even degrees p′(0) = 0, and at odd ones 0 is a root.

    >>> choose_roots("equispaced", 3, seed=0).tolist()
    [-2.0, 0.0, 2.0]
    """
    if roots == "equispaced":
        ends = torch.linspace(-BOUND, BOUND, degree, dtype=torch.float64)
        return ends if degree > 1 else torch.zeros(1, dtype=torch.float64)
    if roots != "stratified":
        raise UsageError(f"roots={roots!r}; expected 'equispaced' or 'stratified'")
    cell, half = 2 * BOUND / degree, degree // 2
    inside = 0.25 + 0.5 * torch.rand(half, generator=generator(seed, "roots", "stratified"), dtype=torch.float64)
    above = cell * (torch.arange(half) + 0.5 * (degree % 2) + inside)
    return torch.cat([-above.flip(0), torch.zeros(degree % 2, dtype=torch.float64), above])


@checked
def hidden_polynomial(
    *,
    seed: int = 0,
    degree: Count = 7,
    correlated: bool = False,
    dimension: Count = 100,
    target: Literal["raw", "unit"] = "raw",
    noise: NonNegative = 0.0,
    train: Count = 8000,
    validation: CountOrZero = 1000,
    test: Count = 1000,
    dtype: str | torch.dtype = "float32",
) -> Split:
    """y = Π_k (v - root_k), equispaced roots, v = 1·x with x ~ N(0, I) or, `correlated`, N(0, I + 11ᵀ), rescaled.

    All inputs are multiplied by one number (the split's extra `scale`) so that max |v| = 2 over the whole set: the covariance
    becomes (2 / max|v|)² times the above (the text's 1/a, with a = (max|v| / 2)²). Sizes and roots are those of the report's
    public code; the text leaves them open. With `target="unit"` the targets of all parts are divided by the standard deviation
    of the noise-free training targets (from 1.6 at degree 3 to 0.26 at 12 and 3.4 at 20), so that degrees can be compared; they
    are not centred. `noise` is the standard deviation added to the targets of train and validation; test is noise-free. Each
    part's extra is `v`. Cost: O(n · dimension). Reference: Balakrishnan (2023), section 5.1.1.

    >>> split = hidden_polynomial(degree=3, train=50, validation=10, test=10)
    >>> tuple(split.train.x.shape), float(max(part.extras["v"].abs().max() for part in (split.train, split.test))) <= 2
    ((50, 100), True)
    """
    kind, chosen = as_dtype(dtype), choose_roots("equispaced", degree, seed)
    w = torch.ones(dimension, dtype=torch.float64)
    inputs = {}
    for name, count in zip(PARTS, (train, validation, test)):
        inputs[name] = torch.randn(count, dimension, generator=generator(seed, name, "x"), dtype=torch.float64)
        if correlated:
            shared = torch.randn(count, 1, generator=generator(seed, name, "shared"), dtype=torch.float64)
            inputs[name] = inputs[name] + shared * w
    scale = BOUND / max(float((x @ w).abs().max()) for x in inputs.values() if len(x))
    unit = 1.0
    if target == "unit":
        unit = float(polynomial((inputs["train"] @ w * scale).clamp(-BOUND, BOUND), chosen).std(correction=0))

    def part(name: str) -> Part:
        x = inputs[name] * scale
        v = (x @ w).clamp(-BOUND, BOUND)  # rounding may put the extreme point a hair outside
        y = polynomial(v, chosen) / unit
        if noise and name != "test":
            y = y + noise * torch.randn(len(v), generator=generator(seed, name, "noise"), dtype=torch.float64)
        return Part(x.to(kind), y.to(kind), {"v": v.to(kind)})

    extras = {"scale": torch.tensor(scale).to(kind)}
    held = part("validation") if validation else None
    return Split(part("train"), part("test"), held, name="hidden-polynomial", extras=extras)


@dataclass(frozen=True)
class Task:
    """What a network learns: inputs of a kind ("direct": v itself), the degree, and whether targets are divided by their
    standard deviation ("unit") or not ("raw", "authors")."""

    kind: str
    degree: int
    target: str

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.target}/{self.degree}"


@dataclass(frozen=True, eq=False)
class Draw:
    """The inputs of one seed in single precision, with v in double, by part."""

    x: Mapping[str, Float[Tensor, "n d"]]
    v: Mapping[str, Float64[Tensor, " n"]]
    roots: str
    seed: int

    def clean(self, name: str, task: Task) -> Float64[Tensor, " n"]:
        """The targets of a part."""
        chosen = choose_roots(self.roots, task.degree, self.seed)
        y = polynomial(self.v[name], chosen)
        if task.target == "unit":
            unit = float(polynomial(self.v["train"], chosen).std(correction=0))
            y = y / unit
        return y

    def part(self, name: str, task: Task, noise: float = 0.0) -> Part:
        """A part with its targets; `noise` is added to those of training and validation items with a random sign."""
        y = self.clean(name, task)
        if noise and name != "test":
            coins = torch.rand(len(y), generator=generator(self.seed, name, "coins"), dtype=torch.float64) < 0.5
            y = y + noise * torch.where(coins, 1.0, -1.0)
        x = self.v[name][:, None].float() if task.kind == "direct" else self.x[name]
        return Part(x, y.float())


class Inputs:
    """The inputs of every kind and seed, drawn once. "isotropic" and "direct" share theirs."""

    def __init__(self, config: Any, seed: int) -> None:
        self._config, self._seed = config, seed
        self._draws: dict[tuple[bool, int], Draw] = {}

    def draw(self, kind: str, s: int) -> Draw:
        """Of the s-th seed: those of `hidden_polynomial`, whatever the degree."""
        config, seed, at = self._config, self._seed + s, (kind == "correlated", s)
        if at not in self._draws:
            sizes = {"train": config.train, "validation": config.validation, "test": config.test}
            options: dict[str, Any] = {"correlated": at[0], "dimension": config.dimension, "dtype": "float64"}
            split = hidden_polynomial(seed=seed, **sizes, **options)
            assert split.validation is not None
            parts = dict(zip(PARTS, (split.train, split.validation, split.test)))
            x = {name: part.x.float() for name, part in parts.items()}
            v = {name: part.extras["v"] for name, part in parts.items()}
            self._draws[at] = Draw(x, v, config.roots, seed)
        return self._draws[at]

    def parts(self, task: Task, s: int, noise: float = 0.0) -> dict[str, Part]:
        """The parts of a task."""
        drawn = self.draw(task.kind, s)
        return {name: drawn.part(name, task, noise) for name in PARTS}
