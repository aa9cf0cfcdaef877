"""Words: which tokens of a text the network reacts to, the texts it gets wrong first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ntkscope.core import UsageError
from ntkscope.data.subsets import stratified
from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, Skip, register
from ntkscope.xray.salient_words import Salient, salient_words
from ntkscope.xray.task import CLASSIFICATION, Array
from ntkscope.xray.workload import Workload

TEXTS = 256  # test texts whose words are weighed
SHOWN = 40  # of them shown whole; half of these at most are predicted wrongly


def run(context: Context) -> Finding[Salient]:
    order = _order(context)
    try:
        found = salient_words(context, context.test.take(torch.from_numpy(order)), SHOWN)
    except UsageError as why:
        raise Skip(str(why)) from why
    texts = tuple(replace(text, item=int(order[text.item])) for text in found.texts)
    confidence = (
        "A first-order estimate at each text: it says what the outputs react to, not what would happen without a word; where"
        " the network is certain, all reactions are small, which shares do not show."
    )
    return Finding(replace(found, texts=texts), confidence)


def _order(context: Context) -> Array:
    """Test texts: of those that are shown, up to half are predicted wrongly, and the others are from every class."""
    rows = stratified(context.test.strata, TEXTS, context.seed, "xray", "saliency")
    if context.task is not CLASSIFICATION:
        return rows
    wrong = np.flatnonzero(context.network_logits.argmax(1) != context.y_test)[: TEXTS // 2]
    right = np.setdiff1d(rows, wrong)
    first = min(len(wrong), max(SHOWN // 2, SHOWN - len(right)))  # of the texts that are shown
    few = right[stratified(context.test.strata[right], SHOWN - first, context.seed, "xray", "shown texts")]
    return np.concatenate([wrong[:first], few, wrong[first:], np.setdiff1d(right, few)])[:TEXTS]


def cost(work: Workload) -> float:
    """Two forward passes and a pass back per output."""
    return min(work.test, TEXTS) * work.rates.forward * (3 + 2 * min(work.rates.outputs, 16))


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
