"""Layer probes: what simple classifiers read from the principal components of each layer's activations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope.core import Part, UsageError, generator
from ntkscope.core.checked import Count, Numbers, Positive, Probability, renamed
from ntkscope.core.model.tree import length, take
from ntkscope.linalg.features.pca import PCA, pca
from ntkscope.linalg.features.rows import FeatureRows, Features
from ntkscope.measures.probes import PROBES, ProbeSweep, grid, sweep
from ntkscope.tangent import activations


@renamed(standardise="standardize")
@dataclass(frozen=True)
class ProbeProtocol:
    """How a layer is probed: which probes, on which numbers of components, and what decides C and the best number.

    `dims`: None for the published grid up to the number of components. `validation`: the share of the training items on
    which the best number of components is chosen as well; None: not at all.

    Examples:
        >>> protocol = ProbeProtocol(probes=("ncc",), dims=(1, 2), validation=None)
        >>> ns.explain.probes(model, (x, y), (x, y), **vars(protocol))["layer1"].sweep.accuracy["ncc"]
        {1: 1.0, 2: 1.0}
    """

    probes: Sequence[str] = PROBES
    dims: Sequence[int] | None = None
    components: Count | None = None
    standardize: bool = True
    k: Count = 10
    C: Positive | None = None
    validation: Probability | None = 0.1
    method: Literal["auto", "exact", "randomised"] = "auto"
    memory: str | int | float = "2GiB"
    seed: int = 0


@dataclass(frozen=True, eq=False)
class LayerProbe:
    """One layer: its probes judged on the test items, and on held-out training items by which a number of components is chosen.

    `variance` of each component, `total` variance, `error` and `method` are those of the decomposition.
    """

    layer: str
    width: int
    sweep: ProbeSweep
    validation: ProbeSweep | None
    variance: Float64[Tensor, " k"]
    total: float
    error: float
    method: str

    def best(self, chosen_on: Literal["test", "validation"] = "test") -> dict[str, tuple[int, float]]:
        """For each probe the number of components and its accuracy on the test items.

        `"test"`: the best on those items themselves, which is the published rule and flatters. `"validation"`: the best on
        held-out training items, fitted without them.
        """
        judge = {"test": self.sweep, "validation": self.validation}.get(chosen_on)
        if judge is None:
            raise UsageError(
                f"got chosen_on={chosen_on!r}; expected 'test', or 'validation' where probes were given a validation share"
            )
        return {probe: (d, self.sweep.accuracy[probe][d]) for probe, d in judge.best().items()}


@dataclass(frozen=True, eq=False)
class LayerProbes(Mapping[str, LayerProbe]):
    """The probed layers by name, in the order of the network."""

    layers: Mapping[str, LayerProbe]

    def __getitem__(self, name: str) -> LayerProbe:
        if name not in self.layers:
            raise KeyError(f"no layer {name!r} was probed; there are: {', '.join(self.layers)}")
        return self.layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return f"LayerProbes({', '.join(self.layers)})"

    def smallest(self, share: float = 0.9) -> dict[str, dict[str, int]]:
        """For each probe and layer the smallest number of components with `share` of that probe's best accuracy there."""
        found = {name: layer.sweep.smallest(share) for name, layer in self.layers.items()}
        probes = next(iter(self.layers.values())).sweep.probes
        return {probe: {name: needed[probe] for name, needed in found.items()} for probe in probes}


