"""The gain of the surrogate: how close it comes to the network on the initial kernel, and on the trained one."""

from __future__ import annotations

import numpy as np

from ntkscope.core import NumericalError
from ntkscope.machines import KernelPair
from ntkscope.measures.faithfulness import agreement, kendall, kendall_tau
from ntkscope.measures.log_odds import correct_class_log_odds
from ntkscope.xray.context import Context
from ntkscope.xray.task import REGRESSION


def surrogate_figures(context: Context, before: KernelPair, now: KernelPair) -> dict[str, float]:
    """How close the surrogates on the initial and on the trained kernel are to the network, on the same few items."""
    if context.task == REGRESSION:
        return _output_surrogates(context, before, now)
    rows, columns = context.initial_rows
    y, held = context.y_train[rows], context.y_test[columns]
    network = context.network_logits[columns]
    found = {}
    for key, pair in (("before", before), ("after", now)):
        scaled = pair.scaled()
        logits = context.fitted(scaled, y).logits(scaled.test)
        odds = correct_class_log_odds(logits, held), correct_class_log_odds(network, held)
        try:
            found[f"tau_{key}"] = kendall_tau(odds[0], odds[1])
        except NumericalError:  # one of them is constant over all items
            continue
        found[f"agreement_{key}"] = agreement(logits, network)
    return found


def _output_surrogates(context: Context, before: KernelPair, now: KernelPair) -> dict[str, float]:
    """The same of a regression: how alike surrogates fitted to the targets and the network rank the items, output by output."""
    rows, columns = context.initial_rows
    network, found = context.network_outputs[columns], {}
    for key, pair in (("before", before), ("after", now)):
        scaled = pair.scaled()
        made = context.fitted(scaled, context.targets_train[rows], "targets").scores(scaled.test)
        taus = [kendall(made[:, k], network[:, k]).tau_b for k in range(network.shape[1])]
        if not np.isnan(taus).all():
            found[f"tau_{key}"] = float(np.nanmean(taus))
    return found
