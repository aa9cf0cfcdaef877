"""Harlev et al., Figures 16 to 18: probes of the principal components of every layer of a residual network.

The published weights (Phan 2021) are not at hand: the ResNet-18 with the same pooling after the stem, which gives the layers
their sizes, is trained here; the ResNet-56 is a pretrained one. SVM: linear, as the paper calls it affine; one-vs-rest
squared hinge and C chosen on a split of the training items, as it names neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib import colormaps
from matplotlib.figure import Figure
from sklearn.svm import SVC, LinearSVC
from torch import Tensor, nn

from ntkscope.core import Record, Split, numpy_generator
from ntkscope.explain.probes import LayerProbe, ProbeProtocol, layer_probe
from ntkscope.linalg import pca
from ntkscope.measures.collapse import collapse
from ntkscope.measures.dimension import components_for
from ntkscope.measures.probe_agreement import PROBES
from ntkscope.measures.probes import ProbeSweep, sweep
from ntkscope.tangent import activations
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.results import digits
from ntkscope_papers.harlev_2023 import probe_claims as claims
from ntkscope_papers.harlev_2023.probe_claims import RIGHT, Network, complete
from ntkscope_papers.harlev_2023.probed_networks import build, images, probed
from ntkscope_papers.shared.images import pretrained_network, residual_recipe
from ntkscope_papers.shared.networks import accuracy, logits_of, trained

TITLES = {"knn": "10-NN", "ncc": "nearest class centre", "svm": "SVM"}
FEW = (1, 2, 3, 4, 5, 7, 10)
MOST = 10_000  # training items of a kernel machine
C = 1e-3  # of the linear machines that are compared


@dataclass(frozen=True)
class PcaProbes(Experiment):
    """Representations by principal components, Figures 16–18: k-NN, NCC and SVM on the first d components of every layer.

    `networks`: those that are probed at every layer; the first is judged, the others stand beside it.

    `seeds`: how many of each that is trained here; those after the first are probed on `further` components at most. `C`: of
    the SVM, None for one chosen on a split of the training items; `components`: at most so many, None for all. `validation`:
    the share of training items on which the best number of components is chosen as well.
    """

    name = "pca-probes"
    statements = claims_of(claims)
    free = ("seeds", "memory", "further", "draws")

    dataset: str = "cifar10"
    networks: tuple[str, ...] = ("resnet18", "resnet56")
    seeds: int = 1
    train_items: int | None = None
    test_items: int | None = None
    enlarge: int = 1
    width: float = 1.0
    epochs: int = 40
    batch: int = 512
    lr: float = 0.4
    augment: bool = True
    k: int = 10
    C: float | None = None
    components: int | None = None
    validation: float = 0.1
    further: int = 2000
    draws: int = 1000
    memory: str = "96GiB"

    smoke = {
        "dataset": "digits",
        "networks": ("resnet18",),
        "train_items": 120,
        "test_items": 60,
        "enlarge": 2,
        "width": 0.0625,
        "epochs": 3,
        "batch": 30,
        "lr": 0.1,
        "augment": False,
        "C": 0.01,
        "components": 20,
        "draws": 200,
        "memory": "2GiB",
    }

    def prepare(self, run: Run) -> Callable[[bool], Split]:
        """The images by whether they are normalised for pretrained weights, read once."""
        return cache(lambda pretrained: images(self, pretrained, run.root))

    def cases(self) -> list[tuple[str, int]]:
        """Every network: its name, and its number among those of that name."""
        return [(name, s) for name in self.networks for s in range(1 if probed(name).pretrained else self.seeds)]

    @leg("identities")
    def identities(self, run: Run) -> dict[str, Any]:
        return identities()

    @leg("{}/{}/network", over=lambda self: self.cases())
    def whole_network(self, run: Run, name: str, s: int) -> dict[str, Any]:
        """The network's own accuracies."""
        model, split = self.network(run, name, s)
        parts = {"train": split.train, "test": split.test}
        right = {where: accuracy(model, part) for where, part in parts.items()}
        return {**right, "items": {where: len(part) for where, part in parts.items()}}

    @leg("{}/{}/{}", over=lambda self: [(name, s, layer) for name, s in self.cases() for layer in probed(name).layers])
    def layer(self, run: Run, name: str, s: int, layer: str) -> dict[str, Any]:
        """One layer of one network: every probe at every number of components, and how far the layer has collapsed."""
        model, split = self.network(run, name, s)
        train, test = self.rows(run, model, split, layer)
        most = self.components if s == 0 else min(self.further, self.components or self.further)
        how = ProbeProtocol(
            probes=PROBES,
            components=None if most is None else min(most, *train.shape),
            k=self.k,
            C=self.C,
            validation=self.validation,
            memory=self.memory,
            seed=run.seed,
        )
        found = layer_probe(layer, train, split.train.y, test, split.test.y, how)
        run.record.array(RIGHT.format(name, s, layer), packed(found.sweep))
        decisions = logits_of(model, split.test.x).argmax(1)
        measured = asdict(collapse(train, split.train.y, decisions=decisions, at=test))
        rounded = {key: None if value is None else digits(value, 6) for key, value in measured.items()}
        return {**described(found), "collapse": rounded}

    @leg("{}/0/gaussian-svm", over=lambda self: self.networks)
    def gaussian_svm(self, run: Run, name: str) -> dict[str, Any]:
        """An SVM with a Gaussian kernel on a few components of the late layers: what one hyperplane a class cannot do there."""
        model, split = self.network(run, name, 0)
        found = {}
        for layer in probed(name).layers[probed(name).last :]:
            train, test = self.rows(run, model, split, layer)
            found[layer] = few_components(train, split.train.y, test, split.test.y, run.seed)
        return found

    @leg("{}/0/linear-svc", over=lambda self: self.networks)
    def linear_svc(self, run: Run, name: str) -> dict[str, Any]:
        """The SVM's objective and scikit-learn's at three layers and numbers of components."""
        model, split = self.network(run, name, 0)
        layers, found = probed(name).layers, {}
        for layer, d in zip((layers[-1], layers[probed(name).early], layers[1]), (8, 50, 100)):
            train, _ = self.rows(run, model, split, layer)
            found[f"{layer}, {d} components"] = objectives(train, split.train.y, d)
        return found

    def network(self, run: Run, name: str, s: int) -> tuple[nn.Module, Split]:
        """In evaluation mode, read from the data folder or trained once and read from the record's; and its images."""
        split, seed = run.data(probed(name).pretrained), run.seed + s
        if probed(name).pretrained:
            return pretrained_network(name, run), split
        how = residual_recipe(epochs=self.epochs, batch=self.batch, lr=self.lr, augment=self.augment)
        make = partial(build, self, split, seed, name)
        return trained(run, f"{name}-{seed}", make, split.train, how, seed=seed), split

    def rows(self, run: Run, model: nn.Module, split: Split, layer: str) -> tuple[Tensor, Tensor]:
        """One layer's, of the training and the test items."""
        train, test = (
            activations(model, part.x.to(run.device), layer, memory=self.memory)[layer]
            for part in (split.train, split.test)
        )
        assert isinstance(train, Tensor)
        assert isinstance(test, Tensor)
        return train, test

    @figure
    def figures(self, record: Record) -> dict[str, Figure]:
        """For every complete network: sizes of its layers, accuracy over components, what 90 % of it needs, and collapse."""
        found: dict[str, Figure] = {}
        for network in complete(self, record):
            name = network.label.replace("/", "-")
            found[f"figure16-{name}"] = sizes(network)
            found[f"figure17-{name}"] = accuracies(network)
            found[f"figure18-{name}"] = components_needed(network)
            found[f"collapse-{name}"] = collapsing(network)
        if not found:
            found["figure16"], (axis,) = drawing.canvas()
            axis.set_title("no network has all its layers yet")
        return found


