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
from ntkscope.core import Params, Part, Record, UsageError, derive_seed
from ntkscope.models._weights import read_weights, save_tensors
from ntkscope_papers.balakrishnan_2023.orthants.data import AUTHORS, SHARE, arm_data, held_out, shells
from ntkscope_papers.framework.experiment import Experiment
from ntkscope_papers.framework.legs import showing
from ntkscope_papers.framework.results import once
from ntkscope_papers.shared.networks import keep_mark, mark_of_weights, refuse_another, weights_file

# Width, rate and weight decay by depth, as the grid of the public code chose them after 10 epochs (github.com/Bala-A87/UGRC,
# Code/logs/orthants-final; that of depth 1 does not say)
CHOSEN = {2: (32, 1e-3, 1e-4), 3: (64, 1e-3, 0.0), 4: (32, 1e-3, 0.0), 5: (128, 1e-4, 0.0)}
ELSEWHERE = ("legs", "networks_from", "memory")  # settings that say what a call computes and where, not which networks


@dataclass(frozen=True)
class OrthantNetworks(Experiment):
    """What both experiments on orthant shells share: data, the grid, training.

    `seeds`: each has its own data, empty orthant and network. `grid_epochs` and `folds`: of the cross-validation, on the data
    of the first seed. `epochs`, `patience`: at most so many, and none after so many without a lower loss on the held-out fifth
    of the training items. `networks_from`: the folder of a record with the same settings whose grid and networks are used.
    """

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


SMALL: Mapping[str, Any] = {
    "dimension": 4,
    "per_class": 20,
    "test_per_class": 10,
    "depths": (1, 3),
    "widths": (8, 16),
    "rates": (1e-3, 1e-2),
    "decays": (0.0,),
    "folds": 2,
    "grid_epochs": 1,
    "epochs": 8,
    "patience": 3,
    "seeds": 2,
    "directions": 4,
    "kernel_seeds": 1,
    "costs": (1e-2, 1.0, 1e2),
    "choice_per_class": 10,
    "memory": "1GiB",
}


@dataclass(frozen=True, eq=False)
class Run:
    """What a leg needs besides its own name. `arm`: "plain", or "authors" for networks by the settings of the public code."""

    config: Any
    record: Record
    seed: int
    device: torch.device
    arm: str = "plain"

    @property
    def seeds(self) -> range:
        """Of the data sets and networks."""
        return range(self.seed, self.seed + self.config.seeds)


def build(config: OrthantNetworks, depth: int, seed: int, width: int) -> nn.Module:
    """One logit; PyTorch's initial weights and biases."""
    return models.build("mlp", in_features=config.dimension, classes=1, widths=width, depth=depth, seed=seed)


