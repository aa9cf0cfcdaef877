"""Explain a prediction of the network: the training points it is made of, those it would change without, and similar ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.data.subsets import stratified
from ntkscope.explain import attribute, class_summary, concentration, nearest, removal_effects
from ntkscope.linalg.grams.gram import slices
from ntkscope.machines import KernelMachine
from ntkscope.measures.distillation import same_where_wrong
from ntkscope.measures.faithfulness import agreement, probabilities
from ntkscope.measures.log_odds import centred_logits
from ntkscope.xray.context import Context
from ntkscope.xray.plan import MAIN
from ntkscope.xray.registry import Finding, ForRegression, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections import surrogates
from ntkscope.xray.task import CLASSIFICATION
from ntkscope.xray.workload import Workload

OFFERED = 200  # test items that are explained for several classes
TERMS = 200_000  # test items times classes up to which all others are explained too, for the network's class alone
TOGETHER = 32  # of them whose terms are summarised at a time
NEIGHBOURS = 8
OUTLIERS = 10
CLASSES = 5  # classes a reader can select for one item
OUTPUTS_OFFERED = 60  # test items of a regression that are explained
POINTS = 6  # training points of each list of theirs
OUTPUTS = 4  # outputs that are explained for one of them


@dataclass(frozen=True)
class Explained(Result):
    """The test items that are explained, by the training points behind their predictions."""


@dataclass(frozen=True)
class Explanations(Explained):
    """The test items that are explained, and the classes each is explained for, the network's own first.

    `main` is the kernel whose surrogate is explained, fitted to `target`; `predicted` is the surrogate's class.
    """

    kernels: tuple[str, ...]
    main: str
    target: str
    items: tuple[int, ...]
    predicted: tuple[int, ...]
    network_predicted: tuple[int, ...]
    true: tuple[int, ...]
    k: int
    agreement: float
    agreement_wrong: float
    chosen: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class OutputExplanations(Explained):
    """The test items that are explained, each for its `chosen` outputs, those furthest from their mean first.

    `main` is the kernel whose surrogate is explained, fitted to `target`; `intercept` is the surrogate's value without any
    training point, by output.
    """

    main: str
    target: str
    items: tuple[int, ...]
    chosen: tuple[tuple[int, ...], ...]
    intercept: tuple[float, ...]
    k: int


Parts = tuple[Int64[np.ndarray, " t"], dict[str, np.ndarray], Explained, str]  # items, arrays, result, a sentence


def run(context: Context) -> Finding[Explained]:
    rated, task = context.result(surrogates.SECTION), context.task
    row = None if rated is None else rated.explained
    main = MAIN if row is None else row.kernel
    machine, made = context.machine(main, task.outputs), context.machine_logits(main, task.outputs)
    trust = task.trust(row, len(context.test))
    explain = _classes_explained if task is CLASSIFICATION else _outputs_explained
    items, arrays, found, said = explain(context, machine, made)
    arrays["trust"] = task.item_trust(made, context.network_outputs, trust.level)[items]
    for name, values in arrays.items():
        context.keep(f"{SECTION.of(task).name}.{name}", values)
    which = "the kernel of choice where surrogates were not compared" if row is None else "the most faithful one"
    what = f"What is explained is the surrogate on {main}, fitted to the network's {task.outputs}, {which}."
    both = "the two" if task is CLASSIFICATION else "network and surrogate"
    return Finding(found, f"{what}{said} Trust on the whole: {trust.word}. Where {both} differ, the item says so.")


def _classes_explained(context: Context, machine: KernelMachine, logits: Float64[np.ndarray, "m c"]) -> Parts:
    """The items that are explained, what is kept of them, and what is said."""
    y, network, k = context.y_test, context.network_logits, min(NEIGHBOURS, len(context.train))
    offered = _offered(context, logits)
    items = np.arange(len(y)) if network.size <= TERMS else offered
    surrogate, own = centred_logits(logits)[items], centred_logits(network)[items]
    widths = np.where(np.isin(items, offered), CLASSES, 1).tolist()
    chosen = [_classes(own[i], surrogate[i], int(y[item]))[: widths[i]] for i, item in enumerate(items)]
    arrays = {
        **_decomposed(context, _centred(machine), items, chosen, k),
        **_removals(context, items, _table(chosen), k),
        "chosen": _table(chosen),
        "probability": probabilities(logits)[items],
        "surrogate_logit": surrogate,
        "network_logit": own,
    }
    for name in context.kernels:
        near = nearest(context.pair(name).test[items], k)
        arrays |= {f"nearest_index.{name}": near.indices, f"nearest_value.{name}": near.values}
    same, wrong = same_where_wrong(logits, network, y)
    found = Explanations(
        kernels=context.kernels,
        main=machine.name,
        target=machine.target,
        items=tuple(items.tolist()),
        predicted=tuple(surrogate.argmax(1).tolist()),
        network_predicted=tuple(network.argmax(1)[items].tolist()),
        true=tuple(y[items].tolist()),
        k=k,
        agreement=agreement(logits, network),
        agreement_wrong=same / wrong if wrong else float("nan"),
        chosen=tuple(map(tuple, chosen)),
    )
    said = f" It agrees with the network on {100 * found.agreement:.1f} % of the test items"
    said += (
        f" and on {same:,} of the {wrong:,} that the network gets wrong." if wrong else ", none of which it gets wrong."
    )
    return items, arrays, found, said


def _outputs_explained(context: Context, machine: KernelMachine, made: Float64[np.ndarray, "m d"]) -> Parts:
    """The same for a regression."""
    network, k = context.network_outputs, min(POINTS, len(context.train))
    items = _offered_outputs(context, made)
    chosen = _chosen_outputs(network, items)
    without = replace(machine, intercept_=np.zeros_like(machine.intercept_))
    terms = attribute(without, context.pair(machine.name).scaled().test)
    near = nearest(context.pair(MAIN).test[items], k)
    arrays = {
        **_largest(np.stack([terms.item(int(i))[:, c].T for i, c in zip(items, chosen)]), k, "top"),
        **_output_removals(context, items, chosen, k),
        "nearest_index": near.indices,
        "nearest_value": near.values,
        "surrogate": made[items],
        "network": network[items],
    }
    found = OutputExplanations(
        main=machine.name,
        target=machine.target,
        items=tuple(items.tolist()),
        chosen=tuple(map(tuple, chosen.tolist())),
        intercept=tuple(machine.intercept_.tolist()),
        k=k,
    )
    return items, arrays, found, ""


def _centred(machine: KernelMachine) -> KernelMachine:
    """The same machine with logits that add up to 0 over classes."""
    coef, intercept = machine.coef_, machine.intercept_
    return replace(machine, coef_=coef - coef.mean(0), intercept_=intercept - intercept.mean())


def _classes(network: Float64[np.ndarray, " c"], surrogate: Float64[np.ndarray, " c"], true: int) -> list[int]:
    """The classes an item can be explained for: the network's, the true one, the surrogate's, the network's next ones."""
    likely = np.argsort(-network, kind="stable").tolist()
    return list(dict.fromkeys([likely[0], true, int(surrogate.argmax()), *likely]))


