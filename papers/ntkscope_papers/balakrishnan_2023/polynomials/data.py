"""Polynomials of a hidden direction: tasks, and the inputs that all degrees share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ntkscope.core import Part, Split, UsageError, generator
from ntkscope.core.arguments import Real, as_dtype
from ntkscope.core.checked import Count, CountOrZero, NonNegative, Number, Positive, checked

PARTS = ("train", "validation", "test")
KINDS = ("isotropic", "correlated", "direct")
BOUND = 2.0  # the largest |v|
AUTHORS = "authors"  # in place of the kind of targets: raw ones, and all settings as in the report's public code
# Width and weight decay, at rate 1, of independent coordinates by degree, as the grid of that code chose them after 20 epochs
# (github.com/Bala-A87/UGRC, Code/configs/nn/hidden-func-poly)
CHOSEN = {3: (512, 0.0), 4: (256, 1e-4), 5: (256, 1e-4), 6: (512, 0.0), 7: (512, 1e-3), 8: (256, 10.0), 9: (128, 100.0)}


def polynomial(v: Float[Tensor, " n"], roots: Float[Tensor, " degree"], leading: Real = 1.0) -> Float[Tensor, " n"]:
    """leading · Π_k (v - root_k); O(n · degree).

    >>> polynomial(torch.tensor([0.0, 2.0, 3.0]), torch.tensor([1.0, 2.0]))
    tensor([2., 0., 2.])
    """
    return leading * (v[:, None] - roots).prod(dim=1)


def choose_roots(
    roots: str | Sequence[Real], degree: int, root_range: tuple[Real, Real], seed: int
) -> Float[Tensor, " degree"]:
    """`degree` roots in `root_range`, ascending: "equispaced" with both ends, "uniform" or "stratified" at random, or given.

    "stratified": one root in each of `degree` equal cells of a range (-r, r), uniform over its middle half, so a quarter of a
    cell from its walls at least; those below 0 mirror those above, so at even degrees p′(0) = 0, and at odd ones 0 is a root.

    >>> choose_roots("equispaced", 3, (-2, 2), seed=0).tolist()
    [-2.0, 0.0, 2.0]
    """
    low, high = root_range
    if not low < high:
        raise UsageError(f"root_range={root_range}; expected (low, high) with low < high")
    if roots == "equispaced":
        ends = torch.linspace(float(low), float(high), degree, dtype=torch.float64)
        return ends if degree > 1 else torch.tensor([(low + high) / 2], dtype=torch.float64)
    if roots == "uniform":
        drawn = torch.rand(degree, generator=generator(seed, "roots"), dtype=torch.float64)
        return (low + (high - low) * drawn).sort().values
    if roots == "stratified":
        if low != -high:
            raise UsageError(
                f'roots="stratified" with root_range={root_range}; expected (-r, r): roots are mirrored about 0'
            )
        cell, half = 2 * float(high) / degree, degree // 2
        inside = 0.25 + 0.5 * torch.rand(half, generator=generator(seed, "roots", "stratified"), dtype=torch.float64)
        above = cell * (torch.arange(half) + 0.5 * (degree % 2) + inside)
        return torch.cat([-above.flip(0), torch.zeros(degree % 2, dtype=torch.float64), above])
    given = torch.tensor([float(root) for root in roots], dtype=torch.float64).sort().values
    if len(given) != degree or not ((low <= given) & (given <= high)).all():
        raise UsageError(f"roots={tuple(roots)}; expected {degree} numbers (the degree) from {low} to {high}")
    return given


@checked
def hidden_polynomial(
    *,
    seed: int = 0,
    degree: Count = 7,
    correlated: bool = False,
    direct: bool = False,
    dimension: Count = 100,
    direction: Sequence[Number] | None = None,
    bound: Positive = 2.0,
    roots: Literal["equispaced", "uniform", "stratified"] | Sequence[Number] = "equispaced",
    root_range: tuple[Real, Real] | None = None,
    leading: Real = 1.0,
    target: Literal["raw", "unit"] = "raw",
    noise: NonNegative = 0.0,
    train: Count = 8000,
    validation: CountOrZero = 1000,
    test: Count = 1000,
    dtype: str | torch.dtype = "float32",
) -> Split:
    """y = leading · Π_k (v - root_k) with v = w·x, x ~ N(0, I) or, `correlated`, N(0, I + w wᵀ), rescaled.

    All inputs are multiplied by one number so that max |v| = `bound` over the whole set: the covariance becomes
    (bound / max|v|)² times the above (the text's 1/a, with a = (max|v| / 2)²). `direct` hands over v itself, shape
    (n, 1), instead of x. w is all ones unless `direction` is given. Sizes and the equispaced roots are those of the
    report's public code; the text leaves them open. With `target="unit"` the targets of all parts are divided by the standard
    deviation of the noise-free training targets (the split's extra `target_scale`; from 1.6 at degree 3 to 0.26 at 12 and 3.4
    at 20 for equispaced roots), so that degrees can be compared; they are not centred. `noise` is the standard deviation
    added to the targets of train and validation, whose `extras["clean_y"]` keep the noise-free ones; test is noise-free.
    Extras: each part's `v`; the split's `direction`, `roots`, `scale`, `covariance`. Cost: O(n · dimension).
    Reference: Balakrishnan (2023), section 5.1.1.

    >>> split = hidden_polynomial(degree=3, train=50, validation=10, test=10)
    >>> split.extras["roots"].tolist(), tuple(split.train.x.shape)
    ([-2.0, 0.0, 2.0], (50, 100))
    """
    kind = as_dtype(dtype)
    w = torch.ones(dimension, dtype=torch.float64)
    if direction is not None:
        w = torch.tensor([float(entry) for entry in direction], dtype=torch.float64)
    if len(w) != dimension or not w.norm() > 0:
        raise UsageError(f"direction has {len(w)} entries, norm {float(w.norm()):g}; expected {dimension}, not all 0")
    chosen = choose_roots(roots, degree, (-bound, bound) if root_range is None else root_range, seed)

    sizes = {"train": train, "validation": validation, "test": test}
    inputs = {}
    for name, count in sizes.items():
        inputs[name] = torch.randn(count, dimension, generator=generator(seed, name, "x"), dtype=torch.float64)
        if correlated:
            shared = torch.randn(count, 1, generator=generator(seed, name, "shared"), dtype=torch.float64)
            inputs[name] = inputs[name] + shared * w
    scale = bound / max(float((x @ w).abs().max()) for x in inputs.values() if len(x))

    unit = 1.0
    if target == "unit":
        unit = float(polynomial((inputs["train"] @ w * scale).clamp(-bound, bound), chosen, leading).std(correction=0))
        if not unit > 0:
            raise UsageError(
                f'target="unit" with {train} training targets that do not vary; expected a variance: use "raw"'
            )

    def part(name: str) -> Part:
        x = inputs[name] * scale
        v = (x @ w).clamp(-bound, bound)  # rounding may put the extreme point a hair outside
        clean = polynomial(v, chosen, leading) / unit
        extras = {"v": v.to(kind)}
        y = clean
        if noise and name != "test":
            y = clean + noise * torch.randn(len(v), generator=generator(seed, name, "noise"), dtype=torch.float64)
            extras["clean_y"] = clean.to(kind)
        return Part((v[:, None] if direct else x).to(kind), y.to(kind), extras)

    covariance = torch.eye(dimension, dtype=torch.float64) + (torch.outer(w, w) if correlated else 0)
    hidden = {"direction": w, "roots": chosen, "scale": torch.tensor(scale), "covariance": scale**2 * covariance}
    if target == "unit":
        hidden["target_scale"] = torch.tensor(unit)
    return Split(
        part("train"),
        part("test"),
        part("validation") if validation else None,
        name="hidden-polynomial",
        extras={key: value.to(kind) for key, value in hidden.items()},
    )


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
        chosen = choose_roots(self.roots, task.degree, (-BOUND, BOUND), self.seed)
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
        if kind not in KINDS:
            raise UsageError(f"got inputs {kind!r}; expected one of {', '.join(KINDS)}")
        config, seed, at = self._config, self._seed + s, (kind == "correlated", s)
        if at not in self._draws:
            sizes = {"train": config.train, "validation": config.validation, "test": config.test}
            options: dict[str, Any] = {
                "correlated": at[0],
                "dimension": config.dimension,
                "bound": BOUND,
                "dtype": "float64",
            }
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
