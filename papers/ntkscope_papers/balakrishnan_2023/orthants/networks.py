"""Networks on orthant shells: a grid by cross-validation, then all seeds of a depth in one call, weights beside the record."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope import models, training
from ntkscope.core import Part, Record, UsageError, derive_seed
from ntkscope.models import read_weights, save_tensors
from ntkscope_papers.balakrishnan_2023.orthants.data import AUTHORS, SHARE, arm_data, held_out, shells
from ntkscope_papers.balakrishnan_2023.orthants.machines import Choice
from ntkscope_papers.framework import Experiment, Run, leg
from ntkscope_papers.framework.legs import showing
from ntkscope_papers.framework.results import once
from ntkscope_papers.shared.networks import keep_mark, mark_of_weights, refuse_another, weights_file

# Width, rate and weight decay by depth, as the grid of the public code chose them after 10 epochs (github.com/Bala-A87/UGRC,
# Code/logs/orthants-final; that of depth 1 does not say)
CHOSEN = {2: (32, 1e-3, 1e-4), 3: (64, 1e-3, 0.0), 4: (32, 1e-3, 0.0), 5: (128, 1e-4, 0.0)}
# Settings that say what a call computes and where, and what is measured of the networks, not which networks
ELSEWHERE = ("legs", "networks_from", "memory", "directions", "kernel_seeds", "costs", "choice_per_class")


@dataclass(frozen=True)
class OrthantNetworks(Experiment):
    """What both experiments on orthant shells share: data, the grid, training.

    `seeds`: each has its own data, empty orthant and network. `grid_epochs` and `folds`: of the cross-validation, on the data
    of the first seed. `epochs`, `patience`: at most so many, and none after so many without a lower loss on the held-out fifth
    of the training items. `networks_from`: the folder of a record with the same settings whose grid and networks are used.
    `directions`: base directions of the radial profiles, the same in all orthants, mirrored. `kernel_seeds`: seeds whose
    machines are fitted, C among `costs` by items held out of `choice_per_class` per class and orthant.
    """

    free = ("seeds", "kernel_seeds", "memory", "directions")
    parts = ("legs", "networks_from")

    dimension: int = 7
    per_class: int = 100
    test_per_class: int = 100
    depths: tuple[int, ...] = (1, 2, 3, 4, 5)
    widths: tuple[int, ...] = (32, 64, 128)
    rates: tuple[float, ...] = (1e-4, 1e-3, 1e-2)
    decays: tuple[float, ...] = (0.0, 1e-4, 1e-3, 1e-2)
    folds: int = 5
    grid_epochs: int = 50  # 31,750 updates at the paper's size: three layers leave chance after some 10,000
    epochs: int = 500
    patience: int = 50
    batch: int = 32
    seeds: int = 10
    memory: str = "48GiB"
    networks_from: str = ""
    directions: int = 100
    kernel_seeds: int = 5
    costs: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4)
    choice_per_class: int = 20

    smoke = {
        **{"dimension": 4, "per_class": 20, "test_per_class": 10, "directions": 4},
        **{"depths": (1, 3), "widths": (8, 16), "rates": (1e-3, 1e-2), "decays": (0.0,), "folds": 2},
        **{"grid_epochs": 1, "epochs": 8, "patience": 3, "seeds": 2},
        **{"kernel_seeds": 1, "costs": (1e-2, 1.0, 1e2), "choice_per_class": 10, "memory": "1GiB"},
    }

    def seeds_of(self, run: Run) -> range:
        """Of the data sets and networks."""
        return range(run.seed, run.seed + self.seeds)

    @property
    def fitted(self) -> range:
        """The numbers of the seeds whose machines are fitted."""
        return range(min(self.kernel_seeds, self.seeds))

    def choice(self, seed: int) -> Choice:
        """How the C of a machine is chosen."""
        return Choice(self.costs, self.choice_per_class, seed)

    def build(self, depth: int, seed: int, width: int) -> nn.Module:
        """One logit; PyTorch's initial weights and biases."""
        return models.build("mlp", in_features=self.dimension, classes=1, widths=width, depth=depth, seed=seed)

    @leg("grid/{}", over=lambda self: self.depths)
    def grid(self, run: Run, depth: int) -> dict[str, Any]:
        """Width, rate and decay of one depth by cross-validated accuracy, on training items alone: no empty orthant is seen."""
        other = self._other(run)
        if other is not None and f"grid/{depth}" in other.metrics:
            return dict(other.metrics[f"grid/{depth}"])
        found = training.search(
            partial(self.build, depth),
            shells(self, run.seed).train,
            {"model.width": self.widths, "lr": self.rates, "weight_decay": self.decays},
            optimizer="adam",
            loss="bce",
            epochs=self.grid_epochs,
            batch_size=self.batch,
            seed=derive_seed(run.seed, "grid", depth) % 2**31,
            device=run.device,
            folds_count=self.folds,
            vectorised=True,
            progress=showing(),
        )
        rows = [
            {"width": row.options["model.width"], "lr": row.options["lr"], "weight_decay": row.options["weight_decay"]}
            | {"accuracy": round(row.mean, 5), "standard error": round(row.standard_error, 5)}
            for row in found.rows
        ]
        best = rows[found.rows.index(found.best)]
        return {"chosen": {name: best[name] for name in ("width", "lr", "weight_decay")}, "best": best, "rows": rows}

    def chosen(self, run: Run, depth: int, arm: str = "plain") -> Mapping[str, Any]:
        """The settings that the grid, or that of the authors, chose for a depth."""
        if arm == AUTHORS:
            return dict(zip(("width", "lr", "weight_decay"), CHOSEN[depth]))
        found: Mapping[str, Any] = once(run.record, f"grid/{depth}", partial(self.grid, run, depth))["chosen"]
        return found

    def networks(self, run: Run, depth: int, *arms: str) -> dict[str, list[nn.Module]]:
        """The trained networks of every arm and seed of a depth; those that are not beside the record are taken from the
        record `networks_from`, or trained, all in one call."""
        settings = self.chosen(run, depth, arms[0])
        self._take(run, depth, arms)
        missing = [arm for arm in arms if not _file(run.record, arm, depth).exists()]
        if missing:
            self._train(run, depth, missing, settings)
        return {arm: self._read(run, depth, arm, int(settings["width"])) for arm in arms}

    def fit_all(
        self,
        run: Run,
        depth: int,
        parts: Mapping[tuple[str, int], Part],
        *,
        epochs: int,
        patience: int,
        store: Path | None = None,
    ) -> training.ensembles.ensemble.Ensemble:
        """One network per part, by arm and seed, each on its own items but a held-out fifth, as it was at its lowest loss on
        that, or by the authors' settings as it was when it ended."""
        authors = any(arm == AUTHORS for arm, _ in parts)
        settings = self.chosen(run, depth, AUTHORS if authors else "plain")
        pairs = [held_out(part, SHARE, seed) for (_, seed), part in parts.items()]
        return training.fit_ensemble(
            partial(self.build, depth, width=int(settings["width"])),
            [rest for rest, _ in pairs],
            seeds=[seed for _, seed in parts],
            validation=[held for _, held in pairs],
            patience=patience,
            restore=not authors,
            min_delta=1e-4 if authors else 0.0,
            store=store,
            optimizer="adam",
            loss="bce",
            lr=float(settings["lr"]),
            weight_decay=float(settings["weight_decay"]),
            epochs=epochs,
            batch_size=self.batch,
            device=run.device,
            snapshots="final",
            progress=showing(),
        )

    def _train(self, run: Run, depth: int, arms: Sequence[str], settings: Mapping[str, Any]) -> None:
        began = time.perf_counter()
        parts = {(arm, seed): arm_data(self, seed, arm).train for arm in arms for seed in self.seeds_of(run)}
        folder = Path(run.record.folder) / "networks"
        folder.mkdir(exist_ok=True)
        store = folder / f"unfinished-{depth}-{'-'.join(arms)}"
        ensemble = self.fit_all(run, depth, parts, epochs=self.epochs, patience=self.patience, store=store)
        seconds = round(time.perf_counter() - began, 2)
        assert ensemble.validation_losses is not None
        for k, arm in enumerate(arms):
            own = slice(k * self.seeds, (k + 1) * self.seeds)
            weights = {name: tensor[own] for name, tensor in ensemble.params.items()}
            refuse_another(run.record, f"{arm}/{depth}", mark_of_weights(weights))
            told = {
                "seconds": seconds,
                "networks in the call": len(parts),
                **settings,
                "steps": ensemble.steps[own].tolist(),
                "validation loss": [round(loss, 6) for loss in ensemble.validation_losses[own].tolist()],
            }
            # Before the weights, or a run killed between the two would lack it for ever; written again if trained again.
            run.record.put(**{f"training/{arm}/{depth}": told})
            save_tensors(weights, _file(run.record, arm, depth))
        for unfinished in folder.glob(f"unfinished-{depth}-*"):
            training.SnapshotStore(unfinished).discard()

    def _read(self, run: Run, depth: int, arm: str, width: int) -> list[nn.Module]:
        path = _file(run.record, arm, depth)
        stacked = read_weights(path)
        keep_mark(run.record, f"{arm}/{depth}", mark_of_weights(stacked))
        count = len(next(iter(stacked.values())))
        if count != self.seeds:
            raise UsageError(
                f"{path} holds {count} networks; expected {self.seeds}, one for each seed: remove it to train them again"
            )
        found = []
        for i in range(count):
            model = self.build(depth, 0, width)
            model.load_state_dict({name: tensor[i] for name, tensor in stacked.items()})
            found.append(model.to(run.device).eval())
        return found

    def _take(self, run: Run, depth: int, arms: Sequence[str]) -> None:
        """Copy the networks that the record `networks_from` has and this one lacks."""
        other = self._other(run)
        if other is None:
            return
        for arm in arms:
            there, here, key = _file(other, arm, depth), _file(run.record, arm, depth), f"training/{arm}/{depth}"
            if here.exists() or not there.exists() or key not in other.metrics:
                continue
            weights = read_weights(there)
            refuse_another(run.record, f"{arm}/{depth}", mark_of_weights(weights))
            run.record.put(**{key: dict(other.metrics[key])})
            here.parent.mkdir(exist_ok=True)
            save_tensors(weights, here)

    def _other(self, run: Run) -> Record | None:
        """The record whose networks are used; one of other settings is refused."""
        if not self.networks_from:
            return None
        other = Record.open(self.networks_from)
        names = [f.name for f in fields(OrthantNetworks) if f.name not in ELSEWHERE]
        wrong = [name for name in names if _plain(other.config.get(name)) != _plain(getattr(self, name))]
        if wrong or dict(other.seeds) != {"seed": run.seed}:
            differ = ", ".join(f"{name}={other.config.get(name)}" for name in wrong) or f"seeds {dict(other.seeds)}"
            raise UsageError(
                f"networks_from={self.networks_from!r} has {differ}; expected a record whose networks were trained with the"
                " settings of this run: use its settings, or train here with networks_from=''"
            )
        return other


def _file(record: Record, arm: str, depth: int) -> Path:
    return weights_file(record, f"{arm}-{depth}")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def logits(model: nn.Module, x: Tensor) -> Tensor:
    """The network's logits (n,) in double precision, on its own device, a few thousand items at a time."""
    first = next(model.parameters())
    with torch.no_grad():
        pieces = [model(piece.to(first.device, first.dtype))[:, 0].double() for piece in x.split(16384)]
    return torch.cat(pieces)