def _table(chosen: list[list[int]]) -> Int64[np.ndarray, "t C"]:
    """Each item's classes, filled up with -1."""
    width = max(map(len, chosen), default=0)
    return np.array([[*classes, *[-1] * (width - len(classes))] for classes in chosen], dtype=np.int64)


def _decomposed(
    context: Context, machine: KernelMachine, items: Int64[np.ndarray, " t"], chosen: list[list[int]], k: int
) -> dict[str, np.ndarray]:
    """What training points add to the logit of every chosen class of every item; each sums to the surrogate's logit."""
    y, classes = context.y_train, len(context.classes)
    attribution = attribute(machine, context.pair(machine.name).scaled().test, rows=items)
    t, width = len(items), max(map(len, chosen), default=0)
    mean, box = np.full((t, width, classes), np.nan), np.full((t, width, classes, 5), np.nan)
    top_index, top_value = np.full((t, width, k), -1, dtype=np.int64), np.full((t, width, k), np.nan)
    out_index, out_value = np.full((t, width, OUTLIERS), -1, dtype=np.int64), np.full((t, width, OUTLIERS), np.nan)
    shares = np.full((t, width, 3), np.nan)
    known = int(y.max()) + 1
    of_class = np.eye(known)[y]
    counts = np.where(of_class.any(0), of_class.sum(0), np.nan)
    for rows in slices(t, TOGETHER):
        pairs = [(i, j) for i in range(t)[rows] for j in range(len(chosen[i]))]
        item, place = np.array(pairs).reshape(-1, 2).T
        own = np.concatenate([attribution.item(i)[:, chosen[i]] for i in range(t)[rows]], axis=1)  # (n, pairs)
        mean[item, place, :known] = (own.T @ of_class) / counts
        summary = class_summary(own, y)
        parts = (summary.low, summary.q1, summary.median, summary.q3, summary.high)
        box[item, place, :known] = np.stack(parts, axis=2).transpose(1, 0, 2)
        carried = concentration(own, k=min(5, len(own)))
        shares[item, place] = np.stack([carried.top, carried.top_percent, carried.participation], axis=1)
        top_index[item, place] = np.argsort(-own, axis=0, kind="stable")[:k].T
        top_value[item, place] = np.take_along_axis(own, top_index[item, place].T, axis=0).T
        for column, (i, j) in enumerate(pairs):
            beyond = np.concatenate([found[column] for found in summary.outliers])
            beyond = beyond[np.argsort(-np.abs(own[beyond, column]), kind="stable")][:OUTLIERS]
            out_index[i, j, : len(beyond)], out_value[i, j, : len(beyond)] = beyond, own[beyond, column]
    return {
        "mean": mean,
        "box": box,
        "outliers_index": out_index,
        "outliers_value": out_value,
        "top_index": top_index,
        "top_value": top_value,
        "concentration": shares,
    }