def packed(found: ProbeSweep) -> np.ndarray:
    """Which test items each probe gets right at each number of components, as bits: (probes, dims, items / 8)."""
    right = [[(found.predictions[p][d] == found.labels).cpu().numpy() for d in found.dims] for p in PROBES]
    return np.packbits(np.array(right), axis=2)


def described(found: LayerProbe) -> dict[str, Any]:
    """What the record keeps of a layer's probes."""
    judged = found.sweep
    explained = found.variance.cumsum(0)[-1] / found.total
    return {
        "width": found.width,
        "components": len(found.variance),
        "decomposition": {"method": found.method, "error": digits(found.error, 3), "total": digits(found.total, 8)},
        "dims": list(judged.dims),
        "accuracy": {probe: [judged.accuracy[probe][d] for d in judged.dims] for probe in judged.probes},
        "variance": [digits(judged.variance[d], 6) for d in judged.dims],
        "C": [judged.C["svm"][d] for d in judged.dims],
        "objective": [digits(judged.objective["svm"][d], 9) for d in judged.dims],
        "smallest": judged.smallest(0.9),
        "best": {probe: list(pair) for probe, pair in found.best("test").items()},
        "best by validation": {probe: list(pair) for probe, pair in found.best("validation").items()},
        "90 % of variance": components_for(found.variance, found.total) if explained >= 0.9 else None,
    }


