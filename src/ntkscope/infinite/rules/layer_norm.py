"""Layer normalisation, over channels or over the whole image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

from torch import Tensor, nn

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.checked import NonNegative
from ntkscope.infinite.field import Field, Values
from ntkscope.infinite.layer import Context, Layer, Need, Shape, Weightless
from ntkscope.infinite.registry import Translator, layer, module_rule


@layer
@final
@dataclass(frozen=True)
class LayerNorm(Weightless):
    """(x − mean) / √(variance + eps) over the features: Σ′ = Σ / √((q₁ + eps)(q₂ + eps)), Θ′ likewise.

    Units have mean zero behind random weights, so the mean drops out; behind anything else it is refused. `over`:
    "channels" at each position, or "all" channels and positions together. It has no scale and shift of its own.

    Examples:
        >>> from ntkscope.infinite import Dense, kernel, serial
        >>> x = torch.tensor([[3.0, 4.0], [0.0, 9.0]])
        >>> kernel(serial(Dense(), LayerNorm()), x, kind="nngp").dense()
        tensor([[1.0000, 0.8000],
                [0.8000, 1.0000]], dtype=torch.float64)
    """

    over: Literal["channels", "all"] = "channels"
    eps: NonNegative = 0.0
    sizes: tuple[int, ...] | None = None
    """The axes it covers, if known: features, or features and the image's sides."""
    channels: int | None = None
    """How many channels it takes, if known."""

    def shape(self, given: Shape, path: str) -> Shape:
        if not given.gaussian:
            raise UsageError(
                f"{self} (at {path!r}) follows something without random weights, whose mean is not zero; expected it"
                " directly behind Dense or Conv"
            )
        if self.sizes is not None and len(self.sizes) != 1 + len(given.spatial):
            raise UsageError(
                f"a layer norm (at {path!r}) over the last {len(self.sizes)} axes follows {given}; expected all axes"
                " but the first, or LayerNorm() over channels"
            )
        actual = (given.features, *given.spatial)
        expected = self.sizes if self.sizes is not None else (self.channels, *given.spatial)
        if any(a is not None and e is not None and a != e for a, e in zip(actual, expected)):
            raise UsageError(
                f"a normalisation of sizes {expected} (at {path!r}) follows {given}; expected the same sizes: PyTorch"
                " refuses others"
            )
        return given

    def need(self, out: Need, single: bool) -> Need:
        return max(out, Need.SAME) if single else out

    def fresh(self, before: bool) -> bool:
        return before

    def follows_shifts(self, wrap: bool) -> bool:
        return self.over == "channels"

    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        q1, q2 = context.variances(path, given)
        if self.over == "all" and given.spatial:
            if context.single:
                means = [context.left[path].mean(tuple(range(len(given.spatial))))] * 2
            else:
                assert context.right is not None
                means = [q.mean(tuple(range(len(given.spatial)))) for q in (context.left[path], context.right[path])]
                means = [means[0][:, None], means[1][None, :]]
            q1, q2 = means
        scale1, scale2 = (_inverse_root(self._denominator(q, path)) for q in (q1, q2))
        return given.mapped(lambda values: values * scale1 * scale2)

    def _denominator(self, q: Values, path: str) -> Values:
        total = q + self.eps
        if self.eps == 0 and isinstance(total, Tensor) and bool((total == 0).any()):
            raise NumericalError(
                f"{self} (at {path!r}) got an input whose units are all zero, and divides by their size; expected"
                " eps > 0, a bias before it, or inputs that are not zero"
            )
        return total

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        return Normalised(self.over, self.eps)


def _inverse_root(q: Values) -> Values:
    return q.rsqrt() if isinstance(q, Tensor) else q**-0.5


class Normalised(nn.Module):
    """(x − mean) / √(variance + eps) over axis 1, or over all axes but the first."""

    def __init__(self, over: str, eps: float | int) -> None:
        super().__init__()
        self.over, self.eps = over, eps

    def forward(self, x: Tensor) -> Tensor:
        axes = (1,) if self.over == "channels" else tuple(range(1, x.dim()))
        centred = x - x.mean(axes, keepdim=True)
        return centred * (centred.square().mean(axes, keepdim=True) + self.eps).rsqrt()


@module_rule(nn.LayerNorm)
def layer_norm(module: nn.LayerNorm, translate: Translator, path: str) -> Layer:
    """Over vectors, or over all of an image: PyTorch normalises the last axes."""
    _refuse_affine(module, path)
    return LayerNorm("all", float(module.eps), tuple(module.normalized_shape))


@module_rule(nn.GroupNorm)
def group_norm(module: nn.GroupNorm, translate: Translator, path: str) -> Layer:
    """One group is layer normalisation over all of an image."""
    if module.num_groups != 1:
        raise UsageError(f"GroupNorm (at {path!r}) has {module.num_groups} groups; expected 1, which is LayerNorm")
    _refuse_affine(module, path)
    return LayerNorm("all", float(module.eps), channels=module.num_channels)


def _refuse_affine(module: Any, path: str) -> None:
    """A trained scale would meet its own unit's activation, which the recursion of the NTK does not know."""
    name = type(module).__name__
    plain = ((module.weight, 1.0), (module.bias, 0.0))
    if any(p is not None and not bool((p == value).all()) for p, value in plain):
        raise UsageError(
            f"{name} (at {path!r}) has a scale other than 1 or a shift other than 0; expected it without them"
        )
    if any(p is not None and p.requires_grad for p, _ in plain):
        raise UsageError(
            f"{name} (at {path!r}) has a trained scale and shift, which have no rule; expected"
            f" {name}(…, {'elementwise_affine' if name == 'LayerNorm' else 'affine'}=False), or them frozen with"
            " requires_grad_(False)"
        )
