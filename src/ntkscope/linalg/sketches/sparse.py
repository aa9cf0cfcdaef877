"""Sparse random projections: each coordinate of a vector goes to `sparsity` of the `dim` rows, with random signs.

The rows are divided into `dim / sparsity` blocks, the coordinates are dealt to the blocks, and each block is a dense sign
projection of its own coordinates. For any g, h the expected inner product is exact, and with every coordinate dealt by
itself the variance is that of a dense sign projection, `(‖g‖²‖h‖² + (g·h)² - 2 Σ g_i² h_i²) / dim`, since two
coordinates meet with probability `sparsity / dim` and then in `sparsity` rows (Kane & Nelson 2014, block construction).
Long vectors are dealt in runs, which a GPU reads at full speed: coordinates of one run always meet, which adds about 1/16 of
the variance or less where the vector is spread evenly over its runs, `Σ_r (‖g_r‖²‖h_r‖² + (g_r·h_r)²) / sparsity` in general.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ntkscope.core import UsageError, derive_seed
from ntkscope.linalg.sketches.sketch import random_words, signs

SPARSITY = 64
ROUNDS, LONGEST = 16, 256  # each block gets at least so many runs of a vector, each of at most so many coordinates


def check_sparsity(dim: int, sparsity: int | None) -> int:
    """How many rows a coordinate goes to: as requested, else 64 (all, if there are fewer).

    >>> check_sparsity(10240, None), check_sparsity(48, None)
    (64, 48)
    """
    if dim < 1:
        raise UsageError(f"projection to {dim} dimensions; expected at least 1")
    chosen = min(SPARSITY, dim) if sparsity is None else sparsity
    if not 1 <= chosen <= dim or dim % chosen:
        near = max(1, round(dim / max(1, chosen))) * max(1, chosen)
        raise UsageError(
            f"got dim={dim} with sparsity={chosen}; expected a multiple of the sparsity: dim={near}, or another sparsity="
        )
    return chosen


@dataclass(frozen=True)
class SparseSketch:
    """The sparse projection of the vector `name` of `numbers` coordinates; a seed and a name mean one projection.

    >>> found = SparseSketch(0, "w", 6, dim=8, sparsity=4).matrix()
    >>> (found != 0).sum(1).tolist(), found.square().sum(1).tolist()
    ([4, 4, 4, 4, 4, 4], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    """

    seed: int
    name: str
    numbers: int
    dim: int
    sparsity: int

    @property
    def blocks(self) -> int:
        return self.dim // self.sparsity

    @property
    def run(self) -> int:
        """Coordinates dealt together: a power of two, 1 for short vectors."""
        longest = min(LONGEST, self.numbers // (ROUNDS * self.blocks))
        return 1 << max(0, longest.bit_length() - 1)

    @property
    def scale(self) -> float:
        """What the signs of `parts` are multiplied by in the projection."""
        return self.sparsity**-0.5

    def parts(
        self, start: int, stop: int, width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[Int[Tensor, "blocks inner"], Float[Tensor, "blocks inner rows"]]]:
        """The coordinates [start, stop) as each block sees them, and their signs, about `width` of them per block at a time.

        Of a vector `g` from `start` on, block b is the sum over parts of `g[index[b]] @ signs[b]`; places that have no
        coordinate have index 0 and signs 0.
        """
        blocks, run = self.blocks, self.run
        first, last = start // (blocks * run), -(-stop // (blocks * run))
        step = max(1, width // run)
        key = derive_seed(self.seed, "sparse projection", self.name)
        within = torch.arange(run, device=device)
        for at in range(first, last, step):
            rounds = torch.arange(at, min(last, at + step), device=device)
            shifts = random_words(key, rounds, torch.zeros(1, dtype=torch.int64, device=device))[:, 0] % blocks
            places = (torch.arange(blocks, device=device)[:, None] - shifts) % blocks  # of the round's runs, by block
            runs = rounds * blocks + places
            coordinates = (runs[..., None] * run + within).reshape(blocks, -1)
            inside = (coordinates >= start) & (coordinates < stop)
            drawn = signs(key ^ 0x2545F491, coordinates.flatten(), 0, self.sparsity, 1, dtype)
            drawn = drawn.reshape(*coordinates.shape, self.sparsity)
            if not bool(inside.all()):
                drawn = drawn * inside[..., None]
                coordinates = torch.where(inside, coordinates, start)
            yield coordinates - start, drawn

    def matrix(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "numbers dim"]:
        """The projection as a dense matrix, for inspecting small ones."""
        found = torch.zeros(self.numbers, self.blocks, self.sparsity, dtype=dtype)
        for index, drawn in self.parts(0, self.numbers, 1 << 20, dtype):
            blocks = torch.arange(self.blocks)[:, None].expand_as(index)
            found.index_put_((index, blocks), drawn, accumulate=True)
        return found.flatten(1) * self.scale