def grid_leg(run: Run, depth: int) -> dict[str, Any]:
    """Width, rate and decay of one depth by cross-validated accuracy, on training items alone: no empty orthant is seen."""
    config, other = run.config, _other(run)
    if other is not None and grid_key(depth) in other.metrics:
        return dict(other.metrics[grid_key(depth)])
    found = training.search(
        partial(build, config, depth),
        shells(config, run.seed).train,
        {"model.width": config.widths, "lr": config.rates, "weight_decay": config.decays},
        optimizer="adam",
        loss="bce",
        epochs=config.grid_epochs,
        batch_size=config.batch,
        seed=derive_seed(run.seed, "grid", depth) % 2**31,
        device=run.device,
        folds_count=config.folds,
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


def grid_key(depth: int) -> str:
    return f"grid/{depth}"


def chosen(run: Run, depth: int) -> Mapping[str, Any]:
    """The settings that the grid, or that of the authors, chose for a depth."""
    if run.arm == AUTHORS:
        return dict(zip(("width", "lr", "weight_decay"), CHOSEN[depth]))
    found: Mapping[str, Any] = once(run.record, grid_key(depth), partial(grid_leg, run, depth))["chosen"]
    return found


def networks(run: Run, depth: int, arms: Sequence[str]) -> dict[str, list[nn.Module]]:
    """The trained networks of every arm and seed of a depth; those that are not beside the record are taken from the record
    `networks_from`, or trained, all in one call."""
    settings = chosen(run, depth)
    _take(run, depth, arms)
    missing = [arm for arm in arms if not _file(run.record, arm, depth).exists()]
    if missing:
        _train(run, depth, missing, settings)
    return {arm: _read(run, depth, arm, int(settings["width"])) for arm in arms}


def fresh(run: Run, depth: int) -> list[nn.Module]:
    """The networks of every seed before training."""
    width = int(chosen(run, depth)["width"])
    return [build(run.config, depth, seed, width).to(run.device).eval() for seed in run.seeds]


def training_key(arm: str, depth: int) -> str:
    return f"training/{arm}/{depth}"


def fit_all(
    run: Run, depth: int, parts: Sequence[Part], seeds: Sequence[int], *, epochs: int, patience: int, store: Path | None
) -> training.Ensemble:
    """One network per part, each on its own items but a held-out fifth, as it was at its lowest loss on that, or by the
    authors' settings as it was when it ended."""
    config, settings = run.config, chosen(run, depth)
    pairs = [held_out(part, SHARE, seed) for part, seed in zip(parts, seeds)]
    return training.fit_ensemble(
        partial(build, config, depth, width=int(settings["width"])),
        [rest for rest, _ in pairs],
        seeds=list(seeds),
        validation=[held for _, held in pairs],
        patience=patience,
        restore=run.arm != AUTHORS,
        min_delta=1e-4 if run.arm == AUTHORS else 0.0,
        store=store,
        optimizer="adam",
        loss="bce",
        lr=float(settings["lr"]),
        weight_decay=float(settings["weight_decay"]),
        epochs=epochs,
        batch_size=config.batch,
        device=run.device,
        snapshots="final",
        progress=showing(),
    )


def _train(run: Run, depth: int, arms: Sequence[str], settings: Mapping[str, Any]) -> None:
    config, began = run.config, time.perf_counter()
    which = [(arm, seed) for arm in arms for seed in run.seeds]
    folder = Path(run.record.folder) / "networks"
    folder.mkdir(exist_ok=True)
    made = fit_all(
        run,
        depth,
        [arm_data(config, seed, arm).train for arm, seed in which],
        [seed for _, seed in which],
        epochs=config.epochs,
        patience=config.patience,
        store=folder / f"unfinished-{depth}-{'-'.join(arms)}",
    )
    seconds, count = round(time.perf_counter() - began, 2), len(run.seeds)
    assert made.validation_losses is not None
    for k, arm in enumerate(arms):
        own = slice(k * count, (k + 1) * count)
        weights = {name: tensor[own] for name, tensor in made.params.items()}
        refuse_another(run.record, f"{arm}/{depth}", mark_of_weights(weights))
        told = {
            "seconds": seconds,
            "networks in the call": len(which),
            **settings,
            "steps": made.steps[own].tolist(),
            "validation loss": [round(loss, 6) for loss in made.validation_losses[own].tolist()],
        }
        # Before the weights, or a run killed between the two would lack it for ever; written again if they are trained again.
        run.record.put(**{training_key(arm, depth): told})
        save_tensors(weights, _file(run.record, arm, depth))
    for store in folder.glob(f"unfinished-{depth}-*"):
        training.SnapshotStore(store).discard()


def _read(run: Run, depth: int, arm: str, width: int) -> list[nn.Module]:
    stacked = read_weights(_file(run.record, arm, depth))
    keep_mark(run.record, f"{arm}/{depth}", mark_of_weights(stacked))
    count = len(next(iter(stacked.values())))
    if count != run.config.seeds:
        raise UsageError(
            f"{_file(run.record, arm, depth)} holds {count} networks; expected {run.config.seeds}, one for each seed:"
            " remove it to train them again"
        )
    return [_loaded(run, depth, width, {name: tensor[i] for name, tensor in stacked.items()}) for i in range(count)]


def _loaded(run: Run, depth: int, width: int, state: Params) -> nn.Module:
    model = build(run.config, depth, 0, width)
    model.load_state_dict(state)
    return model.to(run.device).eval()


def _file(record: Record, arm: str, depth: int) -> Path:
    return weights_file(record, f"{arm}-{depth}")


def _take(run: Run, depth: int, arms: Sequence[str]) -> None:
    """Copy the networks that the record `networks_from` has and this one lacks."""
    other = _other(run)
    for arm in arms if other is not None else ():
        assert other is not None
        there, here, key = _file(other, arm, depth), _file(run.record, arm, depth), training_key(arm, depth)
        if here.exists() or not there.exists() or key not in other.metrics:
            continue
        weights = read_weights(there)
        refuse_another(run.record, f"{arm}/{depth}", mark_of_weights(weights))
        run.record.put(**{key: dict(other.metrics[key])})
        here.parent.mkdir(exist_ok=True)
        save_tensors(weights, here)


def _other(run: Run) -> Record | None:
    """The record whose networks are used; one of other settings is refused."""
    folder = run.config.networks_from
    if not folder:
        return None
    other = Record.open(folder)
    names = [f.name for f in fields(OrthantNetworks) if f.name not in ELSEWHERE]
    wrong = [name for name in names if _plain(other.config.get(name)) != _plain(getattr(run.config, name))]
    if wrong or dict(other.seeds) != {"seed": run.seed}:
        differ = ", ".join(f"{name}={other.config.get(name)}" for name in wrong) or f"seeds {dict(other.seeds)}"
        raise UsageError(
            f"networks_from={folder!r} has {differ}; expected a record whose networks were trained with the settings of this"
            " run: use its settings, or train here with networks_from=''"
        )
    return other


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def logits(model: nn.Module, x: Tensor) -> Tensor:
    """The network's logits (n,) in double precision, on its own device, a few thousand items at a time."""
    first = next(model.parameters())
    with torch.no_grad():
        pieces = [model(piece.to(first.device, first.dtype))[:, 0].double() for piece in x.split(16384)]
    return torch.cat(pieces)
