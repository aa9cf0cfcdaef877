"""Ten findings, drawn and written from the records: `python docs/results/findings/make.py` writes the page and its pictures.

`findings.toml` has the sentences. Every number in braces is taken from a record when the page is made; what a sentence says of
all seeds is asserted here.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context

from ntkscope.core import Record
from ntkscope.core.files.atomic import write_file
from ntkscope.experiments import EXPERIMENTS
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.intervals import interval
from ntkscope_papers.framework.pages import PAPERS
from ntkscope_papers.vargas_2023.adaptation_claims import paired_with_p, rows
from ntkscope_papers.wang_2023.linear_width_claims import TABLE_8

HERE = Path(__file__).parent
MADE = b"<!-- made by docs/results/findings/make.py -->"
RIDGES = ("1e-06", "1e-05", "0.0001", "0.001", "0.01")
INTRODUCTION = (
    "What measuring every statement of nine papers again brought to light, each from five seeds or more. Means stand with",
    "their 95 % intervals (Student's, over seeds); points in the pictures are single networks.",
    "`python docs/results/findings/make.py` writes this page and its pictures from the records; every single statement is in",
    "[All statements](claims.md).",
)
DIP = PAPERS / "samarin_2022" / "results" / "binary-mnist-dip"


def record(paper: str, name: str) -> Record:
    return Record.open(PAPERS / paper / "results" / name)


def said(values: Any, digits: int = 2, unit: str = "") -> str:
    """A mean with its 95 % interval."""
    found = interval(np.ravel(np.asarray(values, dtype=np.float64)))
    return f"{found['mean']:.{digits}f}{unit} ({found['low']:.{digits}f} to {found['high']:.{digits}f})"


def dots(
    axis: Any, places: Sequence[str], columns: Sequence[Any], which: int = 0, label: str = "", shift: float = 0.0
) -> None:
    """Every value as a point, means as bars."""
    for i, values in enumerate(columns):
        at = i + shift + np.linspace(-0.09, 0.09, len(values))
        colour = drawing.COLOURS[which]
        axis.plot(at, values, "o", markersize=3, alpha=0.7, color=colour, label=label if i == 0 else None)
        axis.plot([i + shift - 0.16, i + shift + 0.16], [np.mean(values)] * 2, color=colour, linewidth=2)
    axis.set_xticks(range(len(places)), places)


def decay(axes: Sequence[Any]) -> Mapping[str, str]:
    found = record("balakrishnan_2023", "hidden-polynomial").metrics
    plain = found["networks/hidden/128/1"]["tasks"]
    theirs = {8: found["networks/authors/8/256/1"], 9: found["networks/authors/9/128/1"]}
    r2, largest = {}, {}
    for degree, one in theirs.items():
        both = plain[f"isotropic/raw/{degree}"], one["tasks"][f"isotropic/authors/{degree}"]
        r2[degree] = [task["r2 test"] for task in both]
        largest[degree] = [np.asarray(task["largest"])[:, -1] for task in both]
    for i, (label, shift) in enumerate((("no decay", -0.2), ("the decay of the report", 0.2))):
        for axis, values in ((axes[0], r2), (axes[1], largest)):
            dots(axis, ["degree 8", "degree 9"], [values[d][i] for d in theirs], 1 - i, label, shift)
    axes[0].axhline(0, color="#999999", linewidth=0.6)
    drawing.label(axes[0], y="R² on test points", legend=True)
    drawing.label(axes[1], y="largest |cosine| of a unit")
    learn = [s for s in range(10) if r2[8][0][s] > 0.3]
    wider = found["networks/hidden/512/1"]["tasks"]["isotropic/raw/8"]["r2 test"]
    assert learn == [s for s in range(10) if wider[s] > 0.3]
    assert max(largest[8][1]) < 0.4 < min(largest[8][0][learn])
    twelve = record("balakrishnan_2023", "silent-alignment").metrics["authors/d12-correlated"]["network"]["fit"]
    return {
        "plain": said(r2[8][0]), "decay": said(r2[8][1], 4), "turn": said(largest[8][0]), "still": said(largest[8][1]),
        "nine": said(r2[9][0]), "nine_decay": said(r2[9][1], 4),
        "twelve": f"{max(map(abs, twelve)):.3f}", "l1": said(100 * np.asarray(plain["correlated/raw/12"]["l1"]), 0, " %"),
        "seeds": str(len(twelve)), "learn": str(len(learn)),
    }  # fmt: skip


def readouts(axes: Sequence[Any]) -> Mapping[str, str]:
    found = record("qadeer_2023", "function-regression").metrics
    numbers, better, total = {}, 0, 0
    for i, target in enumerate(("f1", "f2", "f3")):
        blocks = [one for key, one in found.items() if key.startswith(f"errors/{target}/tanh-128/")]
        before, after = (np.concatenate([block[name] for block in blocks]) for name in ("network", "retrained"))
        axes[0].plot(before, after, "o", markersize=2.5, alpha=0.6, color=drawing.COLOURS[i], label=target)
        gain = before / after
        better, total = better + int((gain > 1).sum()), total + len(gain)
        numbers[target] = f"{np.median(gain):.0e}".replace("e+0", "e") + f" (least {gain.min():.0e})".replace(
            "e+0", "e"
        )
    assert better == total == 300
    ends = [1e-10, 1e-1]
    axes[0].plot(ends, ends, "--", color="#999999", linewidth=1, label="no gain")
    drawing.label(axes[0], x="test error of the network", y="with its readout solved anew", log="xy", legend=True)
    return {**numbers, "better": str(better), "total": str(total)}


def sigmoid(axes: Sequence[Any]) -> Mapping[str, str]:
    found = record("balakrishnan_2023", "orthant-symmetry").metrics
    depths = (2, 3, 4, 5)
    each = {d: [found[f"svm/authors/{d}/{s}"] for s in range(5)] for d in depths}
    accuracy = {
        name: {d: [100 * one[name]["remaining"] for one in several] for d, several in each.items()}
        for name in ("network", "probability", "logit")
    }
    words = {"network": "network", "probability": "kernel of the probability", "logit": "kernel of the logit"}
    for i, (name, label) in enumerate(words.items()):
        dots(axes[0], [f"depth {d}" for d in depths], list(accuracy[name].values()), i, label, 0.24 * (i - 1))
    drawing.label(axes[0], y="test accuracy, percent")
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    pairs = list(product(depths, range(5)))
    assert all(accuracy["probability"][d][s] < accuracy["network"][d][s] for d, s in pairs)
    above = sum(accuracy["logit"][d][s] >= accuracy["network"][d][s] for d, s in pairs if d < 5)
    gaps = {
        name: [np.mean([accuracy[name][d][s] - accuracy["network"][d][s] for d in depths]) for s in range(5)]
        for name in ("probability", "logit")
    }
    gaps["probability"] = [-gap for gap in gaps["probability"]]
    return {
        "above": f"{above} of 15", "below": f"{len(pairs)} of {len(pairs)}",
        **{name: said(values, 1) for name, values in gaps.items()},
    }  # fmt: skip


def odd(axes: Sequence[Any]) -> Mapping[str, str]:
    z = np.linspace(-5, 5, 101)
    assert np.allclose((np.logaddexp(0, z) - np.logaddexp(0, -z)) / 2, z / 2)  # the odd part of softplus is linear
    found = record("wang_2023", "linear-width").metrics
    cases = {
        "GD": "table8/case1",
        "SGD, 0.1": "table8/case2",
        "SGD, 22": "table8/case3",
        "Adam": "table8/case4",
        "lazy": "lazy",
    }
    r2 = {name: [one["r2"] for one in found[key]["members"]] for name, key in cases.items()}
    ridge = [one["ridge"]["r2"] for one in found["baselines"]["members"]]
    assert all(value < linear for values in r2.values() for value, linear in zip(values, ridge, strict=True))
    dots(axes[0], [*r2, "ridge on x"], [*r2.values(), ridge])
    published = [TABLE_8[key.removeprefix("table8/")]["r2"] for key in cases.values()]
    axes[0].plot(range(len(r2)), published, "_", markersize=18, color=drawing.BLACK, label="published")
    drawing.label(axes[0], y="R² on test points", legend=True)
    gap = np.asarray(ridge) - np.asarray(r2["Adam"])
    return {"ridge": said(ridge, 3), "adam": said(r2["Adam"], 3), "gap": said(gap, 3)}


def labels(axes: Sequence[Any]) -> Mapping[str, str]:
    found = record("engel_2023", "surrogate-small").metrics
    titles = {
        "mlp-mnist2": "MLP\nMNIST",
        "cnn-mnist2": "CNN\nMNIST",
        "cnn-cifar2": "CNN\nCIFAR-10",
        "cnn-fmnist2": "CNN\nFashion",
    }
    tau, floor = {}, {}
    for row in titles:
        several = [found[f"{row}/authors/{s}"] for s in range(5)]
        fits = [[one["fixed class"]["tau"] for one in each["stochastic"]["seeds"].values()] for each in several]
        tau[row] = [float(np.nanmean(fit)) for fit in fits]
        floor[row] = [each["label floor"] for each in several]
    dots(axes[0], list(titles.values()), list(tau.values()), 0, "surrogate", -0.15)
    dots(axes[0], list(titles.values()), list(floor.values()), 1, "a predictor that knows labels alone", 0.15)
    axes[0].plot(range(4), (0.708, 0.857, 0.711, 0.882), "_", markersize=18, color=drawing.BLACK, label="published")
    drawing.label(axes[0], y="τ of the score of class 1")
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    every = [value for values in floor.values() for value in values]
    assert min(every) > 0.48
    assert max(every) <= 0.5003
    return {
        "floor": f"{min(every):.2f} to {max(every):.2f}",
        "fashion": said(tau["cnn-fmnist2"]),
        "mlp": said(tau["mlp-mnist2"]),
    }


def projected(axes: Sequence[Any]) -> Mapping[str, str]:
    found = record("engel_2023", "surrogate-kernels").metrics
    kernels = {"proj-pntk": "projected pNTK", "ck-cosine": "CK as cosines", "proj-trntk": "projected trace-NTK"}

    def tau(s: int, kernel: str, ridge: str) -> float:
        row = found[f"{s}/{kernel}/common"] if ridge == "0.0001" else found[f"{s}/{kernel}/ridges"][ridge]
        return float(row["tau"])

    table = {k: np.array([[tau(s, k, ridge) for ridge in RIDGES] for s in range(5)]) for k in kernels}
    for i, (k, label) in enumerate(kernels.items()):
        for s in range(5):
            style = {
                "linewidth": 1,
                "alpha": 0.7,
                "color": drawing.COLOURS[i],
                "linestyle": "--" if k == "ck-cosine" else "-",
            }
            axes[0].plot([float(ridge) for ridge in RIDGES], table[k][s], label=label if s == 0 else None, **style)
    drawing.label(axes[0], x="ridge", y="Kendall τ to the network", log="x", legend=True)
    apart = np.abs(table["proj-pntk"] - table["ck-cosine"])
    other = np.abs(table["proj-pntk"] - table["proj-trntk"])
    return {
        "apart": f"{apart.max():.3f}",
        "mean": f"{apart.mean():.3f}",
        "other": f"{other.max():.2f}",
        "least": f"{np.abs(other).mean():.2f}",
    }


def logits(axes: Sequence[Any]) -> Mapping[str, str]:
    found = record("engel_2023", "surrogate-kernels").metrics
    several = [found[f"{s}/side by side"] for s in range(5)]
    for axis, key in ((axes[0], "tau"), (axes[1], "agreement_wrong")):
        dots(
            axis,
            ["fitted to labels", "fitted to logits"],
            [[one[name][key] for one in several] for name in ("labels", "logits")],
        )
    drawing.label(axes[0], y="Kendall τ to the network")
    drawing.label(axes[1], y="agreement where the network errs")
    tau = {name: [one[name]["tau"] for one in several] for name in ("labels", "logits")}
    shared = {name: said([one["shared"][name] for one in several]) for name in several[0]["shared"]}
    return {
        **{name: said(values) for name, values in tau.items()}, "both": shared["labels, logits"],
        "influence": shared["logits, influence"], "little": shared["labels, influence"],
    }  # fmt: skip


def dip(axes: Sequence[Any]) -> Mapping[str, str]:
    runs = [Record.open(path.parent).metrics for path in sorted(DIP.glob("*/record.json"))]
    assert len(runs) >= 5
    keys = sorted(
        {key for run in runs for key in run if key.startswith("fraction/")}, key=lambda key: runs[0][key]["parameters"]
    )
    ratio = [runs[0][key]["parameters"] / runs[0][key]["rows"] for key in keys]
    for i, (ridge, label) in enumerate((("1e-12", "no ridge"), ("0.001", "a ridge of 1e-3"))):
        curves = np.array([[run[key]["ridges"][ridge]["test"][0] for key in keys] for run in runs])
        for curve in curves:
            axes[0].plot(ratio, curve, "-", linewidth=0.6, alpha=0.4, color=drawing.COLOURS[i])
        axes[0].plot(
            ratio, curves.mean(0), "o-", markersize=3, color=drawing.COLOURS[i], label=f"{label}, mean of {len(runs)}"
        )
        if i == 0:
            bottom, lowest = int(curves.mean(0).argmin()), curves.argmin(1)
            assert all(1 <= ratio[place] <= 2 for place in lowest)
            assert (curves.min(1) < np.minimum(curves[:, 0], curves[:, -1])).all()
            numbers = {
                "low": said(curves[:, bottom], 1),
                "at": f"{ratio[bottom]:.2f}",
                "fall": said(curves[:, 0] - curves.min(1), 1),
                "left": said(curves[:, 0], 1),
                "right": said(curves[:, -1], 1),
            }
        else:
            numbers["ridge"] = said(curves[:, bottom], 1)
    axes[0].axvline(1, color="#999999", linewidth=0.8, linestyle=":")
    drawing.label(
        axes[0], x="parameters / training images", y="test accuracy, percent (0 against the rest)", log="x", legend=True
    )
    return {**numbers, "seeds": str(len(runs))}


def equation_28(axes: Sequence[Any]) -> Mapping[str, str]:
    found = record("beaglehole_2024", "alignment-reversing").metrics
    each = [row for s in range(10) for row in found[f"support/{s}"]["balances"].values()]
    observed, predicted = (
        np.array([np.mean(row["observed"]) for row in each]),
        np.array([row["predicted"] for row in each]),
    )
    printed = [(o, row["printed"]) for o, row in zip(observed, each) if row["printed"] is not None]
    axes[0].plot(observed, predicted, "o", markersize=3, color=drawing.COLOURS[0], label="corrected")
    axes[0].plot(
        *zip(*printed),
        "x",
        markersize=4,
        color=drawing.COLOURS[1],
        label="as printed (some beyond, some no number)",
    )
    axes[0].plot([0.5, 1], [0.5, 1], "--", color="#999999", linewidth=1)
    axes[0].set_ylim(0.4, 2.0)
    drawing.label(axes[0], x="correlation in networks (mean of 30)", y="prediction of Eq. 28", legend=True)
    errors = (observed - predicted).reshape(10, -1)
    r2 = [1 - float((e**2).sum() / ((o - o.mean()) ** 2).sum()) for e, o in zip(errors, observed.reshape(10, -1))]
    whole = 1 - float((errors**2).sum() / ((observed - observed.mean()) ** 2).sum())
    outside = len(each) - sum(0 <= value <= 1 for _, value in printed)
    return {
        "r2": f"{whole:.3f}",
        "seeds": said(r2, 3),
        "outside": f"{outside} of {len(each)}",
        "error": f"{np.abs(errors).mean():.3f}",
    }


def shuffles(axes: Sequence[Any]) -> Mapping[str, str]:
    kept = record("vargas_2023", "probe-vs-finetune")
    config = EXPERIMENTS["probe-vs-finetune"].of(kept)
    probe, tuned = rows(config, kept, "probe"), rows(config, kept, "finetune-on-p")
    differences = 100 * np.array(paired_with_p(kept, probe, tuned))
    claim = {c.id: c for c in kept.claims}["shift-ks-test"].measured["probe against fine-tuning on P"]
    fair = claim["fair test"]
    assert abs(differences.mean() - fair["points"]) < 0.01
    axes[0].hist(differences, bins=np.arange(-13, 20, 2), color=drawing.COLOURS[0], alpha=0.7)
    mean, (low, high) = fair["points"], fair["interval"]
    around: dict[str, Any] = {"fmt": "o", "capsize": 3, "color": drawing.COLOURS[1]}
    axes[0].errorbar(
        [mean], [10.5], xerr=[[mean - low], [high - mean]], label="mean, 95 % interval of the fair test", **around
    )
    axes[0].axvline(0, color="#999999", linewidth=0.8)
    drawing.label(axes[0], x="probe minus fine-tuning on the same held-out tweets, points", y="shuffles")
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0))
    published = f"{claim['published test']['p']:.3f}"
    points = f"{mean:.1f} ({low:.1f} to {high:.1f})"
    return {"published": published, "fair": f"{fair['p']:.3f}", "points": points, "shuffles": str(fair["shuffles"])}


def page() -> tuple[str, dict[str, Any]]:
    """The page, and its pictures by name."""
    lines = ["# Findings", "", MADE.decode(), "", *INTRODUCTION, ""]
    pictures = {}
    told = tomllib.loads((HERE / "findings.toml").read_text(encoding="utf-8"))
    for number, (name, finding) in enumerate(told.items(), 1):
        panels = finding.get("panels", 1)
        pictures[name], axes = drawing.canvas(1, panels, width=6.2 if panels == 1 else 4.4, height=3.4)
        words = finding["text"].format(**globals()[finding["draw"]](axes))
        lines += [f"## {number}. {finding['title']}", "", f"![{finding['title']}](findings/{name}.svg)", "", words, ""]
        lines += [f"**Published:** {finding['published']}", "", f"**What that changes:** {finding['changes']}", ""]
        home = f"../../papers/ntkscope_papers/{finding['record']}"
        paper = f"../../papers/ntkscope_papers/{finding['record'].split('/')[0]}/README.md"
        title = (HERE.parent / paper).resolve().read_text(encoding="utf-8").splitlines()[0]
        lines += [f"[{title.removeprefix('# ')}]({paper}) · `{finding['command']}` · [record]({home}/record.json)", ""]
    return "\n".join(lines), pictures


def main() -> int:
    with rc_context({**drawing.STYLE, "svg.hashsalt": "ntkscope"}):
        text, pictures = page()
        for name, picture in pictures.items():
            drawing.save(picture, HERE / f"{name}.svg")
    write_file(HERE.parent / "findings.md", text.encode("utf-8"), over=MADE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