def identities() -> dict[str, Any]:
    """What holds whatever the network: NCC is affine and blind to directions across its means; the 90 % mark's example."""
    random = numpy_generator(0, "pca-probes", "identities")
    y = np.repeat(np.arange(10), 50)
    seen = random.normal(size=(10, 9))[y] + random.normal(size=(500, 9))
    unseen = 5 * random.normal(size=(500, 60))
    for c in range(10):
        unseen[y == c] -= unseen[y == c].mean(0)  # nothing between the class means along these
    Z = np.concatenate([seen, unseen], axis=1)
    swept = sweep(Z, y, Z, y, [9, 30, 69], probes=("ncc",)).predictions["ncc"]
    means = np.stack([seen[y == c].mean(0) for c in range(10)])
    points = 3 * random.normal(size=(500, 9))
    nearest = np.square(points[:, None] - means).sum(2).argmin(1)
    affine = (points @ means.T - np.square(means).sum(1) / 2).argmax(1)
    accuracy = {1: 0.5, 2: 0.863, 3: 0.864, 4: 0.96}
    example = ProbeSweep((1, 2, 3, 4), (0, 1), torch.zeros(1), {"X": {}}, {"X": accuracy}, {})
    return {
        "predictions changed by directions across the means": int(
            (swept[9] != swept[69]).sum() + (swept[9] != swept[30]).sum()
        ),
        "points": len(points),
        "points where NCC is its affine form": int((nearest == affine).sum()),
        "best": 100 * max(accuracy.values()),
        "mark": round(90 * max(accuracy.values()), 6),
        "accuracy chosen": 100 * accuracy[example.smallest(0.9)["X"]],
    }


def few_components(
    train: Float[Tensor, "n p"], y: Int[Tensor, " n"], test: Float[Tensor, "m p"], labels: Int[Tensor, " m"], seed: int
) -> dict[str, Any]:
    """Test accuracy of a Gaussian and of a linear SVM on the first components, scikit-learn's default settings, and how many
    give the Gaussian one 90 % of its best."""
    found = pca(train, components=min(max(FEW), *train.shape), method="auto")
    Z, new = (found.transform(rows).double().cpu().numpy() for rows in (train, test))
    some = numpy_generator(seed, "few components").permutation(len(Z))[:MOST]
    targets, truth = y.cpu().numpy()[some], labels.cpu().numpy()
    accuracy: dict[str, list[float]] = {"gaussian": [], "linear": []}
    several = [d for d in FEW if d <= Z.shape[1]]
    for d in several:
        machines = {"gaussian": SVC(), "linear": LinearSVC(dual=False)}
        scale = Z[some, :d].std()
        for name, machine in machines.items():
            fit = machine.fit(Z[some, :d] / scale, targets)
            accuracy[name].append(digits(float((fit.predict(new[:, :d] / scale) == truth).mean()), 6))
    enough = [value >= 0.9 * max(accuracy["gaussian"]) for value in accuracy["gaussian"]]
    return {"components": several, **accuracy, "items": len(some), "smallest": several[enough.index(True)]}


