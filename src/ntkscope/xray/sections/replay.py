"""What training would have done: influence by replaying it, beside the kernel's answer to the same question."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64

from ntkscope.core import NumericalError, numpy_generator
from ntkscope.explain import influence
from ntkscope.explain.removal.replay_influence import replay_influence
from ntkscope.measures.datamodeling import group_predictions, linear_datamodeling_score, random_subsets
from ntkscope.training.replays.certificate import ReplayCertificate
from ntkscope.training.replays.replay import TRUSTED
from ntkscope.xray.context import Context
from ntkscope.xray.plan import MAIN
from ntkscope.xray.registry import Finding, Section, Skip, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections import explain
from ntkscope.xray.task import CLASSIFICATION
from ntkscope.xray.training import Training
from ntkscope.xray.workload import Workload

LEAST, MOST = 8, 40  # test items
SHARE = 0.02  # of the time that is left, for items beyond the least
TRAININGS, EACH = 8.4, 0.36  # that a replay takes, and each item more, by experience
POINTS = 8  # training points of each list
HALVES = 500  # random ones, on which both answers are ranked
REMOVED = 0.5  # share of the points at whose removal the derivative is taken
NEAR = 1e-2  # of a margin, by which the replayed training may end elsewhere


@dataclass(frozen=True)
class Replayed(Result):
    """The margin of the predicted class of some test items, `wrong` of them mistakes: influence by replay and by the kernel.

    `correlations`: Spearman's ρ over random halves of the training points of what both say that training on a half does,
    item by item, their mean and its interval over items.
    `shared`: how many of the `k` points that support a prediction most are the same, the mean over items. `steps`: of the
    training. `error`: of what two retrainings with other weights did, the share that the derivative missed; `rough`: whether
    that is too much to believe what a replay says of a single point.
    """

    items: tuple[int, ...]
    wrong: int
    correlations: tuple[float, ...]
    mean: float
    low: float
    high: float
    k: int
    shared: float
    steps: int
    error: float
    rough: bool

    def in_short(self) -> list[str]:
        """The main result for a terminal."""
        if self.rough:
            return [
                f"this training is too rough to be replayed: it misses {100 * self.error:.0f} % of what two retrainings do"
            ]
        return [
            f"the kernel predicts what training on random halves does as a replay of it does, rank correlation {self.mean:.2f}"
            f" ({self.low:.2f} … {self.high:.2f}), over {len(self.items)} test items"
        ]


def run(context: Context) -> Finding[Replayed]:
    training, explained = context.training, context.result(explain.SECTION)
    if training is None:
        raise Skip(
            "no training was given: pass training=, what fit(…, store=DIR) returned (--training on the command line)"
        )
    if not isinstance(explained, explain.Explanations):
        raise Skip("it is about the predictions that are explained, and that section failed")
    items = _chosen(context, explained, training)
    own = context.network_logits[items]
    said = own.argmax(1)
    replayed, certificate = _replayed(context, training, items, said)
    pair, targets = context.pair(MAIN), np.eye(len(context.classes))[context.y_train]
    kernel = influence(pair.train, pair.test[items], targets, logits=own).margins(said)
    halves = random_subsets(len(context.train), HALVES, seed=context.seed)
    rated = linear_datamodeling_score(*(group_predictions(scores, halves) for scores in (kernel, replayed)))
    k = min(POINTS, len(context.train))
    orders = {}
    for name, scores in (("replay", replayed), ("ridge", kernel)):
        orders[name] = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        context.keep(f"replay.{name}_index", orders[name])
        context.keep(f"replay.{name}_value", np.take_along_axis(scores, orders[name], 1))
    shared = np.mean([len(np.intersect1d(*both)) for both in zip(orders["replay"], orders["ridge"])])
    wrong = int((said != context.y_test[items]).sum())
    low, high = rated.interval
    found = Replayed(
        items=tuple(items.tolist()),
        wrong=wrong,
        correlations=tuple(rated.items.tolist()),
        mean=rated.mean,
        low=low,
        high=high,
        k=k,
        shared=float(shared),
        steps=training.loop.steps,
        error=certificate.relative_error,
        rough=certificate.relative_error > TRUSTED,
    )
    return Finding(found, _confidence(found))


def _chosen(context: Context, explained: explain.Explanations, training: Training) -> Int64[np.ndarray, " t"]:
    """Explained test items: the network's mistakes first, then any; more than the least where time allows."""
    items, left = np.array(explained.items, dtype=np.int64), context.clock.left()
    more = (MOST - LEAST) if np.isinf(left) else int(SHARE * max(0.0, left) / (EACH * training.seconds + 1e-9))
    count = min(len(items), MOST, LEAST + more)
    mistaken = np.array(explained.network_predicted) != np.array(explained.true)
    draw = numpy_generator(context.seed, "xray", "replay")
    return np.concatenate([items[mistaken], draw.permutation(items[~mistaken])])[:count]


