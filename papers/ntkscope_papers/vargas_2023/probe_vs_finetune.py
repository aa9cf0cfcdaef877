"""Linear probes against fine-tuning on tweets: Tables 5 and 6 and Figure 13b, with MiniLM in place of GPT-2.

A probe on 300 hand-labelled tweets (M), random features, fine-tuning and low-rank adapters on the same tweets, each on the same
50 shuffles; fine-tuning on 16,000 emoticon-labelled tweets (P), its epoch chosen on others, tested on all of M. The paper
leaves learning rates open: those of fine-tuning and adapters are chosen on P, so that no tweet of M is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ntkscope.core import Part, Record
from ntkscope.training import adaptation
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.framework.results import once
from ntkscope_papers.shared.networks import logits_of
from ntkscope_papers.vargas_2023 import adaptation_claims as claims
from ntkscope_papers.vargas_2023.adaptation_figures import draw
from ntkscope_papers.vargas_2023.tweets import Tweets, balanced, classifier, manual_split, tweets

METHODS = {"probe": "linear-probe", "random": "random-features", "finetune": "fine-tune", "lora": "lora"}
ON_P = {"finetune-on-p": "fine-tune", "probe-on-p": "linear-probe"}


@dataclass(frozen=True)
class ProbeVsFinetune(Experiment):
    """Conjugate kernel, Table 5, and distribution shift, Table 6 and Figure 13b: probes, fine-tuning and adapters on tweets.

    `per_class`: tweets of M of each class to train on; `p_…`: of P, balanced; `rates`: learning rates to choose from.
    """

    name = claims.NAME
    statements = claims_of(claims)
    free = ("p_runs",)

    dataset: str = "sentiment140"
    encoder: str = "minilm"
    pooling: str = "mean"
    length: int = 48
    per_class: int = 150
    epochs: int = 10
    batch: int = 16
    probe_lr: float = 1e-3
    rates: tuple[float, ...] = (2e-5, 1e-4, 5e-4)
    rate_draws: int = 2
    rank: int = 8
    std: float = 0.02
    shuffles: int = 50
    p_train: int = 16000
    p_validation: int = 3800
    p_batch: int = 32
    p_rates: tuple[float, ...] = (2e-5, 1e-4)
    p_rate_epochs: int = 2
    p_runs: int = 5

    smoke = {
        "dataset": "made-up",
        "encoder": "tiny",
        "length": 6,
        "per_class": 24,
        "epochs": 2,
        "rates": (1e-3, 1e-2),
        "rate_draws": 1,
        "rank": 2,
        "shuffles": 3,
        "p_train": 80,
        "p_validation": 40,
        "p_rates": (1e-3, 1e-2),
        "p_rate_epochs": 1,
        "p_runs": 2,
    }

    def measure(self, run: Run) -> None:
        found = tweets(self.dataset, self.encoder, root=run.root, length=self.length)
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            run_legs(run.record, legs(self, run.record, found, run.seed, run.device), self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def adapted(
    config: ProbeVsFinetune,
    how: str,
    part: Part,
    validation: Part | None,
    *,
    lr: float,
    epochs: int,
    batch: int,
    seed: int,
    device: torch.device,
) -> tuple[nn.Module, int]:
    """The encoder adapted by `how`, and the epoch whose weights it has."""
    lean = [None if each is None else Part(each.x, each.y) for each in (part, validation)]
    assert lean[0] is not None
    found = adaptation(
        classifier(config.encoder, config.pooling, seed),
        lean[0],
        method=how,
        validation=lean[1],
        std=config.std,
        rank=config.rank,
        lr=lr,
        epochs=epochs,
        batch_size=batch,
        seed=seed,
        device=device,
    )
    return found.model, found.epoch


def right(model: nn.Module, part: Part) -> np.ndarray:
    """Which tweets the network classifies as labelled."""
    answers: np.ndarray = (logits_of(model, part.x).argmax(1) == part.y).numpy()
    return answers


def written(flags: np.ndarray) -> str:
    """Flags as a text of 0 and 1.

    >>> written(np.array([True, False]))
    '10'
    """
    return "".join("1" if flag else "0" for flag in flags)


def on_manual(
    config: ProbeVsFinetune, found: Tweets, name: str, lr: Callable[[], float], seed: int, device: torch.device
) -> dict[str, Any]:
    """One shuffle of M: trained on 150 tweets of each class, tested on the others."""
    train, test = (found.manual.take(torch.from_numpy(i)) for i in manual_split(found.manual.y, config.per_class, seed))
    rate = lr()
    model, _ = adapted(
        config, METHODS[name], train, None, lr=rate, epochs=config.epochs, batch=config.batch, seed=seed, device=device
    )
    answers = right(model, test)
    return {
        "train": float(right(model, train).mean()),
        "test": float(answers.mean()),
        "right": written(answers),
        "lr": rate,
    }


def on_processed(
    config: ProbeVsFinetune, found: Tweets, name: str, lr: Callable[[], float], seed: int, device: torch.device
) -> dict[str, Any]:
    """Trained on P, the epoch chosen on other tweets of P, tested on all of M."""
    train, validation = processed_parts(config, found, seed)
    rate = lr()
    model, epoch = adapted(
        config,
        ON_P[name],
        train,
        validation,
        lr=rate,
        epochs=config.epochs,
        batch=config.p_batch,
        seed=seed,
        device=device,
    )
    answers = right(model, found.manual)
    return {
        "train": float(right(model, train).mean()),
        "validation": float(right(model, validation).mean()),
        "test": float(answers.mean()),
        "right": written(answers),
        "epoch": epoch,
        "lr": rate,
    }


def processed_parts(config: ProbeVsFinetune, found: Tweets, seed: int) -> tuple[Part, Part]:
    """Disjoint, balanced samples of P to train on and to choose the epoch on."""
    counts = [config.p_train // 2, config.p_validation // 2]
    train, validation = balanced(found.processed.y, counts, seed, "processed")
    return tuple(found.processed.take(torch.from_numpy(index)) for index in (train, validation))  # type: ignore[return-value]


def small_rate(config: ProbeVsFinetune, found: Tweets, how: str, seed: int, device: torch.device) -> dict[str, Any]:
    """The learning rate for a training set of M's size, chosen on tweets of P: accuracy on others of P after the last epoch."""
    scores = []
    for rate in config.rates:
        several = []
        for k in range(config.rate_draws):
            counts = [config.per_class, config.p_validation // 4]
            index = balanced(found.processed.y, counts, seed + k, "rates")
            train, held = (found.processed.take(torch.from_numpy(i)) for i in index)
            model, _ = adapted(
                config,
                how,
                train,
                None,
                lr=rate,
                epochs=config.epochs,
                batch=config.batch,
                seed=seed + k,
                device=device,
            )
            several.append(float(right(model, held).mean()))
        scores.append(float(np.mean(several)))
    return {"rates": list(config.rates), "accuracy on P": scores, "chosen": config.rates[int(np.argmax(scores))]}


def large_rate(config: ProbeVsFinetune, found: Tweets, seed: int, device: torch.device) -> dict[str, Any]:
    """The learning rate for fine-tuning on P, by the validation tweets after a few epochs."""
    train, validation = processed_parts(config, found, seed)
    scores = []
    for rate in config.p_rates:
        model, _ = adapted(
            config,
            "fine-tune",
            train,
            None,
            lr=rate,
            epochs=config.p_rate_epochs,
            batch=config.p_batch,
            seed=seed,
            device=device,
        )
        scores.append(float(right(model, validation).mean()))
    return {"rates": list(config.p_rates), "accuracy on P": scores, "chosen": config.p_rates[int(np.argmax(scores))]}


def splits(config: ProbeVsFinetune, found: Tweets, seed: int) -> dict[str, Any]:
    """Sizes, classes and overlaps of every split, and which tweets of M each shuffle holds out."""
    tests, sizes, shared = [], set(), 0
    for s in range(config.shuffles):
        train, test = manual_split(found.manual.y, config.per_class, seed + s)
        counts = [np.bincount(found.manual.y[index].numpy(), minlength=2).tolist() for index in (train, test)]
        sizes.add(str(counts))
        shared += len(np.intersect1d(train, test))
        tests.append(written(np.isin(np.arange(len(found.manual)), test)))
    parts = [
        [set(part.extras["text"]) for part in processed_parts(config, found, seed + s)] for s in range(config.p_runs)
    ]
    labels = [np.bincount(part.y.numpy(), minlength=2).tolist() for part in processed_parts(config, found, seed)]
    manual = set(found.manual.extras["text"])
    return {
        "M": {"items": len(found.manual), "train and test, negative and positive": sorted(sizes), "shared": shared},
        "P": {
            "train and validation, negative and positive": labels,
            "shared texts": sum(len(train & held) for train, held in parts),
            "texts shared with M": sum(len((train | held) & manual) for train, held in parts),
        },
        "held out": tests,
    }


def legs(config: ProbeVsFinetune, record: Record, found: Tweets, seed: int, device: torch.device) -> list[Leg]:
    """Rates first; whoever needs one that is missing computes it."""
    rates: dict[str, Leg] = {
        name: Leg(f"rates/{name}", partial(small_rate, config, found, METHODS[name], seed, device))
        for name in ("finetune", "lora")
    }
    rates["finetune-on-p"] = Leg("rates/finetune-on-p", partial(large_rate, config, found, seed, device))

    def rate(name: str) -> float:
        leg = rates.get(name)
        return config.probe_lr if leg is None else float(once(record, leg.key, leg.compute)["chosen"])

    made = [Leg("splits", partial(splits, config, found, seed)), *rates.values()]
    for name in METHODS:
        made += [
            Leg(f"{name}/{s}", partial(on_manual, config, found, name, partial(rate, name), seed + s, device))
            for s in range(config.shuffles)
        ]
    for name in ON_P:
        made += [
            Leg(f"{name}/{s}", partial(on_processed, config, found, name, partial(rate, name), seed + s, device))
            for s in range(config.p_runs)
        ]
    return made