def objectives(train: Float[Tensor, "n p"], y: Int[Tensor, " n"], d: int) -> dict[str, Any]:
    """½‖w‖² + C Σ max(0, 1 - yf)², all classes, on the first d components: ours, LinearSVC's, and their relative difference."""
    Z = pca(train, components=min(d, *train.shape), method="auto").transform(train).double()
    d = Z.shape[1]  # fewer where there is no more variance
    ours = sweep(Z, y.to(Z.device), Z[:20], y[:20].to(Z.device), [d], probes=("svm",), C=C).objective["svm"][d]
    a, targets = Z.cpu().numpy(), y.cpu().numpy()
    svm = LinearSVC(C=C, tol=1e-7, max_iter=1_000_000, dual=False).fit(a, targets)
    signs = 2.0 * (targets[:, None] == svm.classes_[None]) - 1
    short = np.maximum(0, 1 - signs * svm.decision_function(a))
    theirs = float((np.square(svm.coef_).sum() + np.square(svm.intercept_).sum()) / 2 + C * np.square(short).sum())
    return {"ours": digits(ours, 9), "LinearSVC": digits(theirs, 9), "apart": digits(abs(ours / theirs - 1), 3)}


def _names(axis: Any, network: Network) -> None:
    axis.set_xticks(range(len(network.rows)), network.network.layers, rotation=35, ha="right", fontsize=7)


def sizes(network: Network) -> Figure:
    drawn, (axis,) = drawing.canvas(width=5.6)
    places = range(len(network.rows))
    axis.bar(places, [row["width"] for row in network.rows], color=drawing.COLOURS[5], label="numbers per image")
    axis.plot(places, [row["components"] for row in network.rows], "o", color=drawing.COLOURS[0], label="components")
    drawing.label(
        axis, title=f"{network.label}, {100 * network.accuracy:.2f} % correct", y="flattened size", legend=True
    )
    _names(axis, network)
    return drawn


def accuracies(network: Network) -> Figure:
    drawn, axes = drawing.canvas(1, 3, width=4.2)
    shades = colormaps["viridis"]
    for axis, probe in zip(axes, PROBES):
        for k, (layer, row) in enumerate(zip(network.network.layers, network.rows)):
            colour = shades(0.95 - 0.9 * k / max(1, len(network.rows) - 1))
            axis.plot(row["dims"], row["accuracy"][probe], color=colour, linewidth=1.2, label=layer)
        axis.axhline(network.accuracy, color="#999999", linewidth=0.8, linestyle="--")
        drawing.label(axis, title=TITLES[probe], x="principal components", log="x")
    axes[0].set_ylabel("test accuracy")
    axes[-1].legend()
    return drawn


def components_needed(network: Network) -> Figure:
    drawn, (left, right) = drawing.canvas(1, 2, width=4.8)
    for k, probe in enumerate(PROBES):
        colour = drawing.COLOURS[k]
        left.plot(network.counts(probe), "o-", color=colour, label=TITLES[probe], markersize=4)
        right.plot(network.variances(probe), "o-", color=colour, label=TITLES[probe], markersize=4)
    drawing.plain_log(left)
    left.set_ylabel("components for 90 % of the best accuracy")
    right.set_ylabel("share of variance in them")
    right.axhspan(0.2, 0.4, color="#dddddd", zorder=0, label="published, later half")
    for axis in (left, right):
        _names(axis, network)
        axis.legend()
    return drawn


def collapsing(network: Network) -> Figure:
    """NC1 and CDNV by layer, and how often each layer is the first at which the probes agree."""
    found = network.agreement()
    drawn, (left, right) = drawing.canvas(1, 2, width=4.8)
    for k, name in enumerate(("nc1", "cdnv")):
        values = [row["collapse"][name] for row in network.rows]
        left.plot(values, "o-", color=drawing.COLOURS[k], label=name.upper(), markersize=4)
    drawing.plain_log(left)
    left.legend()
    _names(left, network)
    shares = [found.distribution[layer] for layer in network.network.layers]
    right.bar(range(len(shares)), shares, color=drawing.COLOURS[0])
    drawing.label(
        right,
        title=f"at no layer: {found.distribution[None]:.2f}",
        y="first layer where the probes agree, share of draws",
    )
    right.set_ylim(0, 1)
    _names(right, network)
    return drawn
