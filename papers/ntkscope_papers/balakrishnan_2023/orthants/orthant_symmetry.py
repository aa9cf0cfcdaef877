"""Balakrishnan (2023), Tables 1 and 2, Figures 1 and 2: what networks and kernel machines say in an orthant they never saw.

The document leaves widths, rates, lengths and C open; the grids are those of the code it names. Its tangent kernel is that of
the network's probability in that code and of "the network function" in its text: both are measured. Every seed has its own
data, empty orthant and network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import generator
from ntkscope.data.orthant_shells import orthant_signs
from ntkscope.kernels import kernel
from ntkscope_papers.balakrishnan_2023.orthants import claims, figures, measures
from ntkscope_papers.balakrishnan_2023.orthants import machines as svm
from ntkscope_papers.balakrishnan_2023.orthants.arithmetic import implied_counts, recovered_counts
from ntkscope_papers.balakrishnan_2023.orthants.data import AUTHORS, SHARE, distances_from, empty_orthant, shells
from ntkscope_papers.balakrishnan_2023.orthants.machines import LINEAR_SVC, READINGS
from ntkscope_papers.balakrishnan_2023.orthants.networks import CHOSEN, OrthantNetworks, logits
from ntkscope_papers.framework import Run, claims_of, figure, leg

ARRANGEMENTS = ("scattered", "gathered")


@dataclass(frozen=True)
class OrthantSymmetry(OrthantNetworks):
    """Learning symmetry, Tables 1, 2, Figures 1, 2: networks and kernel machines in an orthant without training items.

    `empties`: how many orthants are empty in the further data sets, with `sparse` sparse ones beside them; `coverage_steps`,
    `coverage_patience`: how long networks train on those, in updates, as smaller data sets have shorter epochs. `gammas`: of
    the RBF kernel, in units of 1 / (d · variance).
    """

    name = "orthant-symmetry"
    statements = claims_of(claims)

    empties: tuple[int, ...] = (8, 32, 64)
    sparse: tuple[int, ...] = (8, 32, 32)
    coverage_steps: int = 50_000
    coverage_patience: int = 15_000
    gammas: tuple[float, ...] = (1.0, 10.0, 100.0)

    smoke = {
        **OrthantNetworks.smoke,
        **{"empties": (8,), "sparse": (4,), "coverage_steps": 40, "coverage_patience": 20, "gammas": (10.0,)},
    }

    figure1 = figure(figures.figure_1)
    table1 = figure(figures.table_1)
    table2 = figure(figures.table_2)
    profiles = figure(figures.profiles)
    figure2 = figure(figures.figure_2)
    covered = figure(figures.coverage)

    @property
    def known(self) -> list[int]:
        """The depths whose settings by the authors are known."""
        return [depth for depth in self.depths if depth in CHOSEN]

    @leg()
    def arithmetic(self, run: Run) -> dict[str, Any]:
        """The n that Table 1's intervals imply, and the counts behind Table 2's."""
        return {"implied n": implied_counts(), "wilson": recovered_counts()}

    @leg("data")
    def generated(self, run: Run) -> dict[str, Any]:
        """The data of the first seed, checked, and matches by the distance of the inputs themselves for every seed."""
        split, centres, away = shells(self, run.seed), 4 * orthant_signs(self.dimension), 0.0
        for part in (split.train, split.test):
            radius = (part.x.double() - centres[part.extras["orthant"]]).norm(dim=1)
            away = max(away, float((radius - (1 + part.y)).abs().max()))
        matches = []
        for seed in self.seeds_of(run):
            own = split if seed == run.seed else shells(self, seed)
            matches.append(measures.class_matches(own.train.x.double(), own.test.x.double(), own, empty_orthant(own)))
        return {
            "train": len(split.train),
            "test": len(split.test),
            "orthants": 2**self.dimension,
            "largest distance from a shell": away,
            "training items in the empty orthant": int((split.train.extras["orthant"] == empty_orthant(split)).sum()),
            "matches by distance of inputs": matches,
        }

    @leg()
    def definition(self, run: Run) -> dict[str, Any]:
        """The engine's kernel of a fresh network of every depth against inner products of autograd's gradients, by pairs."""
        found = {}
        x = shells(self, run.seed).train.x.double()
        x = x[torch.randperm(len(x), generator=generator(run.seed, "definition"))[:12]]
        for depth in self.depths:
            model = self.build(depth, run.seed, self.widths[0]).double()
            for reading, subject in zip(READINGS, (model, nn.Sequential(model, nn.Sigmoid()))):
                gram = kernel("trntk0", subject, x).dense()
                rows = [_gradient(subject, item) for item in x]
                pairs = torch.stack([torch.stack([a @ b for b in rows]) for a in rows])
                values = torch.linalg.eigvalsh((gram + gram.T) / 2)
                found[f"{depth}, {reading}"] = {
                    "error": float((gram - pairs).norm() / pairs.norm()),
                    "asymmetry": float((gram - gram.T).abs().max() / gram.abs().max()),
                    "smallest eigenvalue": float(values[0] / values[-1]),
                }
        worst = {name: max(row[name] for row in found.values()) for name in ("error", "asymmetry")}
        return {
            **worst,
            "smallest eigenvalue": min(row["smallest eigenvalue"] for row in found.values()),
            "each": found,
        }

    @leg("networks/{}", over=lambda self: self.depths)
    def measured_networks(self, run: Run, depth: int, arm: str = "plain") -> dict[str, Any]:
        """All seeds of one depth: accuracies by orthant, matches before and after training, radial profiles, folding."""
        trained, settings = self.networks(run, depth, arm)[arm], self.chosen(run, depth, arm)
        rows: list[dict[str, Any]] = []
        accuracies, profiles = [], []
        for seed, model in zip(self.seeds_of(run), trained):
            split = shells(self, seed)
            empty = empty_orthant(split)
            before = self.build(depth, seed, int(settings["width"])).to(run.device).eval()
            own = measures.accuracy_by_orthant(logits(model, split.test.x), split.test, 2**self.dimension)
            scores, radii = measures.radial_scores(partial(logits, model), self, seed)
            accuracies.append(_from_empty(own, empty))
            profiles.append(_from_empty(measures.by_radius(torch.sigmoid(scores)), empty))
            rows.append(
                {
                    "seed": seed,
                    "empty orthant": empty,
                    **measures.parted(own, empty),
                    "initial matches": measures.matched(before, split, empty),
                    "matches": measures.matched(model, split, empty),
                    "folding": measures.folding(scores, radii, empty),
                }
            )
        run.record.array(f"{_prefix(arm)}accuracy-{depth}", np.stack(accuracies).astype(np.float32))
        run.record.array(f"{_prefix(arm)}profile-{depth}", np.stack(profiles).astype(np.float32))
        return {"networks": rows, **({"chosen": settings} if arm == AUTHORS else {})}

    @leg("authors/{}", over=lambda self: self.known, optional=True)
    def networks_by_authors(self, run: Run, depth: int) -> dict[str, Any]:
        """The same by the settings of the report's public code."""
        return self.measured_networks(run, depth, AUTHORS)

    @leg(
        "coverage/{}/{}",
        over=lambda self: [
            (depth, *counts) for depth in self.depths for counts in zip(self.empties, self.sparse, strict=True)
        ],
    )
    def coverage(self, run: Run, depth: int, empties: int, sparse: int) -> dict[str, Any]:
        """Networks on data with several empty and sparse orthants, at random or gathered around one: accuracy by distance.

        Gathered: the empty orthants are those nearest to one of them, so that some are several signs from every dense one.
        """
        splits = {}
        for arrangement, seed in product(ARRANGEMENTS, self.seeds_of(run)):
            empty: Any = empties
            if arrangement == "gathered":
                centre = empty_orthant(shells(self, seed))
                empty = np.argsort(distances_from(centre, self.dimension), kind="stable")[:empties].tolist()
            splits[arrangement, seed] = shells(
                self, seed, empty=empty, sparse=sparse, sparse_per_class=max(1, self.per_class // 10)
            )
        items = len(splits[ARRANGEMENTS[0], run.seed].train)
        per_epoch = max(1, round((1 - SHARE) * items / self.batch))
        ensemble = self.fit_all(
            run,
            depth,
            {key: split.train for key, split in splits.items()},
            epochs=math.ceil(self.coverage_steps / per_epoch),
            patience=math.ceil(self.coverage_patience / per_epoch),
        )
        found: dict[str, Any] = {arrangement: [] for arrangement in ARRANGEMENTS}
        for i, ((arrangement, _), split) in enumerate(splits.items()):
            own = measures.accuracy_by_orthant(
                logits(ensemble.member(i).eval(), split.test.x), split.test, 2**self.dimension
            )
            kinds = {kind: split.extras[kind].tolist() for kind in ("dense", "sparse", "empty")}
            found[arrangement].append(measures.by_distance(own, kinds, self.dimension))
        return {**found, "steps": ensemble.steps.tolist(), "items": items}

    def scored(
        self, run: Run, seed: int, machine: svm.Machine, score: measures.Score, array: str | None = None
    ) -> dict[str, Any]:
        """A machine's accuracies; with `array`, its shares of class 1 by orthant and radius go there."""
        split = shells(self, seed)
        empty = empty_orthant(split)
        own = measures.accuracy_by_orthant(score(split.test.x), split.test, 2**self.dimension)
        if array is not None:
            scores, _ = measures.radial_scores(score, self, seed)
            run.record.array(array, _from_empty(measures.by_radius(scores > 0), empty).astype(np.float32))
        return {**measures.parted(own, empty), **machine.told}

    @leg("svm/linear/{}", over=lambda self: self.fitted)
    def linear(self, run: Run, s: int) -> dict[str, Any]:
        seed = run.seed + s
        return self.scored(run, seed, *svm.linear_machine(shells(self, seed).train, self.choice(seed), run.device))

    @leg("svm/rbf/{}", over=lambda self: self.fitted)
    def rbf(self, run: Run, s: int) -> dict[str, Any]:
        seed = run.seed + s
        machine = svm.rbf_machine(shells(self, seed).train, self.gammas, self.choice(seed), run.device)
        return self.scored(run, seed, *machine, array=f"share-rbf-{s}")

    @leg("svm/ntk/{}/{}", over=lambda self: product(self.depths, self.fitted))
    def tangent(
        self, run: Run, depth: int, s: int, how: Mapping[str, str] = LINEAR_SVC, arm: str = "plain"
    ) -> dict[str, Any]:
        """Both readings of one network's tangent kernel, at all training items, and the network's own accuracies: trained
        again, it may be another one."""
        seed = run.seed + s
        split = shells(self, seed)
        model = self.networks(run, depth, arm)[arm][s]
        tangent = svm.TangentMachines(model, split.train, self.memory)
        own = measures.accuracy_by_orthant(logits(model, split.test.x), split.test, 2**self.dimension)
        certificate = tangent.gram.certificate
        found: dict[str, Any] = {
            "certificate": "" if certificate is None else str(certificate).splitlines()[0],
            "network": measures.parted(own, empty_orthant(split)),
        }
        loss = "" if how == LINEAR_SVC else f"-{how['loss']}"
        for reading in READINGS:
            machine = tangent.machine(reading, self.choice(seed), dict(how))
            array = f"{_prefix(arm)}share-{reading}{loss}-{depth}-{s}"
            found[reading] = self.scored(run, seed, machine, tangent.scores(reading, machine), array)
        slopes = tangent.slopes("probability", tangent.x)
        found["slopes"] = {  # how many training items the probability's kernel hardly sees
            "median": float(f"{float(slopes.median()):.3g}"),
            "share below 1e-3": round(float((slopes < 1e-3).double().mean()), 4),
        }
        return found

    @leg("svm/ntk-hinge/{}/{}", over=lambda self: product(self.depths, self.fitted), optional=True)
    def tangent_by_hinge(self, run: Run, depth: int, s: int) -> dict[str, Any]:
        return self.tangent(run, depth, s, svm.SVC)

    @leg("svm/authors/{}/{}", over=lambda self: product(self.known, self.fitted), optional=True)
    def tangent_by_authors(self, run: Run, depth: int, s: int) -> dict[str, Any]:
        return self.tangent(run, depth, s, arm=AUTHORS)


def _gradient(model: nn.Module, item: Tensor) -> Tensor:
    grads = torch.autograd.grad(model(item[None]).sum(), list(model.parameters()))
    return torch.cat([grad.flatten() for grad in grads])


def _prefix(arm: str) -> str:
    """Of the names of arrays."""
    return "" if arm == "plain" else f"{arm}-"


def _from_empty(values: np.ndarray, empty: int) -> np.ndarray:
    """The rows of orthants in another order: entry o is of the orthant that differs from the empty one in the bits of o."""
    return values[np.arange(len(values)) ^ empty]
