"""A rule of your own: make the engine fast on a layer that it does not know. Run: python examples/own_rule.py

Without a rule, a parameter is handled exactly but slowly, and `K.coverage` names it. A wrong rule is found out: each block is
compared with plain autograd, and what differs is computed without the rule and named in `K.certificate.fell_back`.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.tangent.trace.rules.linear import affine
from ntkscope.tangent.trace.rules.registry import RULES, Find, rule
from ntkscope.tangent.trace.terms import Term


def bilinear(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    """`y = W (u ⊗ v) + b`: an affine map of the products of both inputs."""
    products = (arguments["input1"][:, :, None] * arguments["input2"][:, None, :]).flatten(1)
    return affine(products, find(arguments["weight"]), find(arguments.get("bias")), transposed=False)


class Interaction(nn.Module):
    """Two views of an input, combined by products."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 12), nn.Linear(8, 12)
        self.both = nn.Bilinear(12, 12, 20)
        self.readout = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(torch.tanh(self.both(self.left(x), self.right(x))))


def main() -> tuple[ns.Gram, ns.Gram]:
    torch.manual_seed(0)
    model, x = Interaction(), torch.randn(60, 8)
    without = ns.kernel("trntk", model, x)
    rule("input1 input2 weight bias", F.bilinear)(bilinear)
    try:
        with_rule = ns.kernel("trntk", model, x)
    finally:
        del RULES[F.bilinear]  # for this example only; in a package of your own the rule stays
    for name, K in {"without": without, "with": with_rule}.items():
        print(f"{name} the rule: {K.coverage}; {K.certificate}")
    return without, with_rule


if __name__ == "__main__":
    main()