def _replayed(
    context: Context, training: Training, items: Int64[np.ndarray, " t"], said: Int64[np.ndarray, " t"]
) -> tuple[Float64[np.ndarray, "t n"], ReplayCertificate]:
    """The influence of the training items on the margins of the predicted classes, and what it was compared with; an error
    where the training did not end in this network."""
    test = context.test.take(torch.from_numpy(items))
    single = context.width == 1  # of a class against the other, whose margin is the output or minus it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a rough training, which the section says itself
        options: dict[str, Any] = {"memory": context.memory // 2, "seed": context.seed}
        found = replay_influence(training.loop, test.x, None if single else said, None, REMOVED, **options)
    sign = np.where(said == 1, 1.0, -1.0)[:, None] if single else np.ones((len(said), 1))
    margins, logits = sign[:, 0] * found.logits[:, 0], context.network_logits[items]
    own = logits[np.arange(len(said)), said]
    others = np.where(np.eye(logits.shape[1], dtype=bool)[said], -np.inf, logits)
    there = own - np.logaddexp.reduce(others, axis=1)
    apart = np.abs(margins - there) / (1 + np.abs(there))
    if apart.max() > NEAR:
        raise NumericalError(
            f"the training, run again, ended in a network whose margins are up to {apart.max():.2g} from this one's; expected"
            " the training that made it"
        )
    scores = sign * found.scores[:, 0]
    return scores[:, context.train.original.numpy()], found.replays[0].certificate


def _confidence(found: Replayed) -> str:
    return (
        f"Over {len(found.items)} test items, {found.wrong} of them mistakes; the interval is over items, 95 %. The training"
        " was run again and ended in a network of the same outputs. Of what two retrainings with slightly other weights did,"
        f" the derivative misses {100 * found.error:.0f} %."
    )


def cost(work: Workload) -> float:
    return (work.training or 0.0) * (TRAININGS + LEAST * EACH)


SECTION = register(
    Section(
        name="replay",
        place=3,
        title="What training would have done",
        meaning=(
            "The training was at hand, so it could be asked itself: it is gone through backwards, step by step, for the change"
            " of a prediction if a training point had counted less. The kernel answers the same question from the trained"
            " network alone. Where both say the same of training on other points, the kernel predicts what training does."
        ),
        formula=(
            "m(x) = z_c - log Σ_{k≠c} exp z_k, c the predicted class. Replay: ∂m/∂w_i, w_i the weight of point i's loss in"
            " every step, where half of all weight is gone (with Adam, half of the rates). Kernel: the change of m at the"
            " network's logits, by exact leave-one-out of kernel ridge regression of trntk on the labels. ρ: Spearman's, of"
            " the sums over random halves of the training points."
        ),
        run=run,
        result=Replayed,
        after=(explain.SECTION,),
        cost=cost,
        tasks=(CLASSIFICATION,),
        needs="training",
    )
)
