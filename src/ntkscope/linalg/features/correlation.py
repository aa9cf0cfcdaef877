"""How well `WᵀW` and `WᵀKW` agree, and how well they would if K's eigenvectors had nothing to do with W."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.core.arguments import from_numpy
from ntkscope.core.checked import Count
from ntkscope.core.shown import Shown

CENTRINGS = (None, "weights", "both", "tangents")
QUANTILES = (0.025, 0.25, 0.5, 0.75, 0.975)
NEGLIGIBLE = 1e-10  # share of the absolute spectrum that may be left out of the draws
WIDE = 512  # units of a layer above which random eigenvectors are drawn in the column space of its weights alone
CONSTANT = 1e-13  # of a matrix's square: what is left of a constant one after its mean is subtracted


@dataclass(frozen=True, eq=False, repr=False)
class Control(Shown):
    """Correlations with K's eigenvectors replaced by random ones, beside the `observed` one.

    Examples:
        >>> control = Control(0.9, np.array([0.4, 0.5, 0.6]))
        >>> round(control.mean, 6), control.quantiles[0.5], control.p_value
        (0.5, 0.5, 0.25)
        >>> control
        Control(observed=0.9, mean=0.5, p_value=0.25, values=float64 (3,))
    """

    observed: float
    values: Float[np.ndarray, " draws"]
    _shown = ("observed", "mean", "p_value", "values")

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def quantiles(self) -> Mapping[float, float]:
        """Of the draws; 0.025 and 0.975 are the ends of their 95 % range."""
        return {q: float(np.quantile(self.values, q)) for q in QUANTILES}

    @property
    def p_value(self) -> float:
        """The share of draws at least as high as the observed value, itself counted among them: never zero."""
        return (1 + int((self.values >= self.observed).sum())) / (1 + len(self.values))


def weighted_correlation(
    W: Tensor | np.ndarray, K: Tensor | np.ndarray, *, pearson: bool = False, diagonal: bool = False
) -> float:
    """`ρ(WᵀW, WᵀKW)` for W (out, in) and a symmetric K (out, out), in [-1, 1], whatever the scale of either.

    `ρ(A, B) = tr(AᵀB) / (‖A‖ ‖B‖)`; `pearson` first subtracts from each matrix the mean of its entries; `diagonal`
    compares the diagonals instead. Computed on the smaller side: O(in · out · min(in, out) + out²·min(in, out)), nothing
    of size in² where in > out. Beaglehole, Mitliagkas & Agarwala (2024), proposition 2 and appendix I.

    Examples:
        >>> W = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
        >>> weighted_correlation(W, 3 * torch.eye(2))
        1.0
    """
    W, K = _checked(W, K)
    if diagonal:
        return _cosine(*_moments_of_vectors((W * W).sum(0), (W * (K @ W)).sum(0), pearson))
    return _cosine(*_moments(W, K @ W, pearson))


def haar_control(
    W: Tensor | np.ndarray,
    K: Tensor | np.ndarray,
    *,
    draws: Count = 200,
    seed: int = 0,
    pearson: bool = False,
    diagonal: bool = False,
) -> Control:
    """`ρ(WᵀW, WᵀQW)` for `draws` matrices Q with K's spectrum and eigenvectors from the Haar measure.

    One QR decomposition (out, rank of K) per draw; (out, in) where a layer has more than 512 units and in is less: WᵀQW sees of
    Q's eigenvectors only their components in the space of W's columns, a corner of an orthogonal matrix. Note that `E[WᵀQW]` is
    proportional to `WᵀW`: single draws spread widely where K has few large eigenvalues. Beaglehole, Mitliagkas & Agarwala
    (2024), figures 1 and 9.

    Examples:
        >>> K = torch.diag(torch.tensor([1.0, 0.0, 0.0, 0.0]))
        >>> W = torch.diag(torch.tensor([9.0, 1.0, 1.0, 1.0]))
        >>> control = haar_control(W, K, draws=50)
        >>> round(control.observed, 3), control.mean < 0.9
        (1.0, True)
    """
    observed = weighted_correlation(W, K, pearson=pearson, diagonal=diagonal)
    W, K = _checked(W, K)
    spectrum = torch.linalg.eigvalsh(K)
    spectrum = spectrum[spectrum.abs().argsort(descending=True)]
    left = spectrum.abs().flip(0).cumsum(0).flip(0)  # what would be lost from here on
    spectrum = spectrum[: max(1, int((left > NEGLIGIBLE * left[0]).sum()))]
    drawn = generator(seed, "haar control")
    units, rank = len(K), len(spectrum)
    narrow = units > WIDE and W.shape[1] < rank
    weight = torch.linalg.qr(W, mode="r").R if narrow else W  # the same WᵀW, in coordinates of its columns' space
    small, row = _compact(weight), weight.sum(1)
    squares = (weight * weight).sum(0)
    values = np.empty(draws)
    for k in range(len(values)):
        if narrow:
            V = haar_corner(units, len(weight), rank, drawn).to(K.device)
        else:
            normal = torch.randn(units, rank, generator=drawn, dtype=torch.float64)
            V = torch.linalg.qr(normal.to(K.device)).Q  # the signs of its columns cancel in V Λ Vᵀ
        if diagonal:
            values[k] = _cosine(*_moments_of_vectors(squares, spectrum @ (V.T @ weight).square(), pearson))
        else:
            products = _moments_of_rows(small, V.T @ small, spectrum)
            if pearson:
                sums = float(row @ row), float(spectrum @ (V.T @ row).square())
                products = _centred(products, *sums, W.shape[1] ** 2)
            values[k] = _cosine(*products)
    return Control(observed, values)


def haar_corner(size: int, rows: int, columns: int, drawn: torch.Generator) -> Float[Tensor, "rows columns"]:
    """The corner of a Haar-distributed orthogonal matrix (size, size); O(size · rows²).

    Examples:
        >>> corner = haar_corner(4, 2, 4, torch.Generator().manual_seed(0))
        >>> bool(torch.allclose(corner @ corner.T, torch.eye(2, dtype=torch.float64)))
        True
    """
    Q, R = torch.linalg.qr(torch.randn(size, rows, generator=drawn, dtype=torch.float64))
    return (Q * R.diagonal().sign())[:columns].T  # as they come, the signs of Q's columns depend on Q


def centred_pair(
    W: Tensor, K: Tensor | None, W0: Tensor | None, Kc: Tensor | None, centring: str | None
) -> tuple[Tensor, Tensor]:
    """The weights and the covariance of tangents that a centring compares; what it needs and lacks is named.

    Examples:
        >>> W, W0, K = torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 1.0]]), torch.ones(1, 1)
        >>> centred_pair(W, K, W0, None, "weights")
        (tensor([[2., 0.]], dtype=torch.float64), tensor([[1.]]))
    """
    if centring not in CENTRINGS:
        raise UsageError(f"got centring={centring!r}; expected None, 'weights', 'both' or 'tangents'")
    if centring is not None and W0 is None:
        raise UsageError(f"got centring={centring!r} without initial weights; expected those training began with")
    if centring in ("both", "tangents") and Kc is None:
        raise UsageError(
            f"got centring={centring!r} without the covariance of centred tangents, 1/n Σ (b - b₀)(b - b₀)ᵀ, which is not the"
            " difference of two covariances; expected it too"
        )
    if W0 is not None and W0.shape != W.shape:
        raise UsageError(f"got weights {tuple(W.shape)} and initial weights {tuple(W0.shape)}; expected one shape")
    chosen = K if centring in (None, "weights") else Kc
    assert chosen is not None
    if chosen.shape != (len(W), len(W)):
        raise UsageError(
            f"got weights {tuple(W.shape)} and tangents {tuple(chosen.shape)}; expected (out, in) and (out, out)"
        )
    if centring is None:
        return W, chosen
    assert W0 is not None
    if centring == "tangents":
        return W0, chosen
    moved = W.to(torch.float64) - W0.to(W.device, torch.float64)
    if not bool(moved.any()):
        raise NumericalError(
            "the weights are the initial ones, so centred by them they are zero: the correlation is undefined"
        )
    return moved, chosen


Products = tuple[float, float, float]  # <A, B>, <A, A>, <B, B>


def _moments(W: Tensor, KW: Tensor, pearson: bool) -> Products:
    """Of `WᵀW` and `WᵀKW`, on the smaller side."""
    if W.shape[1] <= W.shape[0]:
        return _moments_of_vectors((W.T @ W).flatten(), (W.T @ KW).flatten(), pearson)
    S, T = W @ W.T, KW @ W.T  # tr(WᵀW WᵀKW) = tr(S K S), tr((WᵀKW)²) = tr(K S K S)
    products = float((S * T).sum()), float(S.square().sum()), float((T * T.T).sum())
    row = W.sum(1)
    return _centred(products, float(row @ row), float(row @ KW.sum(1)), W.shape[1] ** 2) if pearson else products


def _compact(W: Tensor) -> Tensor:
    """Some (out, at most out) matrix with the same `W Wᵀ`: all that traces of products of WᵀW and WᵀKW see."""
    if W.shape[1] <= W.shape[0]:
        return W
    values, vectors = torch.linalg.eigh(W @ W.T)
    return vectors * values.clamp_min(0).sqrt()


def _moments_of_rows(W: Tensor, rows: Tensor, spectrum: Tensor) -> Products:
    """Of `WᵀW` and `Rᵀ Λ R` for rows R (r, in) and a diagonal Λ."""
    ab = float(spectrum @ (W @ rows.T).square().sum(0))
    if rows.shape[0] <= rows.shape[1]:
        bb = float(spectrum @ (rows @ rows.T).square() @ spectrum)
    else:
        bb = float((rows.T @ (spectrum[:, None] * rows)).square().sum())
    return ab, float((W.T @ W).square().sum()), bb


def _centred(products: Products, a: float, b: float, count: int) -> Products:
    """The products after the means `a / count` and `b / count` are subtracted from the entries."""
    aa, bb = products[1] - a * a / count, products[2] - b * b / count
    return (
        products[0] - a * b / count,
        aa if aa > CONSTANT * products[1] else 0.0,
        bb if bb > CONSTANT * products[2] else 0.0,
    )


def _moments_of_vectors(a: Tensor, b: Tensor, pearson: bool) -> Products:
    if pearson:
        whole = float(a.square().sum()), float(b.square().sum())
        a, b = a - a.mean(), b - b.mean()
        aa, bb = float(a.square().sum()), float(b.square().sum())
        return float(a @ b), aa if aa >= CONSTANT**2 * whole[0] else 0.0, bb if bb >= CONSTANT**2 * whole[1] else 0.0
    return float(a @ b), float(a.square().sum()), float(b.square().sum())


def _cosine(ab: float, aa: float, bb: float) -> float:
    if not aa > 0 or not bb > 0:
        raise NumericalError(
            f"the correlation of WᵀW and WᵀKW is undefined where one is zero, or constant under pearson=True:"
            f" ‖WᵀW‖² {aa:.3g}, ‖WᵀKW‖² {bb:.3g} (scaled so that the largest entry of W and of K is 1)"
        )
    return min(1.0, max(-1.0, ab / (math.sqrt(aa) * math.sqrt(bb))))


def _checked(W: Tensor | np.ndarray, K: Tensor | np.ndarray) -> tuple[Tensor, Tensor]:
    """Both in float64, each divided by its largest entry, so that no product of them overflows or vanishes."""
    W, K = (from_numpy(x) if isinstance(x, np.ndarray) else x.detach() for x in (W, K))
    if W.dim() != 2 or tuple(K.shape) != (W.shape[0], W.shape[0]) or not W.numel():
        raise UsageError(
            f"got W of shape {tuple(W.shape)} and K of shape {tuple(K.shape)}; expected (out, in) and (out, out)"
        )
    W, K = W.to(torch.float64), K.to(W.device, torch.float64)
    scaled = []
    for matrix in (W, K):
        largest = matrix.abs().max()
        scaled.append(matrix / largest if largest > 0 else matrix)
    if not bool((scaled[1] - scaled[1].T).abs().max() <= 1e-6):
        raise UsageError("got a K that is not symmetric; expected the covariance of pre-activation tangents, K = Kᵀ")
    return scaled[0], (scaled[1] + scaled[1].T) / 2
