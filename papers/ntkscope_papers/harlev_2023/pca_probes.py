"""Harlev et al., Figures 16 to 18: probes of the principal components of every layer of a residual network.

The published weights (Phan 2021) are not at hand: the ResNet-18 with the same pooling after the stem, which gives the layers
their sizes, is trained here; the ResNet-56 is a pretrained one. SVM: linear, one-vs-rest squared hinge, C chosen on a split
of the training items, as the paper names neither kernel nor C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import Record, Split, numpy_generator
from ntkscope.explain.probes import LayerProbe, ProbeProtocol, layer_probe
from ntkscope.measures.collapse import collapse
from ntkscope.measures.dimension import components_for
from ntkscope.measures.probe_agreement import PROBES
from ntkscope.measures.probes import ProbeSweep, sweep
from ntkscope.tangent import activations
from ntkscope_papers.framework import experiment as framework
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.experiment import Experiment
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.harlev_2023 import probe_claims as claims
from ntkscope_papers.harlev_2023.probe_figures import draw
from ntkscope_papers.harlev_2023.probe_peers import few_components, objectives
from ntkscope_papers.harlev_2023.probe_readings import CURVED, IDENTITIES, NETWORK, PEER, array_name, key
from ntkscope_papers.harlev_2023.probed_networks import Probed, images, probed, ready
from ntkscope_papers.qadeer_2023.networks import digits
from ntkscope_papers.shared.networks import logits_of

NAME = "pca-probes"


@dataclass(frozen=True)
class PcaProbes(Experiment):
    """Representations by principal components, Figures 16–18: k-NN, NCC and SVM on the first d components of every layer.

    `networks`: those that are probed at every layer; the first is judged, the others stand beside it.

    `seeds`: how many of each that is trained here; those after the first are probed on `further` components at most. `C`: of
    the SVM, None for one chosen on a split of the training items; `components`: at most so many, None for all. `validation`:
    the share of training items on which the best number of components is chosen as well.
    """

    name = NAME
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

    def measure(self, run: framework.Run) -> None:
        run_legs(
            run.record, legs(Run(self, run.record, run.root, run.seed, run.device)), self.legs, progress=run.progress
        )

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


@dataclass(frozen=True, eq=False)
class Run:
    """What a leg needs besides its own name."""

    config: PcaProbes
    record: Record
    root: str | None
    seed: int
    device: torch.device
    splits: dict[bool, Split] = field(default_factory=dict)  # by whether they are normalised for pretrained weights

    def split(self, network: Probed) -> Split:
        """The images, read once."""
        if network.pretrained not in self.splits:
            self.splits[network.pretrained] = images(self.config, network, self.root)
        return self.splits[network.pretrained]


def rows_of(run: Run, network: Probed, s: int, layer: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network, and one layer's activations of the training and the test items."""
    split = run.split(network)
    model = ready(run.config, run.record, network, split, run.root, run.seed + s, run.device)
    rows: dict[str, Tensor] = {}
    for name, part in (("train", split.train), ("test", split.test)):
        made = activations(model, part.x.to(run.device), layer, memory=run.config.memory)[layer]
        assert isinstance(made, Tensor)
        rows[name] = made
    return model, rows


def probed_layer(run: Run, network: Probed, s: int, layer: str) -> dict[str, Any]:
    """One layer of one network: every probe at every number of components, and how far the layer has collapsed."""
    config = run.config
    split = run.split(network)
    model, rows = rows_of(run, network, s, layer)
    most = config.components if s == 0 else min(config.further, config.components or config.further)
    how = ProbeProtocol(
        probes=PROBES,
        components=None if most is None else min(most, *rows["train"].shape),
        k=config.k,
        C=config.C,
        validation=config.validation,
        memory=config.memory,
        seed=run.seed,
    )
    found = layer_probe(layer, rows["train"], split.train.y, rows["test"], split.test.y, how)
    run.record.array(array_name(network.name, s, layer), packed(found.sweep))
    decisions = logits_of(model, split.test.x).argmax(1)
    measured = collapse(rows["train"], split.train.y, decisions=decisions, at=rows["test"])
    return {**described(found), "collapse": {name: rounded(value) for name, value in asdict(measured).items()}}


def rounded(value: float | None) -> float | None:
    return None if value is None else digits(value, 6)


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


def curved(run: Run, network: Probed, s: int) -> dict[str, Any]:
    """An SVM with a Gaussian kernel on a few components of the late layers: what one hyperplane a class cannot do there."""
    split, found = run.split(network), {}
    for layer in network.layers[network.last :]:
        rows = rows_of(run, network, s, layer)[1]
        found[layer] = few_components(rows["train"], split.train.y, rows["test"], split.test.y, run.seed)
    return found


def against_peer(run: Run, network: Probed, s: int) -> dict[str, Any]:
    """The SVM's objective and scikit-learn's at three layers and numbers of components."""
    split, found = run.split(network), {}
    for layer, d in zip((network.layers[-1], network.layers[network.early], network.layers[1]), (8, 50, 100)):
        rows = rows_of(run, network, s, layer)[1]
        found[f"{layer}, {d} components"] = objectives(rows["train"], split.train.y, d)
    return found


def whole_network(run: Run, network: Probed, s: int) -> dict[str, Any]:
    """The network's own accuracies."""
    split = run.split(network)
    model = ready(run.config, run.record, network, split, run.root, run.seed + s, run.device)
    parts = {"train": split.train, "test": split.test}
    right = {
        name: float((logits_of(model, part.x).argmax(1) == part.y).double().mean()) for name, part in parts.items()
    }
    return {**right, "items": {name: len(part) for name, part in parts.items()}}


def identities() -> dict[str, Any]:
    """What holds whatever the network: NCC is affine and blind to directions across its means; the 90 % mark's example."""
    random = numpy_generator(0, NAME, "identities")
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


def legs(run: Run) -> list[Leg]:
    found = [Leg(IDENTITIES, identities)]
    for name in run.config.networks:
        network = probed(name)
        for s in range(1 if network.pretrained else run.config.seeds):
            found.append(Leg(key(name, s, NETWORK), partial(whole_network, run, network, s)))
            found += [
                Leg(key(name, s, layer), partial(probed_layer, run, network, s, layer)) for layer in network.layers
            ]
            if s == 0:
                found.append(Leg(key(name, s, CURVED), partial(curved, run, network, s)))
                found.append(Leg(key(name, s, PEER), partial(against_peer, run, network, s)))
    return found
