"""A tracked run in a process of its own, to be killed."""

from __future__ import annotations

import torch

import ntkscope as ns
from ntkscope.core import Part
from ntkscope.training import fit
from tracking.runs import ALL, data, network

STEPS, EVERY = 300, 5


def run(folder: str) -> None:
    """Train to the end, or resume; snapshots are kept every 20 steps, so that the tracker is ahead of them after a kill."""
    torch.set_num_threads(1)
    model = network()
    watching = ns.Tracker(
        model,
        data(60, 1),
        f"{folder}/tracked",
        when=EVERY,
        total=STEPS,
        overhead=ALL,
        watch=("weights", "ck", "alignment"),
    )
    fit(
        model,
        Part(*data()),
        lr=0.02,
        momentum=0.9,
        steps=STEPS,
        batch_size=6,
        measure=False,
        snapshots=20,
        store=f"{folder}/snapshots",
        on_step=watching.on_step,
    ).final()
    watching.close()
