"""What training would have done: predicted by the kernel and by replaying it, judged by training again without some points."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from scipy.stats import t as student

from ntkscope.core import NumericalError, numpy_generator
from ntkscope.explain import influence
from ntkscope.explain.removal.replay_influence import replay_influence
from ntkscope.measures.datamodeling import group_predictions, item_scores, random_subsets
from ntkscope.training.replays.replay import TRUSTED, Replay
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
RETRAININGS = 20  # on random halves of the points
POINTS = 8  # training points of each list
REMOVED = 0.5  # share of the points at whose removal the derivative is taken
NEAR = 1e-2  # of a margin, by which the replayed training may end elsewhere
LEVEL = 0.95  # of the intervals


@dataclass(frozen=True)
class Foretold(Result):
    """How well an answer orders what the retrainings did to the margin of each item: Spearman's ρ item by item, and their mean
    with its interval over retrainings."""

    items: tuple[float, ...]
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Replayed(Result):
    """The margin of the predicted class of some test items, `wrong` of them mistakes, after training on random halves of the
    points: what the kernel and a replay of the training said of it, and what `retrainings` did.

    `shared`: how many of the `k` points that support a prediction most are the same by both, the mean over items. `steps`: of
    the training. `error`: of what two retrainings with slightly other weights did, the share that the replay's derivative
    missed; `rough`: whether that is too much to believe what a replay says of a single point.
    """

    items: tuple[int, ...]
    wrong: int
    retrainings: int
    kernel: Foretold
    replay: Foretold
    k: int
    shared: float
    steps: int
    error: float
    rough: bool

    def in_short(self) -> list[str]:
        """The main result for a terminal."""
        rated = [
            f"{name} {one.mean:.2f} ({one.low:.2f} … {one.high:.2f})"
            for name, one in (("the kernel", self.kernel), ("a replay", self.replay))
        ]
        rough = ["; the training is too rough for a replay to say which points matter"] if self.rough else []
        return [
            f"what {self.retrainings} trainings on random halves did to {len(self.items)} predictions, foretold by"
            f" {', by '.join(rated)} (rank correlation)" + "".join(rough)
        ]


def run(context: Context) -> Finding[Replayed]:
    training, explained = context.training, context.result(explain.SECTION)
    if training is None:
        raise Skip(
            "no training was given: pass training=, what fit(…, store=DIR) returned (--training on the command line)"
        )
    if not isinstance(explained, explain.Explanations):
        raise Skip("it is about the predictions that are explained, and that section failed")
    items, used = _chosen(context, explained, training), context.train.original.numpy()
    own = context.network_logits[items]
    said = own.argmax(1)
    single = context.width == 1  # of a class against the other, whose margin is the output or minus it
    sign = np.where(said == 1, 1.0, -1.0)[:, None] if single else np.ones((len(said), 1))
    scores, replay = _replayed(context, training, items, said, sign)
    pair, targets = context.pair(MAIN), np.eye(len(context.classes))[context.y_train]
    kernel = influence(pair.train, pair.test[items], targets, logits=own).margins(said)
    halves = random_subsets(training.loop.items, RETRAININGS, seed=context.seed)
    done = np.stack([sign[:, 0] * replay.retrained(half.astype(np.float64)).cpu().double().numpy() for half in halves])
    k = min(POINTS, len(context.train))
    orders = {}
    for name, each in (("replay", scores[:, used]), ("ridge", kernel)):
        orders[name] = np.argsort(-each, axis=1, kind="stable")[:, :k]
        context.keep(f"replay.{name}_index", orders[name])
        context.keep(f"replay.{name}_value", np.take_along_axis(each, orders[name], 1))
    context.keep("replay.retrained", done)
    shared = np.mean([len(np.intersect1d(*both)) for both in zip(orders["replay"], orders["ridge"])])
    error = replay.certificate.relative_error
    found = Replayed(
        items=tuple(items.tolist()),
        wrong=int((said != context.y_test[items]).sum()),
        retrainings=RETRAININGS,
        kernel=_foretold(kernel, halves[:, used], done),
        replay=_foretold(scores, halves, done),
        k=k,
        shared=float(shared),
        steps=training.loop.steps,
        error=error,
        rough=error > TRUSTED,
    )
    return Finding(found, _confidence(found))


def _foretold(
    scores: Float64[np.ndarray, "t n"], halves: Bool[np.ndarray, "r n"], done: Float64[np.ndarray, "r t"]
) -> Foretold:
    """Spearman's ρ over retrainings; Student's interval of the mean by the jackknife over them."""
    said, count = group_predictions(scores, halves), len(halves)
    items = item_scores(said, done, constant=0.0)
    means = [item_scores(np.delete(said, i, 0), np.delete(done, i, 0), constant=0.0).mean() for i in range(count)]
    half = student.ppf((1 + LEVEL) / 2, count - 1) * (count - 1) ** 0.5 * float(np.std(means))
    mean = float(items.mean())
    return Foretold(tuple(items.tolist()), mean, max(-1.0, mean - half), min(1.0, mean + half))


def _chosen(context: Context, explained: explain.Explanations, training: Training) -> Int64[np.ndarray, " t"]:
    """Explained test items: the network's mistakes first, then any; more than the least where time allows."""
    items, left = np.array(explained.items, dtype=np.int64), context.clock.left()
    more = (MOST - LEAST) if np.isinf(left) else int(SHARE * max(0.0, left) / (EACH * training.seconds + 1e-9))
    count = min(len(items), MOST, LEAST + more)
    mistaken = np.array(explained.network_predicted) != np.array(explained.true)
    draw = numpy_generator(context.seed, "xray", "replay")
    return np.concatenate([items[mistaken], draw.permutation(items[~mistaken])])[:count]


