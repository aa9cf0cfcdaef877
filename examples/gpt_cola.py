"""Train a small GPT on sentences (CoLA); which of them support a continuation? Run: NTKSCOPE_DATA=… python examples/gpt_cola.py

For each test sentence, cut in two, it prints the training sentences without which the second half would be less likely. How
many of the first five share a word of four letters or more with that half? Some minutes on two cores.
"""

import copy
import re
import sys

import numpy as np
import torch

import ntkscope as ns
from ntkscope.core import Part
from ntkscope.models import sequence_inputs, sequence_log_likelihood

CONTEXT = 64


def main(steps: int = 600, train_items: int = 200, test_items: int = 20) -> tuple[float, float, float]:
    split = ns.data.load("cola")
    texts = [
        text for text in split.train.x if len(text.encode()) <= CONTEXT - 2
    ]  # a token before the text, one behind it
    lm = ns.models.build("gpt", width=128, depth=4, context=CONTEXT)  # 834,432 parameters
    initial = copy.deepcopy(lm)
    ns.training.fit(
        sequence_log_likelihood(lm, mean=True),
        Part(sequence_inputs(texts, end=256), torch.zeros(len(texts))),
        loss=lambda outputs, targets: -outputs[:, 0],
        optimizer="adamw",
        lr=2e-3,
        weight_decay=0.01,
        schedule=ns.training.Cosine(),
        steps=steps,
        batch_size=64,
        measure=False,
        progress=True,
    ).final()
    train = some(split.train, train_items)
    pairs = [halves(text) for text in some(split.test, test_items)]
    x, test = sequence_inputs(train, end=256), sequence_inputs(pairs, end=256)
    f, before = (sequence_log_likelihood(each).eval() for each in (lm, initial))
    with torch.no_grad():
        gains = f(**x) - before(**x)
    found = ns.explain.influence(ns.kernel("trntk", f, x), ns.kernel("trntk", f, test, x), gains)
    tops = [found.top(item, 5).indices for item in range(len(pairs))]
    control = ns.kernel("trntk", before, test, x).dense().topk(5).indices.numpy()  # the network knew nothing yet
    shares = []
    for (prompt, continuation), top, untrained in zip(pairs, tops, control):
        alike = np.array([bool(words(continuation) & words(text)) for text in train])
        if alike.any():
            shares.append((alike[top].mean(), alike[untrained].mean(), alike.mean()))
        print(f"\n{prompt} |{continuation}", *(f"  {'*' if alike[i] else ' '} {train[i]}" for i in top), sep="\n")
    by_influence, by_control, of_all = (float(share) for share in np.mean(shares, axis=0))
    print(
        f"\nshare a word with the continuation, of {len(shares)} that share one with any: {by_influence:.0%} of the first five,"
        f" {by_control:.0%} by the kernel of the untrained network, {of_all:.0%} of all"
    )
    return by_influence, by_control, of_all


def some(part: Part, count: int) -> list[str]:
    """Sentences of Levin's book on verbs, many of which share words, spread over it."""
    found = [text for text, source in zip(part.x, part.extras["source"]) if source == "l-93"]
    found = [text for text in found if len(text.encode()) <= CONTEXT - 2 and text.count(" ") > 1]
    return found[:: len(found) // count][:count]


def halves(text: str) -> tuple[str, str]:
    parts = text.split(" ")
    return " ".join(parts[: len(parts) // 2]), " " + " ".join(parts[len(parts) // 2 :])


def words(text: str) -> set[str]:
    return {*re.findall("[a-z]{4,}", text.lower())}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
