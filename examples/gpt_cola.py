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


def main(steps: int = 600, train_items: int = 200, test_items: int = 20) -> tuple[float, float]:
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
    first, all_ = [], []
    for item, (prompt, continuation) in enumerate(pairs):
        top = found.top(item, 5).indices
        alike = np.array([bool(words(continuation) & words(text)) for text in train])
        if alike.any():
            first.append(alike[top].mean())
            all_.append(alike.mean())
        print(f"\n{prompt} |{continuation}", *(f"  {'*' if alike[i] else ' '} {train[i]}" for i in top), sep="\n")
    print(f"\nshare a word with the continuation: {np.mean(first):.0%} of the first five, {np.mean(all_):.0%} of all")
    return float(np.mean(first)), float(np.mean(all_))


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