def _replayed(
    context: Context,
    training: Training,
    items: Int64[np.ndarray, " t"],
    said: Int64[np.ndarray, " t"],
    sign: Float64[np.ndarray, "t 1"],
) -> tuple[Float64[np.ndarray, "t n"], Replay]:
    """The influence of every training point on the margins of the predicted classes, and the replay; an error where the
    training did not end in this network."""
    test = context.test.take(torch.from_numpy(items))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a rough training, which the section says itself
        options: dict[str, Any] = {"memory": context.memory // 2, "seed": context.seed}
        labels = None if context.width == 1 else said
        found = replay_influence(training.loop, test.x, labels, None, REMOVED, **options)
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
    return sign * found.scores[:, 0], found.replays[0]


def _confidence(found: Replayed) -> str:
    return (
        f"Over {len(found.items)} test items, {found.wrong} of them mistakes; intervals are over the retrainings, 95 %. The"
        " training was run again and ended in a network of the same outputs. Of what two retrainings with slightly other"
        f" weights did, the derivative misses {100 * found.error:.0f} %."
    )


def cost(work: Workload) -> float:
    return (work.training or 0.0) * (TRAININGS + LEAST * EACH + RETRAININGS)


SECTION = register(
    Section(
        name="replay",
        place=3,
        title="What training would have done",
        meaning=(
            "The training was at hand, so it could be asked itself: it was run again on random halves of the points. What that"
            " does to a prediction is foretold by the kernel, from the trained network alone, and by a replay, which goes"
            " through the training backwards, step by step. Where the kernel orders the retrainings as they turned out, what"
            " it says of a training point can be believed."
        ),
        formula=(
            "m(x) = z_c - log Σ_{k≠c} exp z_k, c the predicted class. Retrained: the same steps and batches, where the losses"
            " of the points outside a random half count nothing. Replay: ∂m/∂w_i, w_i the weight of point i's loss in every"
            " step, where half of all weight is gone (with Adam, half of the rates). Kernel: the change of m at the network's"
            " logits, by exact leave-one-out of kernel ridge regression of trntk on the labels. ρ: Spearman's over retrainings,"
            " of m and the sum of the changes of the points in the half."
        ),
        run=run,
        result=Replayed,
        after=(explain.SECTION,),
        cost=cost,
        tasks=(CLASSIFICATION,),
        needs="training",
    )
)
