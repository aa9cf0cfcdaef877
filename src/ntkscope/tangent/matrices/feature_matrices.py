"""Feature matrices of every layer in one stream: what the weights look for (NFM), what the outputs react to (AGOP).

For an affine map `h = W a` with tangents `b = ∂f_c(x_i)/∂h` at position s: `K = 1/n Σ_i Σ_c Σ_s b bᵀ` (out, out) is the
covariance of the pre-activation tangents, `WᵀW` the neural feature matrix, and `WᵀKW` the average gradient outer product by the
layer's inputs, which for a convolution are its patches. Radhakrishnan et al. (2024); Beaglehole, Mitliagkas & Agarwala (2024),
section 2.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core import Certificate, NumericalError, Snapshot, UsageError
from ntkscope.core.checked import checked
from ntkscope.core.model.copies import duplicate
from ntkscope.core.sizes import parse_bytes
from ntkscope.linalg.features.correlation import Control, centred_pair, haar_control, weighted_correlation
from ntkscope.tangent.blocks.heads import OutputSketch, chosen_outputs
from ntkscope.tangent.certify.auditor import Certify
from ntkscope.tangent.matrices.run import Asked, run
from ntkscope.tangent.matrices.sites import INPUT
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.batches import as_batch
from ntkscope.tangent.model.subject import place, quiet

PASSES = 4  # of outputs="sketch"


@dataclass(frozen=True, eq=False)
class LayerFeatures:
    """The feature matrices of one layer, float64. `weight` (out, in) is the map from the layer's inputs to its pre-activations.

    `ptk` is K. `standard_error` is that of K, entry by entry, where outputs were sketched. `positions` counts those of one
    sample, over all calls of the layer; `seconds` is what its covariances took. Groups of a convolution are blocks of `weight`.

    Examples:
        >>> layer = LayerFeatures("fc", ptk=torch.eye(2), weight=torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        >>> layer.nfm.equal(layer.agop), round(layer.correlation(), 6)
        (True, 1.0)
    """

    name: str
    ptk: Float[Tensor, "out out"]
    weight: Float[Tensor, "out in"] | None = None
    initial_weight: Float[Tensor, "out in"] | None = None
    centred_ptk: Float[Tensor, "out out"] | None = None
    standard_error: Float[Tensor, "out out"] | None = None
    positions: int = 1
    seconds: float = 0.0

    @property
    def nfm(self) -> Float[Tensor, "in in"]:
        """`WᵀW`."""
        weight = self._weight()
        return weight.T @ weight

    @property
    def agop(self) -> Float[Tensor, "in in"]:
        """`WᵀKW`: by the layer's inputs, patches (channel, tap) of a convolution; of the network's own input, flattened."""
        return self.ptk if self.weight is None else self.weight.T @ self.ptk @ self.weight

    def correlation(self, centring: str | None = None, *, pearson: bool = False, diagonal: bool = False) -> float:
        """`ρ(WᵀW, WᵀKW)`, or centred by the initial network: "weights" (W - W₀), "both" (and the tangents), "tangents" (W₀).

        `pearson` subtracts the mean of the entries of each, `diagonal` compares diagonals; see `measures.feature_ansatz`.
        """
        weight, tangents = self._pair(centring)
        return weighted_correlation(weight, tangents, pearson=pearson, diagonal=diagonal)

    def control(
        self,
        draws: int = 200,
        seed: int = 0,
        *,
        centring: str | None = None,
        pearson: bool = False,
        diagonal: bool = False,
    ) -> Control:
        """The same correlation with K's eigenvectors replaced by Haar-distributed ones, `draws` times."""
        weight, tangents = self._pair(centring)
        return haar_control(weight, tangents, draws=draws, seed=seed, pearson=pearson, diagonal=diagonal)

    def _pair(self, centring: str | None) -> tuple[Tensor, Tensor]:
        weight = self._weight()
        if centring is not None and self.initial_weight is None:
            raise UsageError(f"got centring={centring!r} for features without initial weights; pass initial= as well")
        chosen, tangents = centred_pair(weight, self.ptk, self.initial_weight, self.centred_ptk, centring)
        if not bool(tangents.any()):
            what = "tangents did not move" if centring in ("both", "tangents") else "outputs do not react"
            raise NumericalError(
                f"the {what} at {self.name!r}: its K is zero, so the correlation is undefined (dead units, or outputs= that"
                " do not depend on it)"
            )
        return chosen, tangents

    def _weight(self) -> Tensor:
        if self.weight is None:
            raise UsageError(
                f"{self.name!r} is the network's input, which has no weights; expected a layer: use .agop here"
            )
        return self.weight


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMatrices(Mapping[str, LayerFeatures]):
    """The layers by name, in the order in which they are called, and the network's `"input"`.

    `left_out` says what is missing and why; `certificate`, how the tangents were checked against autograd.

    Examples:
        >>> found = ns.feature_matrices(model, x)
        >>> list(found), found["readout"] is found.layers["readout"], found.left_out
        (['input', 'layer1', 'readout'], True, {})
    """

    layers: Mapping[str, LayerFeatures]
    samples: int
    outputs: int
    left_out: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)  # further names of tied weights
    certificate: Certificate = field(default_factory=Certificate)
    seconds: float = 0.0

    def __getitem__(self, name: str) -> LayerFeatures:
        own = self.aliases.get(name, name)
        if own in self.layers:
            return self.layers[own]
        why = f": it was left out, {self.left_out[name]}" if name in self.left_out else ""
        raise UnknownLayer(f"got the layer {name!r}{why}; there are: {', '.join(self.layers)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __contains__(self, name: object) -> bool:
        return name in self.layers or name in self.aliases

    def __repr__(self) -> str:
        said = [
            f"FeatureMatrices of {len(self)} layers, {self.samples} samples, {self.outputs} outputs; {self.certificate}"
        ]
        for name, layer in self.layers.items():
            shape = "(no weights)" if layer.weight is None else f"W {tuple(layer.weight.shape)}"
            said.append(f"  {name}: {shape}, K {tuple(layer.ptk.shape)}, {layer.positions} positions")
        said += [f"  left out: {name}, {why}" for name, why in self.left_out.items()]
        return "\n".join(said)


class UnknownLayer(UsageError, KeyError):
    """A layer that is not there; a `KeyError` too, as mappings raise it."""

    def __str__(self) -> str:
        return str(self.args[0])


@checked
def feature_matrices(
    model: nn.Module,
    x: Any,
    *,
    layers: str | Sequence[str] | None = None,
    outputs: Any = None,
    initial: nn.Module | Mapping[str, Tensor] | Snapshot | None = None,
    memory: str | int | float = "2GiB",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    certify: Certify = "every",
    progress: bool = False,
) -> FeatureMatrices:
    """NFM, AGOP and the covariance of pre-activation tangents of every affine layer, from one stream over the samples.

    One forward pass and one pass back per output serve all layers and the input itself. `layers`: names or globs, such as
    `"layer1.*"` or `"input"`; default all. `outputs`: numbers of outputs, or `"sketch"` (`OutputSketch(k)`): k random sign
    combinations instead of all outputs, drawn anew for every sample. `initial`: the network before training (a module, its
    state dict, a `Snapshot`), for the centred forms. Blocks are cut so that the stream stays within `memory`; K is
    summed in float64.

    Layers are named after their modules; a packed attention has `.query`, `.key` and `.value`. A module that multiplies its
    inputs or outputs by a constant (NTK parametrisation) has that constant in `weight`. What no rule accounts for is named in
    `.left_out`.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1))
        >>> fm = feature_matrices(model, torch.eye(2))
        >>> list(fm), tuple(fm["0"].agop.shape)
        (['input', '0', '2'], (2, 2))
        >>> bool(torch.allclose(fm["0"].agop, fm["input"].agop))
        True
    """
    began = time.perf_counter()
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise UsageError(f"got dtype={dtype!r}; expected a floating-point torch.dtype such as torch.float64")
    guards.check_mode(model)
    before = None if initial is None else _network(model, initial)
    batch = as_batch(x, model)
    if len(batch) < 2:
        raise UsageError(
            "got one sample; expected at least two: the average over one sample is its own gradient's outer product"
        )
    guards.check_inputs_finite(batch)
    sketch = OutputSketch(PASSES) if isinstance(outputs, str) and outputs == "sketch" else outputs
    if isinstance(sketch, str):
        raise UsageError(f"got outputs={outputs!r}; expected numbers of outputs, 'sketch' or an OutputSketch")
    globs = None if layers is None else (layers,) if isinstance(layers, str) else tuple(layers)
    if globs == ():
        raise UsageError("got layers=[]; expected names of layers or globs such as 'layer1.*', or None for all")
    chosen = None if sketch is None or isinstance(sketch, OutputSketch) else chosen_outputs(sketch)
    with quiet(place(model, device), model, *([] if before is None else [before])):
        asked = Asked(
            model=differentiable(model),
            initial=None if before is None else differentiable(before),
            x=batch,
            layers=globs,
            outputs=chosen,
            sketch=sketch if isinstance(sketch, OutputSketch) else None,
            memory=parse_bytes(memory),
            device=device,
            dtype=dtype,
            certify=certify,
            progress=progress,
        )
        found = run(asked)
    made: dict[str, LayerFeatures] = {}
    n, stream = len(batch), found.stream
    if (total := stream.inputs) is not None:
        made[INPUT] = LayerFeatures(INPUT, total.value(n), standard_error=total.error(n), seconds=total.seconds)
    weights, initial_weights = stream.weights(0), stream.weights(1)
    for name, site in stream.sites.items():
        total, centred = stream.sums[name], stream.centred.get(name)
        factor = site.after**-2  # from the call's output to the module's
        error = total.error(n)
        made[name] = LayerFeatures(
            name,
            total.value(n) * factor,
            weights[name],
            initial_weights.get(name),
            None if centred is None else centred.value(n) * factor,
            None if error is None else error * factor,
            site.positions,
            total.seconds,
        )
    _check(made)
    spent = time.perf_counter() - began
    return FeatureMatrices(made, n, found.outputs, found.left_out, found.aliases, stream.certificate, spent)


def _check(made: Mapping[str, LayerFeatures]) -> None:
    broken = [name for name, layer in made.items() if not bool(torch.isfinite(layer.ptk).all())]
    if broken:
        raise NumericalError(
            f"the tangents of {', '.join(broken)} hold NaN or infinity, or overflow when squared; use dtype=torch.float64 or"
            " look at those layers"
        )
    if made and not any(bool(layer.ptk.any()) for layer in made.values()):
        raise NumericalError(
            f"no output reacts to {', '.join(made)} at any of these samples: all gradients are zero (dead units, saturated"
            " outputs); expected some that are not: look at the activations, or choose other outputs= or layers="
        )


def differentiable(model: nn.Module) -> nn.Module:
    """The model, or a copy that can be differentiated by weights that are frozen in it."""
    frozen = [p for p in model.parameters() if p.is_floating_point() and p.dim() > 1 and not p.requires_grad]
    if not frozen:
        return model
    copied = duplicate(model)
    for parameter in copied.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return copied


def _network(model: nn.Module, initial: Any) -> nn.Module:
    """The initial network as a module of its own."""
    if isinstance(initial, nn.Module):
        if initial is model:
            raise UsageError(
                "got initial= the trained network itself, so centred weights would be zero; expected a copy from before"
                " training: copy.deepcopy(model) then"
            )
        guards.check_mode(initial)
        return initial
    if isinstance(initial, Snapshot):
        initial = {**initial.params, **initial.buffers}
    if not isinstance(initial, Mapping):
        raise UsageError(
            f"got initial= of type {type(initial).__name__}; expected the network before training: a module, its state dict or"
            " a Snapshot"
        )
    copied = duplicate(model)
    try:
        copied.load_state_dict(dict(initial))
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UsageError(f"the state dict passed as initial= does not fit {type(model).__name__}: {error}") from error
    return copied
