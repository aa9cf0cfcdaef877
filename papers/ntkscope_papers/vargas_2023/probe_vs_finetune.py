"""Linear probes against fine-tuning on tweets: Tables 5 and 6 and Figure 13b, with MiniLM in place of GPT-2.

A probe on 300 hand-labelled tweets (M), random features, fine-tuning and low-rank adapters on the same tweets, each on the same
50 shuffles; fine-tuning on 16,000 emoticon-labelled tweets (P), its epoch chosen on others, tested on all of M. The paper
leaves learning rates open: those of fine-tuning and adapters are chosen on P, so that no tweet of M is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from ntkscope.core import Part, Record
from ntkscope.training import adaptation
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.results import once, summary, under
from ntkscope_papers.shared.networks import logits_of
from ntkscope_papers.vargas_2023 import adaptation_claims as claims
from ntkscope_papers.vargas_2023.adaptation_claims import TABLE_5, TABLE_6, paired_with_p
from ntkscope_papers.vargas_2023.tweets import Tweets, balanced, classifier, manual_split, tweets

METHODS = {  # how the encoder is adapted, and the name in figures
    "probe": ("linear-probe", "probe on M"),
    "random": ("random-features", "random features on M"),
    "finetune": ("fine-tune", "fine-tuning on M"),
    "lora": ("lora", "LoRA on M"),
    "finetune-on-p": ("fine-tune", "fine-tuning on P"),
    "probe-on-p": ("linear-probe", "probe on P"),
}
ON_P = ("finetune-on-p", "probe-on-p")
SEARCHED = ("finetune", "lora", "finetune-on-p")  # methods whose learning rate is chosen


@dataclass(frozen=True)
class ProbeVsFinetune(Experiment):
    """Conjugate kernel, Table 5, and distribution shift, Table 6 and Figure 13b: probes, fine-tuning and adapters on tweets.

    `per_class`: tweets of M of each class to train on; `p_…`: of P, balanced; `rates`: learning rates to choose from.
    """

    name = "probe-vs-finetune"
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

    def prepare(self, run: Run) -> Tweets:
        return tweets(self.dataset, self.encoder, root=run.root, length=self.length)

    def measure(self, run: Run) -> None:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            super().measure(run)

    @leg("splits")
    def splits(self, run: Run) -> dict[str, Any]:
        """Sizes, classes and overlaps of every split, and which tweets of M each shuffle holds out."""
        y, texts = run.data.manual.y, set(run.data.manual.extras["text"])
        tests, sizes, shared = [], set(), 0
        for s in range(self.shuffles):
            train, test = manual_split(y, self.per_class, run.seed + s)
            sizes.add(str([np.bincount(y[index].numpy(), minlength=2).tolist() for index in (train, test)]))
            shared += len(np.intersect1d(train, test))
            tests.append(written(np.isin(np.arange(len(y)), test)))
        parts = [[set(part.extras["text"]) for part in self.processed(run, run.seed + s)] for s in range(self.p_runs)]
        labels = [np.bincount(part.y.numpy(), minlength=2).tolist() for part in self.processed(run, run.seed)]
        return {
            "M": {"items": len(y), "train and test, negative and positive": sorted(sizes), "shared": shared},
            "P": {
                "train and validation, negative and positive": labels,
                "shared texts": sum(len(train & held) for train, held in parts),
                "texts shared with M": sum(len((train | held) & texts) for train, held in parts),
            },
            "held out": tests,
        }

    @leg("rates/{}", over=lambda self: SEARCHED)
    def chosen_rate(self, run: Run, name: str) -> dict[str, Any]:
        """The learning rate, chosen by the accuracy on other tweets of P; trained on as many of P as the method has later."""
        if name in ON_P:
            rates, epochs, draws = self.p_rates, self.p_rate_epochs, 1
        else:
            rates, epochs, draws = self.rates, self.epochs, self.rate_draws
        scores = []
        for lr in rates:
            several = []
            for seed in range(run.seed, run.seed + draws):
                train, held = self.processed(run, seed, small=name not in ON_P)
                model, _ = self.adapted(run, name, train, lr=lr, epochs=epochs, seed=seed)
                several.append(float(right(model, held).mean()))
            scores.append(float(np.mean(several)))
        return {"rates": list(rates), "accuracy on P": scores, "chosen": rates[int(np.argmax(scores))]}

    @leg("{}/{}", over=lambda self: ((name, s) for name in METHODS for s in range(self.runs_of(name))))
    def accuracies(self, run: Run, name: str, s: int) -> dict[str, Any]:
        """One shuffle of M: trained on 150 tweets of each class, tested on the others. Or trained on P, the epoch chosen on
        other tweets of P, and tested on all of M."""
        manual, seed, lr = run.data.manual, run.seed + s, self.rate(run, name)
        validation: Part | None = None
        if name in ON_P:
            (train, validation), test = self.processed(run, seed), manual
        else:
            train, test = (manual.take(torch.from_numpy(i)) for i in manual_split(manual.y, self.per_class, seed))
        model, epoch = self.adapted(run, name, train, validation, lr=lr, epochs=self.epochs, seed=seed)
        answers = right(model, test)
        chosen: dict[str, float] = {}
        if validation is not None:
            chosen = {"validation": float(right(model, validation).mean()), "epoch": epoch}
        return {
            "train": float(right(model, train).mean()),
            **chosen,
            "test": float(answers.mean()),
            "right": written(answers),
            "lr": lr,
        }

    def runs_of(self, name: str) -> int:
        """How many there are of a method."""
        return self.p_runs if name in ON_P else self.shuffles

    def rate(self, run: Run, name: str) -> float:
        """A method's learning rate; one that is to be chosen and is missing is chosen now."""
        if name not in SEARCHED:
            return self.probe_lr
        return float(once(run.record, f"rates/{name}", partial(self.chosen_rate, run, name))["chosen"])

    def processed(self, run: Run, seed: int, small: bool = False) -> tuple[Part, Part]:
        """Disjoint, balanced samples of P to train on and to choose the epoch on; `small`: as many as there are of M."""
        counts = [self.per_class, self.p_validation // 4] if small else [self.p_train // 2, self.p_validation // 2]
        P = run.data.processed
        train, held = balanced(P.y, counts, seed, "rates" if small else "processed")
        return P.take(torch.from_numpy(train)), P.take(torch.from_numpy(held))

    def adapted(
        self, run: Run, name: str, part: Part, validation: Part | None = None, *, lr: float, epochs: int, seed: int
    ) -> tuple[nn.Module, int]:
        """The encoder adapted by the method `name`, and the epoch whose weights it has."""
        found = adaptation(
            classifier(self.encoder, self.pooling, seed),
            Part(part.x, part.y),
            method=METHODS[name][0],
            validation=None if validation is None else Part(validation.x, validation.y),
            std=self.std,
            rank=self.rank,
            lr=lr,
            epochs=epochs,
            batch_size=self.p_batch if name in ON_P else self.batch,
            seed=seed,
            device=run.device,
        )
        return found.model, found.epoch

    @figure
    def tables(self, record: Record) -> Figure:
        """Accuracies beside those of Tables 5 and 6."""
        found = runs(record)
        drawn, axes = drawing.canvas(1, 2, width=4.8)
        published = {**TABLE_5, "finetune-on-p": TABLE_6["finetune-on-p"]}
        for axis, where, error in zip(axes, ("train", "test"), ("sem", "test sem")):
            told = {name: summary(100 * row[where] for row in several) for name, several in found.items()}
            values: Any = ([v["mean"] for v in told.values()], [v["sem"] for v in told.values()])
            rows = [published.get(name) for name in told]
            stated: Any = (
                [None if row is None else row[f"{where} %"] for row in rows],
                [0.0 if row is None else row[error] for row in rows],
            )
            series = {"measured, MiniLM": values, "published, GPT-2": stated}
            drawing.compare_bars(axis, [METHODS[name][1] for name in told], series, label=f"{where} accuracy, %")
            axis.set_ylim(40, 101)
        return drawn

    @figure
    def figure13b(self, record: Record) -> Figure:
        """One below the other, on one scale: six on top of each other cannot be told apart."""
        found = runs(record)
        drawn, axes = drawing.canvas(max(1, len(found)), 1, width=6.4, height=1.0)
        edges = np.arange(39, 102, 2)
        for i, (axis, (name, several)) in enumerate(zip(axes, found.items())):
            values, colour = [100 * row["test"] for row in several], drawing.COLOURS[i % len(drawing.COLOURS)]
            axis.hist(values, bins=edges, density=True, alpha=0.6, color=colour)
            axis.axvline(float(np.mean(values)), color=colour, linewidth=1.5)
            axis.set_title(
                f"{METHODS[name][1]} ({len(values)}), mean {np.mean(values):.1f} %", fontsize=8, loc="left", pad=2
            )
            axis.set_xlim(edges[0], edges[-1])
            axis.set_yticks([])
            axis.tick_params(labelbottom=axis is axes[-1])
        axes[-1].set_xlabel("accuracy on tweets of M that were not trained on, %")
        return drawn

    @figure
    def tests(self, record: Record) -> Figure:
        """Left: quantiles of two methods' accuracies, as the published test compares them; right: differences per shuffle."""
        found = runs(record)
        drawn, (left, right) = drawing.canvas(1, 2, width=4.4)
        probe = found.get("probe", [])
        pairs: dict[str, list[float]] = {}
        for i, name in enumerate(("finetune", "finetune-on-p")):
            several = found.get(name, [])
            if not several or not probe:
                continue
            at = np.linspace(0, 1, min(len(probe), len(several)))
            one, other = (np.quantile([100 * row["test"] for row in group], at) for group in (probe, several))
            left.plot(other, one, "o", markersize=3, color=drawing.COLOURS[i], label=METHODS[name][1])
            left.plot(other, other, color="#999999", linewidth=0.8)
            if name == "finetune":
                pairs[name] = [a["test"] - b["test"] for a, b in zip(probe, several)]
            elif "splits" in record.metrics:
                pairs[name] = paired_with_p(record, probe, several)
        for i, (name, values) in enumerate(pairs.items()):
            right.hist([100 * value for value in values], alpha=0.4, color=drawing.COLOURS[i], label=METHODS[name][1])
        x, y = "accuracy of the other method, quantiles, %", "accuracy of the probe on M, quantiles, %"
        drawing.label(left, x=x, y=y, legend=True)
        right.axvline(0, color="#999999", linewidth=0.8)
        drawing.label(right, x="probe minus the other on the same tweets, points", y="shuffles", legend=True)
        return drawn


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


def runs(record: Record) -> dict[str, list[Mapping[str, Any]]]:
    """Those of every method in the record; methods that were not run are left out."""
    found = {name: list(under(record, f"{name}/").values()) for name in METHODS}
    return {name: several for name, several in found.items() if several}