@renamed(standardise="standardize")
def probes(
    model: nn.Module,
    train: Part | tuple[Any, Any],
    test: Part | tuple[Any, Any],
    layers: str | Sequence[str] | None = None,
    *,
    reduce: Literal["flatten", "mean"] | Callable[[Tensor], Tensor] = "flatten",
    store: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    **protocol: Any,
) -> LayerProbes:
    """Probe every layer: activations, standardised; principal components of the training items; classifiers on the first d.

    `train`, `test`: inputs with labels, a `Part` such as `split.train` or a pair (x, y). `layers`, `reduce`, `store` and
    `device` are those of `ns.tangent.activations`; with `store` the network is run once over each part for all layers,
    else once per layer. Everything else is a field of `ProbeProtocol`: `probes`, `dims`, `components`, `standardize`, `k`, `C`,
    `validation`, `method`, `memory` (of each step), `seed`. Test items see the transforms of the training items only;
    the components, which use no labels, are those of all training items, also where some of them are held out.

    Examples:
        >>> from ntkscope.core import Part
        >>> x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        >>> part = Part(x, (x[:, 0] > 0).long())
        >>> found = probes(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), part, part, probes=("ncc",), dims=[1, 4])
        >>> list(found), found["0"].width, list(found["0"].sweep.accuracy["ncc"])
        (['0'], 8, [1, 4])
    """
    unknown = [name for name in protocol if name not in ProbeProtocol.__dataclass_fields__]
    if unknown:
        raise UsageError(
            f"got {', '.join(unknown)}; expected fields of ProbeProtocol: {', '.join(ProbeProtocol.__dataclass_fields__)}"
        )
    how = ProbeProtocol(**protocol)
    (x_train, y_train), (x_test, y_test) = ((p.x, p.y) if isinstance(p, Part) else p for p in (train, test))

    def rows(x: Any, names: Any, part: str) -> Mapping[str, Any]:
        place = None if store is None else f"{os.fspath(store).rstrip('/')}/{part}"
        return activations(model, x, names, reduce=reduce, store=place, memory=how.memory, device=device)

    found: dict[str, LayerProbe] = {}
    if store is not None:
        behind = rows(x_train, layers, "train")
        ahead = rows(x_test, list(behind), "test")
        for name in behind:
            found[name] = layer_probe(name, behind[name], y_train, ahead[name], y_test, how)
        return LayerProbes(found)
    for name in _names(model, x_train, layers, device):
        behind, ahead = rows(x_train, name, "train"), rows(x_test, name, "test")
        found[name] = layer_probe(name, behind[name], y_train, ahead[name], y_test, how)
    return LayerProbes(found)


def layer_probe(
    layer: str, train: Features, y_train: Numbers, test: Features, y_test: Any, protocol: ProbeProtocol | None = None
) -> LayerProbe:
    """One layer's probes from features (n, width) of the training and (m, width) of the test items, tensors or stores.

    Examples:
        >>> found = layer_probe("inputs", x, y, x, y, ProbeProtocol(probes=("knn", "ncc"), dims=(1, 2), k=1, validation=None))
        >>> found.sweep.accuracy
        {'knn': {1: 1.0, 2: 1.0}, 'ncc': {1: 1.0, 2: 1.0}}
    """
    how = protocol or ProbeProtocol()
    found = pca(
        train,
        components=how.components,
        standardise=how.standardize,
        method=how.method,
        memory=how.memory,
        seed=how.seed,
    )
    dims = grid(len(found)) if how.dims is None else [int(d) for d in how.dims]
    Z_train, Z_test = (found.transform(features, min(max(dims), len(found))) for features in (train, test))
    labels = torch.as_tensor(y_train).to(Z_train.device)
    judged = _swept(found, Z_train, labels, Z_test, y_test, dims, how)
    held: ProbeSweep | None = None
    if how.validation is not None:
        order = torch.randperm(len(Z_train), generator=generator(how.seed, "probe validation")).to(Z_train.device)
        count = max(1, round(how.validation * len(order)))
        kept, out = order[count:], order[:count]
        held = _swept(found, Z_train[kept], labels[kept], Z_train[out], labels[out], dims, how)
    width = FeatureRows.of(train).width
    return LayerProbe(layer, width, judged, held, found.variance, found.total, found.error, found.method)


def _swept(
    found: PCA, Z_train: Tensor, y_train: Tensor, Z_test: Tensor, y_test: Any, dims: Sequence[int], how: ProbeProtocol
) -> ProbeSweep:
    return sweep(Z_train, y_train, Z_test, y_test, dims, probes=how.probes, k=how.k, C=how.C, total=found.total)


def _names(model: nn.Module, x: Any, layers: Any, device: Any) -> list[str]:
    """The layers to probe, found on a few samples."""
    if isinstance(layers, str):
        return [layers]
    if layers is not None:
        return list(layers)
    few = take(x, torch.arange(min(3, length(x))))
    return list(activations(model, few, device=device))
