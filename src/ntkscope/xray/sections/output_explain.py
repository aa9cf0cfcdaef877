"""Explain an output of a regression: the training points it is made of, those it would change without, and similar ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.explain import attribute, nearest, removal_effects
from ntkscope.xray.context import Context
from ntkscope.xray.plan import MAIN
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections import surrogates
from ntkscope.xray.task import REGRESSION
from ntkscope.xray.trust import LEVELS, item_output_trust, output_trust
from ntkscope.xray.workload import Workload

OFFERED = 60  # test items that are explained
POINTS = 6  # training points of each list
OUTPUTS = 4  # outputs that are explained for one item
TARGET = surrogates.OUTPUT_TARGETS[0]


@dataclass(frozen=True)
class OutputExplanations(Result):
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


def run(context: Context) -> Finding[OutputExplanations]:
    rated = context.result(surrogates.OUTPUT_SECTION)
    row = None if rated is None else rated.explained
    main = MAIN if row is None else row.kernel
    made, network = context.machine_logits(main, TARGET), context.network_outputs
    items, k = _offered(context, made), min(POINTS, len(context.train))
    chosen = _chosen(network, items)
    machine = context.machine(main, TARGET)
    level = output_trust(row, len(context.test)).level
    terms = attribute(replace(machine, intercept_=np.zeros_like(machine.intercept_)), context.pair(main).scaled().test)
    near = nearest(context.pair(MAIN).test[items], k)
    for name, values in {
        **_largest(np.stack([terms.item(int(i))[:, c].T for i, c in zip(items, chosen)]), k, "top"),
        **_removals(context, items, chosen, k),
        "nearest_index": near.indices,
        "nearest_value": near.values,
        "surrogate": made[items],
        "network": network[items],
        "trust": item_output_trust(made, network, level)[items],
    }.items():
        context.keep(f"output_explain.{name}", values)
    found = OutputExplanations(
        main=main,
        target=TARGET,
        items=tuple(items.tolist()),
        chosen=tuple(map(tuple, chosen.tolist())),
        intercept=tuple(machine.intercept_.tolist()),
        k=k,
    )
    said = (
        f"What is explained is the surrogate on {main}, fitted to the network's outputs"
        f"{', the kernel of choice where surrogates could not be compared' if row is None else ', the most faithful one'}."
        f" Trust on the whole: {LEVELS[level]}. Where network and surrogate differ, the item says so."
    )
    return Finding(found, said)


def _offered(context: Context, made: Float64[np.ndarray, "m d"]) -> Int64[np.ndarray, " t"]:
    """Test items to explain: the network's largest errors, where the surrogate differs most, and some of all targets."""
    network, true = context.network_outputs, context.targets_test
    count = min(OFFERED, len(true))
    unit = np.where(true.std(0) > 0, true.std(0), 1.0)
    orders = [np.argsort(-(np.abs(network - other) / unit).max(1), kind="stable") for other in (true, made)]
    chosen = list(dict.fromkeys([*orders[0][: count // 2].tolist(), *orders[1][: count // 4].tolist()]))
    rest = [i for i in np.argsort(true[:, 0], kind="stable").tolist() if i not in set(chosen)]
    room = count - len(chosen)
    even = np.linspace(0, len(rest) - 1, max(0, min(room, len(rest)))).round().astype(int)
    return np.array([*chosen, *(rest[i] for i in even.tolist())], dtype=np.int64)


def _chosen(network: Float64[np.ndarray, "m d"], items: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, "t C"]:
    """The outputs an item is explained for: those furthest from their mean over the test items, in their own spread."""
    spread = network.std(0)
    away = np.abs(network[items] - network.mean(0)) / np.where(spread > 0, spread, 1.0)
    return np.argsort(-away, axis=1, kind="stable")[:, :OUTPUTS].astype(np.int64)


def _largest(values: Float64[np.ndarray, "t C n"], k: int, name: str) -> dict[str, np.ndarray]:
    """The k values of largest size along the last axis, with their signs, and where they are."""
    order = np.argsort(-np.abs(values), axis=2, kind="stable")[:, :, :k]
    return {f"{name}_index": order, f"{name}_value": np.take_along_axis(values, order, 2)}


def _removals(
    context: Context, items: Int64[np.ndarray, " t"], chosen: Int64[np.ndarray, "t C"], k: int
) -> dict[str, np.ndarray]:
    """The training points without which an output would change most, up or down, by ridge regression on the targets.

    Influence is linear in the targets: what lowers an output of the fit to -y raises it for y.
    """
    pair = context.pair(MAIN)
    targets = context.targets_train - context.targets_train.mean(0)
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
    items = min(OFFERED, work.test)
    return 2 * work.decomposition(work.train) + items * work.train * work.classes * 3e-8


SECTION = register(
    Section(
        name="output_explain",
        place=3,
        title="Explain a prediction",
        meaning=(
            "The surrogate's output is a constant and a sum with one term for every training point. The largest terms are the"
            " training points that this output is made of, beside the network's own output. Similar points are those the"
            " network treats alike. What would change without a point is answered by leaving it out."
        ),
        formula=(
            "f(x) = b + Σ_i W_i κ(x, x_i), W and b fitted to the network's outputs: the terms W_i κ(x, x_i). This decomposes an"
            " output. Without point i: S(x, x_i) = f(x) - f^{-i}(x), f kernel ridge regression of trntk on the targets minus"
            " their mean, exact leave-one-out; above 0, the output would fall without the point."
        ),
        run=run,
        result=OutputExplanations,
        after=(surrogates.OUTPUT_SECTION,),
        cost=cost,
        tasks=(REGRESSION,),
    )
)
