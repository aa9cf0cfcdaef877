"""Words: which tokens of a text the network reacts to, the texts it gets wrong first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ntkscope.core import UsageError
from ntkscope.data.subsets import stratified
from ntkscope.xray.context import Context
from ntkscope.xray.plan import section_step
from ntkscope.xray.registry import Finding, Section, Skip, register
from ntkscope.xray.salient_words import Salient, salient_words
from ntkscope.xray.task import CLASSIFICATION, Array
from ntkscope.xray.workload import Workload

TEXTS = 256  # test texts whose words are weighed, at most
SHOWN = 40  # of them shown whole, at least; with all that are predicted wrongly half as many others
SHARE = 0.1  # of the time that is left, for texts beyond so many


def run(context: Context) -> Finding[Salient]:
    order, shown = _order(context)
    order = order[: _affordable(context)]
    try:
        found = salient_words(context, context.test.take(torch.from_numpy(order)), min(shown, len(order)))
    except UsageError as why:
        raise Skip(str(why)) from why
    texts = tuple(replace(text, item=int(order[text.item])) for text in found.texts)
    confidence = (
        "A first-order estimate at each text: it says what the outputs react to, not what would happen without a word; where"
        " the network is certain, all reactions are small, which shares do not show."
    )
    return Finding(replace(found, texts=texts), confidence)


def _order(context: Context) -> tuple[Array, int]:
    """Test texts, and how many are shown: those predicted wrongly first, then some of every class."""
    rows = stratified(context.test.strata, TEXTS, context.seed, "xray", "saliency")
    if context.task is not CLASSIFICATION:
        return rows, SHOWN
    wrong = np.flatnonzero(context.network_logits.argmax(1) != context.y_test)[: TEXTS // 2]
    right = np.setdiff1d(rows, wrong)
    few = right[
        stratified(context.test.strata[right], max(SHOWN // 2, SHOWN - len(wrong)), context.seed, "xray", "shown texts")
    ]
    return np.concatenate([wrong, few, np.setdiff1d(right, few)])[:TEXTS], len(wrong) + len(few)


def _affordable(context: Context) -> int:
    """How many texts there is time for."""
    left = context.clock.left()
    if np.isinf(left):
        return TEXTS
    each = context.pace.now() * context.plan.steps.get(section_step("words"), 0.0) / SHOWN
    return SHOWN + min(TEXTS - SHOWN, int(SHARE * max(0.0, left) / max(each, 1e-6)))


def cost(work: Workload) -> float:
    """Two forward passes and a pass back per output, for the texts that are shown at least."""
    return min(work.test, SHOWN) * work.rates.forward * (3 + 2 * min(work.rates.outputs, 16))


SECTION = register(
    Section(
        name="words",
        place=4,
        title="Words",
        meaning=(
            "Which words of a text the network reacts to: how much its outputs would change, to first order, if a word were"
            " replaced by an average one, as its share in the text."
        ),
        formula="s² = Σ_c (∂f_c/∂e · (e - ē))², e the embedding of a token, ē the mean of all; a classifier's outputs centred",
        run=run,
        result=Salient,
        essential=True,
        needs="texts",
        cost=cost,
    )
)