def _removals(
    context: Context, items: Int64[np.ndarray, " t"], chosen: Int64[np.ndarray, "t C"], k: int
) -> dict[str, np.ndarray]:
    """The training points without which a class would score lowest, by ridge regression on the labels.

    On labels, not on the network's logits: retraining a network learns from labels, and this predicts it best.
    """
    pair = context.pair(MAIN)
    targets = np.eye(len(context.classes))[context.y_train]
    found = removal_effects(pair.train, pair.test[items], targets, classes=np.maximum(chosen, 0), k=k)
    none = chosen[:, :, None] < 0
    return {
        "influence_index": np.where(none, -1, found.indices),
        "influence_value": np.where(none, np.nan, found.values),
    }


def _offered(context: Context, logits: Float64[np.ndarray, "m c"]) -> Int64[np.ndarray, " t"]:
    """Test items to explain for several classes: the network's mistakes, where the surrogate differs, some of every class."""
    y, network = context.y_test, context.network_logits.argmax(1)
    odd = np.flatnonzero((network != y) | (network != logits.argmax(1)))
    chosen = odd[: OFFERED // 2]
    rest = np.setdiff1d(np.arange(len(y)), chosen)
    if len(rest):
        room = max(OFFERED - len(chosen), len(np.unique(y[rest])))
        chosen = np.concatenate([chosen, rest[stratified(y[rest], room, context.seed, "xray", "offered")]])
    return np.sort(chosen).astype(np.int64)


def _offered_outputs(context: Context, made: Float64[np.ndarray, "m d"]) -> Int64[np.ndarray, " t"]:
    """Test items to explain: the network's largest errors, where the surrogate differs most, and some of all targets."""
    network, true = context.network_outputs, context.labels_test
    count = min(OUTPUTS_OFFERED, len(true))
    unit = np.where(true.std(0) > 0, true.std(0), 1.0)
    orders = [np.argsort(-(np.abs(network - other) / unit).max(1), kind="stable") for other in (true, made)]
    chosen = list(dict.fromkeys([*orders[0][: count // 2].tolist(), *orders[1][: count // 4].tolist()]))
    rest = [i for i in np.argsort(true[:, 0], kind="stable").tolist() if i not in set(chosen)]
    room = count - len(chosen)
    even = np.linspace(0, len(rest) - 1, max(0, min(room, len(rest)))).round().astype(int)
    return np.array([*chosen, *(rest[i] for i in even.tolist())], dtype=np.int64)


def _chosen_outputs(network: Float64[np.ndarray, "m d"], items: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, "t C"]:
    """The outputs an item is explained for: those furthest from their mean over the test items, in their own spread."""
    spread = network.std(0)
    away = np.abs(network[items] - network.mean(0)) / np.where(spread > 0, spread, 1.0)
    return np.argsort(-away, axis=1, kind="stable")[:, :OUTPUTS].astype(np.int64)


def _largest(values: Float64[np.ndarray, "t C n"], k: int, name: str) -> dict[str, np.ndarray]:
    """The k values of largest size along the last axis, with their signs, and where they are."""
    order = np.argsort(-np.abs(values), axis=2, kind="stable")[:, :, :k]
    return {f"{name}_index": order, f"{name}_value": np.take_along_axis(values, order, 2)}


def _output_removals(
    context: Context, items: Int64[np.ndarray, " t"], chosen: Int64[np.ndarray, "t C"], k: int
) -> dict[str, np.ndarray]:
    """The training points without which an output would change most, up or down, by ridge regression on the targets.

    Influence is linear in the targets: what lowers an output of the fit to -y raises it for y.
    """
    pair = context.pair(MAIN)
    targets = context.labels_train - context.labels_train.mean(0)
    both = [removal_effects(pair.train, pair.test[items], sign * targets, classes=chosen, k=k) for sign in (1.0, -1.0)]
    index = np.concatenate([effects.indices for effects in both], axis=2)
    value = np.concatenate([sign * effects.values for sign, effects in zip((1.0, -1.0), both)], axis=2)
    for i, j in np.ndindex(*chosen.shape):  # with few points, one can be in both lists
        _, first = np.unique(index[i, j], return_index=True)
        twice = np.setdiff1d(np.arange(index.shape[2]), first)
        value[i, j, twice] = 0.0
    found = _largest(value, k, "influence")
    place = found.pop("influence_index")
    return {**found, "influence_index": np.take_along_axis(index, place, 2)}


def cost(work: Workload) -> float:
    items = work.test if work.test * work.classes <= TERMS else min(OFFERED, work.test)
    seconds = min(OFFERED, items) * 2e-3 + items * 1e-3
    return work.decomposition(work.train) + items * work.train * work.classes * 3e-8 + seconds


def cost_of_outputs(work: Workload) -> float:
    items = min(OUTPUTS_OFFERED, work.test)
    return 2 * work.decomposition(work.train) + items * work.train * work.classes * 3e-8


SECTION: Section[Explained] = register(
    Section(
        name="explain",
        place=3,
        title="Explain a prediction",
        meaning=(
            "The surrogate's logit of any class is a sum with one term for every training point. The largest terms are the"
            " training points that this logit is made of; it is shown for the class the network predicts, or any other, beside"
            " the network's own logit. Similar points are those the network treats alike. What would change without a point is"
            " answered by leaving it out."
        ),
        formula=(
            "A(x, x_i)_c = W_ci κ(x, x_i) + b_c / N, and Σ_i A(x, x_i)_c is the surrogate's logit of class c, W and b fitted to"
            " the network's logits. Logits are centred over classes. This decomposes a logit. Without point i:"
            " S(x, x_i)_c = f_c(x) - f_c^{-i}(x), f kernel ridge regression of trntk on the labels, exact leave-one-out."
        ),
        run=run,
        result=Explanations,
        after=(surrogates.SECTION,),
        essential=True,
        cost=cost,
        regression=ForRegression(
            meaning=(
                "The surrogate's output is a constant and a sum with one term for every training point. The largest terms are"
                " the training points that this output is made of, beside the network's own output. Similar points are those"
                " the network treats alike. What would change without a point is answered by leaving it out."
            ),
            formula=(
                "f(x) = b + Σ_i W_i κ(x, x_i), W and b fitted to the network's outputs: the terms W_i κ(x, x_i). This"
                " decomposes an output. Without point i: S(x, x_i) = f(x) - f^{-i}(x), f kernel ridge regression of trntk on"
                " the targets minus their mean, exact leave-one-out; above 0, the output would fall without the point."
            ),
            result=OutputExplanations,
            cost=cost_of_outputs,
        ),
    )
)
