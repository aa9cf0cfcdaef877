"""LeNet-5 on MNIST, above 98.8 % in a few epochs on two cores:

python -m ntkscope.training.lenet_mnist --root DATA --out DIR
"""

from __future__ import annotations

import sys

from ntkscope.training.recipes import Recipe, main
from ntkscope.training.schedules import Triangular

RECIPE = Recipe(
    name="lenet_mnist",
    dataset="mnist",
    model="lenet",
    target=0.988,
    epochs=3,
    fit={
        "optimizer": "sgd",
        "lr": 0.08,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 1e-4,
        "batch_size": 64,
        "schedule": Triangular(peak=0.2),
    },
)

if __name__ == "__main__":
    sys.exit(main(RECIPE))
