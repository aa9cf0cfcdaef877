"""Do networks fold orthants onto one, or copy the neighbours of the one they never saw? Balakrishnan (2023) left it open.

The labels of the empty orthant's neighbours are exchanged in training, or those of as many orthants at least three signs away.
The effect on the empty orthant (`swap_effect`) stands beside how alike the network treats mirror images (`fold_profile`) and
which orthants the scores of its tangent machine are made of. All statements are this project's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ntkscope.core import Record
from ntkscope.measures.uncertainty import bootstrap_means, percentile_interval
from ntkscope_papers.balakrishnan_2023.orthants.data import (
    ARMS,
    arm_data,
    empty_orthant,
    shells,
    some_of_each,
    swapped_orthants,
)
from ntkscope_papers.balakrishnan_2023.orthants.machines import LINEAR_SVC, READINGS, TangentMachines, mass_by_distance
from ntkscope_papers.balakrishnan_2023.orthants.measures import accuracy_by_orthant, folding, radial_scores
from ntkscope_papers.balakrishnan_2023.orthants.networks import OrthantNetworks, logits
from ntkscope_papers.balakrishnan_2023.orthants.swap_effect import SwapEffect, planted_effects, swap_effect
from ntkscope_papers.framework import Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.claims import Needs
from ntkscope_papers.framework.intervals import SHARE, estimate, interval, short
from ntkscope_papers.framework.results import under

SMALL = 0.1  # an effect within this of 0 is folding
SEEDS = 10
LABELS = {"plain": "labels as they are", "near": "neighbours exchanged", "far": "distant ones exchanged"}


def every_depth(config: FoldOrCopy) -> list[str]:
    return [f"swaps/{depth}" for depth in config.depths]


def own(id: str, statement: str, check: str = "", needs: Needs = every_depth, seeds: int = SEEDS) -> Any:
    """`claim` of a statement of this project."""
    return claim(id, "this project", statement, check, needs=needs, seeds=seeds)


@dataclass(frozen=True)
class FoldOrCopy(OrthantNetworks):
    """Fold or copy: networks in an orthant without training items when labels are exchanged next to it, or far away.

    `kernel_per_class`: items per class and orthant on which tangent machines are fitted.
    """

    name = "fold-or-copy"

    kernel_per_class: int = 30

    smoke = {**OrthantNetworks.smoke, "kernel_per_class": 10}

    @leg("planted")
    def planted_learners(self, run: Run) -> dict[str, Any]:
        """The swap effect of learners that are known to copy and to fold."""
        return planted_effects(self, self.seeds_of(run))

    @leg("swaps/{}", over=lambda self: self.depths)
    def exchanged(self, run: Run, depth: int) -> dict[str, Any]:
        """Networks of one depth, trained on all three data sets of every seed: accuracies in the empty orthant, and whether
        exchanged labels were learned; of the plain ones how alike they treat mirror images."""
        orthants, models = 2**self.dimension, self.networks(run, depth, *ARMS)
        rows: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
        profiles = []
        for i, seed in enumerate(self.seeds_of(run)):
            split = shells(self, seed)
            empty = empty_orthant(split)
            for arm in ARMS:
                own = accuracy_by_orthant(logits(models[arm][i], split.test.x), split.test, orthants)
                row = {"seed": seed, "empty": float(own[empty])}
                swapped = [] if arm == "plain" else swapped_orthants(arm, empty, self.dimension, seed)
                untouched = np.setdiff1d(np.arange(orthants), [empty, *swapped])
                row["untouched"] = float(own[untouched].mean())
                if swapped:
                    row["exchanged labels"] = float(1 - own[swapped].mean())  # test labels are as they were
                rows[arm].append(row)
            scores, radii = radial_scores(partial(logits, models["plain"][i]), self, seed)
            profiles.append(folding(scores, radii, empty))
        return {**rows, "folding": profiles}

    @leg("attribution/{}/{}", over=lambda self: product(self.depths, self.fitted))
    def attributed(self, run: Run, depth: int, s: int) -> dict[str, Any]:
        """What the scores of one network's tangent machine in the empty orthant are made of, by distance of training items."""
        seed = run.seed + s
        split = arm_data(self, seed, "plain")
        empty = empty_orthant(split)
        part = split.train.take(some_of_each(split.train, self.kernel_per_class, seed))
        tangent = TangentMachines(self.networks(run, depth, "plain")["plain"][s], part, self.memory)
        unseen = split.test.x[split.test.extras["orthant"] == empty]
        found: dict[str, Any] = {"training items": len(part)}
        for reading in READINGS:
            machine = tangent.machine(reading, self.choice(seed), dict(LINEAR_SVC))
            shares = mass_by_distance(tangent.attributions(machine, unseen, self.memory), split, part, empty)
            found[reading] = {**shares, "C": machine.told["C"], "gap": machine.told["gap"]}
        return found

    @own(
        "own-swap-effect-planted",
        "the swap effect tells learners that copy their neighbours from those that fold",
        needs=["planted"],
        seeds=1,
    )
    def tells_apart(self, record: Record) -> Reading:
        """a planted copier >= 0.9, a planted folder within 0.05 of 0"""
        found = record.metrics["planted"]
        effects = {kind: found[kind]["effect"] for kind in ("copier", "folder")}
        return Reading(effects, effects["copier"] >= 0.9 and abs(effects["folder"]) <= 0.05)

    @own("own-swaps-are-learned", "networks learn exchanged labels where they have training items")
    def learned(self, record: Record) -> Reading:
        """mean accuracy against the exchanged labels >= 0.8 in the swapped orthants, near and far, at every depth"""
        found = {
            f"{arm}, depth {depth}": interval((one["exchanged labels"] for one in row[arm]), SHARE)
            for depth, row in swaps_of(record).items()
            for arm in ("near", "far")
        }
        holds = all(row["mean"] >= 0.8 for row in found.values())
        return Reading({name: short(row) for name, row in found.items()}, holds, seeds=_fewest(record))

    @own(
        "own-depth-3-folds",
        "networks of three hidden layers fold: what they say in the empty orthant does not hang on its neighbours",
        f"at depth 3 the bootstrap interval of the swap effect within ±{SMALL}, mean plain accuracy there >= 0.65",
        needs=["swaps/3"],
    )
    def depth_3_folds(self, record: Record) -> Reading:
        row = swaps_of(record)[3]
        effect, plain = effect_of(row), interval((one["empty"] for one in row["plain"]), SHARE)
        holds = effect.low >= -SMALL and effect.high <= SMALL and plain["mean"] >= 0.65
        return Reading({"swap effect": _told(effect), "plain accuracy": short(plain)}, holds, seeds=len(row["plain"]))

    @own(
        "own-networks-copy",
        "networks copy: their answers in the empty orthant follow the neighbours' labels",
        f"the bootstrap interval of the swap effect above {SMALL} at every depth",
    )
    def copies(self, record: Record) -> Reading:
        effects = {depth: effect_of(row) for depth, row in swaps_of(record).items()}
        note = "accuracy in the empty orthant: " + ", ".join(
            f"{arm}, depth {depth} {round(float(np.mean([one['empty'] for one in row[arm]])), 3)}"
            for depth, row in swaps_of(record).items()
            for arm in ARMS
        )
        measured = {str(depth): _told(effect) for depth, effect in effects.items()}
        holds = all(effect.low > SMALL for effect in effects.values())
        return Reading(measured, holds, note, seeds=_fewest(record))

    @own(
        "own-copying-grows-with-depth",
        "networks of four and five hidden layers copy more than those of three",
        needs=["swaps/3", "swaps/4", "swaps/5"],
    )
    def grows(self, record: Record) -> Reading:
        """interval of the difference in swap effect, paired over seeds, above 0 for both"""
        effects = {depth: np.array(effect_of(row).each) for depth, row in swaps_of(record).items()}
        found = {}
        for depth in (4, 5):
            gaps = effects[depth] - effects[3]
            means = bootstrap_means(gaps[:, None], lambda means: means, resamples=10_000)[:, 0]
            ends = percentile_interval(means, items=len(gaps))
            found[f"{depth} - 3"] = [round(float(value), 4) for value in (gaps.mean(), *ends)]
        return Reading(found, all(low > 0 for _, low, _ in found.values()), seeds=len(effects[3]))

    @own("own-mirror-images-fade", "networks treat mirror images the less alike the more signs differ")
    def fades(self, record: Record) -> Reading:
        """correlation one sign from the empty orthant minus that at all signs: interval over seeds above 0 at every depth"""
        found = {}
        for depth, row in swaps_of(record).items():
            profiles = [profile["empty"] for profile in row["folding"]]
            found[depth] = interval(np.nan if None in (p[1], p[-1]) else p[1] - p[-1] for p in profiles)
        holds = all(row["n"] > 1 and row["low"] > 0 for row in found.values())
        fewest = int(min(row["n"] for row in found.values()))
        return Reading({str(depth): short(row) for depth, row in found.items()}, holds, seeds=fewest)

    @own(
        "own-attribution-is-near",
        "tangent machines make their scores in the empty orthant of its neighbours",
        needs=lambda config: [f"attribution/{depth}/0" for depth in config.depths],
        seeds=3,
    )
    def near(self, record: Record) -> Reading:
        """share of Σ|c_i K| at distance 1 at least twice those orthants' share of the items, mean over seeds, every depth,
        both readings"""
        rows = {depth: attributions_of(record, depth) for depth in self.depths}
        found = {
            f"{reading}, depth {depth}": interval(row[reading]["mass"][0] / row[reading]["items"][0] for row in several)
            for depth, several in rows.items()
            for reading in READINGS
        }
        holds = all(row["mean"] >= 2 for row in found.values())
        measured = {name: short(row) for name, row in found.items()}
        return Reading(measured, holds, "times the share of the items", seeds=min(map(len, rows.values())))

    @figure
    def planted(self, record: Record) -> Figure | dict[str, Any]:
        """Accuracies of the planted learners in the empty orthant."""
        if "planted" not in record.metrics:
            return {}
        drawn, (axis,) = drawing.canvas()
        for k, kind in enumerate(("copier", "folder")):
            row = record.metrics["planted"][kind]
            for arm, at in (("near", 0), ("far", 1)):
                axis.plot(np.full(len(row[arm]), at + 0.1 * k), row[arm], "o", color=drawing.COLOURS[k], markersize=4)
            axis.plot([], [], "o", color=drawing.COLOURS[k], label=f"{kind}, effect {row['effect']:.3f}")
        axis.set_xticks([0, 1], [LABELS["near"], LABELS["far"]])
        drawing.label(axis, y="accuracy in the empty orthant", legend=True)
        return drawn

    @figure
    def swaps(self, record: Record) -> Figure:
        """Accuracies in the empty orthant by depth, and the effect with its bootstrap interval."""
        drawn, (left, right) = drawing.canvas(1, 2, width=5.0)
        rows = swaps_of(record)
        for k, (arm, label) in enumerate(LABELS.items()):
            for depth, row in rows.items():
                values = [one["empty"] for one in row[arm]]
                at = depth + 0.22 * (k - 1)
                left.plot([at] * len(values), values, "o", color=drawing.COLOURS[k], markersize=3, alpha=0.5)
                left.plot([at - 0.09, at + 0.09], [np.mean(values)] * 2, color=drawing.COLOURS[k], linewidth=2)
            left.plot([], [], "o", color=drawing.COLOURS[k], label=label)
        left.axhline(0.5, color="#999999", linewidth=0.6, linestyle="--")
        drawing.label(left, y="accuracy in the empty orthant", legend=True)
        for depth, row in rows.items():
            effect = effect_of(row)
            ends = [[abs(effect.mean - effect.low)], [abs(effect.high - effect.mean)]]
            right.errorbar([depth], [effect.mean], yerr=ends, fmt="o", color=drawing.COLOURS[0], capsize=3)
        for value, name in ((0.0, "folds"), (1.0, "copies")):
            right.axhline(value, color="#999999", linewidth=0.6, linestyle="--")
            right.annotate(
                name, (0.02, value), xycoords=("axes fraction", "data"), fontsize=8, color="#666666", va="bottom"
            )
        right.set_ylabel("swap effect, 95 % bootstrap interval")
        for axis in (left, right):
            axis.set_xticks(list(rows))
            axis.set_xlabel("hidden layers")
        return drawn

    @figure
    def mirror_images(self, record: Record) -> dict[str, Figure]:
        """Correlation of mirror images by the signs in which they differ, from the empty orthant and over all pairs."""
        if not swaps_of(record):
            return {}
        drawn, axes = drawing.canvas(1, 2, width=5.0)
        for axis, which, title in zip(axes, ("empty", "all"), ("from the empty orthant", "over all pairs of orthants")):
            for k, (depth, row) in enumerate(swaps_of(record).items()):
                values = np.array([profile[which] for profile in row["folding"]], dtype=np.float64)
                known = ~np.isnan(values).all(0)
                means, style = np.nanmean(values[:, known], 0), {"color": drawing.COLOURS[k % 6], "markersize": 4}
                axis.plot(np.flatnonzero(known), means, "o-", label=f"depth {depth}", **style)
            axis.axhline(0, color="#999999", linewidth=0.6)
            drawing.label(axis, title=title, x="signs that differ")
        drawing.label(axes[0], y="correlation, radius removed", legend=True)
        return {"mirror-images": drawn}

    @figure
    def attribution(self, record: Record) -> Figure | dict[str, Any]:
        """Shares of the attribution by distance, beside the shares of the items."""
        found = {depth: rows for depth in self.depths if (rows := attributions_of(record, depth))}
        if not found:
            return {}
        drawn, axes = drawing.canvas(1, 2, width=5.0)
        for axis, reading in zip(axes, READINGS):
            for k, (depth, rows) in enumerate(found.items()):
                mass, items = np.mean([row[reading]["mass"] for row in rows], 0), rows[0][reading]["items"]
                places, style = range(1, len(mass) + 1), {"color": drawing.COLOURS[k % 6], "markersize": 4}
                axis.plot(places, mass, "o-", label=f"depth {depth}", **style)
            axis.plot(range(1, len(items) + 1), items, "--", color="#999999", label="items")
            drawing.label(axis, title=f"tangent kernel of the {reading}", x="signs from the empty orthant")
        drawing.label(axes[0], y="share of Σ|c K|", legend=True)
        return drawn


def swaps_of(record: Record) -> dict[int, Mapping[str, Any]]:
    """What was measured of each depth."""
    return {int(depth): row for depth, row in under(record, "swaps/").items()}


def effect_of(row: Mapping[str, Any]) -> SwapEffect:
    """The swap effect at one depth."""
    near, far = ([one["empty"] for one in row[arm]] for arm in ("near", "far"))
    return swap_effect(near, far)


def attributions_of(record: Record, depth: int) -> list[Mapping[str, Any]]:
    return list(under(record, f"attribution/{depth}/").values())


def _fewest(record: Record) -> int:
    return min(len(row["plain"]) for row in swaps_of(record).values())


def _told(effect: SwapEffect) -> dict[str, Any]:
    return estimate(effect.mean, effect.low, effect.high)
