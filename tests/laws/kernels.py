"""Kernels of finite networks and what the engine returns beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import ntkscope as ns
from laws.table import Argument, Case, case, choice, count, given, matrix, other, seed, switch

NOT_MODELS = (None, "x", 3, object(), torch.nn.Linear)
OUTPUTS: tuple[Any, ...] = ("x", 2.5, [9], [-9], [2.5], [], float("nan"), object())
MEMORY: tuple[Any, ...] = (None, "x", "", 0, -1, "-1GiB", float("nan"), float("inf"), object(), [])
DEVICE: tuple[Any, ...] = ("no such", 3.5, object(), [], "cuda:99")
CERTIFY: tuple[Any, ...] = ("no such", "", 3, None, object(), [])


def model() -> Argument:
    def draw(random: np.random.Generator, sizes: Any) -> Any:
        made = ns.models.build("mlp", in_features=5, classes=3, widths=6, seed=int(random.integers(99)))
        return made.double().eval()

    return other(draw, bad=NOT_MODELS)


def inputs(axis: str = "n") -> Argument:
    return matrix(axis, "p", tensor=True)


def named(name: str, **options: Argument) -> Case:
    arguments = {
        "model": model(),
        "x1": inputs(),
        "x2": inputs("m").may_be(None),
        "memory": given("1GiB", bad=MEMORY),
        "certify": given("every", bad=CERTIFY),
        "device": given(None, bad=DEVICE),
        "seed": seed(),
        **options,
    }
    return Case(
        lambda **given: ns.kernel(name, **given),
        arguments,
        name=f"kernels.{name}",
        items={"": ("n", "m")} if name != "entk" else None,
    )


GRADIENTS = {"outputs": given(None, bad=OUTPUTS), "precision": choice("exact")}
PROJECTED = {"dim": count(16).may_be(None), "kind": choice("rademacher"), "normalize": switch(True)}
# fmt: off
CASES: list[Case] = [
    named("entk", **GRADIENTS, schedule=choice("auto")),
    named("trntk", **GRADIENTS, schedule=choice("auto")),
    named("trntk0", **GRADIENTS, per_layer=switch(), schedule=choice("auto")),
    named("pntk", **GRADIENTS, per_layer=switch()),
    named("proj-trntk", **PROJECTED),
    named("proj-pntk", **PROJECTED),
    named("ck", bias=switch(True)),
    named("em", normalize=switch()),
    named("ptk", form=choice("dual")),
    case(ns.kernel, name=choice("trntk"), model=model(), x1=inputs(), options={"name": "kernels.kernel"}),
    case(ns.kernels.OutputSketch, k=count(2), seed=seed(), options={"name": "kernels.OutputSketch"}),
    case(ns.tangent.Jacobian, model=model(), x=inputs(), outputs=given(None, bad=OUTPUTS), block=count(4),
        options={"of": lambda found: found.vjp(torch.ones(len(found.batch), found.width))}),
    case(ns.tangent.activations, model=model(), x=inputs(), reduce=choice("flatten"), memory=given("1GiB", bad=MEMORY)),
    case(ns.tangent.feature_matrices, model=model(), x=inputs(), memory=given("1GiB", bad=MEMORY),
        certify=given("every", bad=CERTIFY), device=given(None, bad=DEVICE),
        options={"of": lambda found: [layer.ptk for layer in found.layers.values()]}),
    Case(lambda model, sample, **options: (ns.Tangent(model, sample, **options).kernel("trntk",
        sample) if hasattr(ns.Tangent, "kernel") else 0), {"model": model(), "sample": inputs(), "outputs": given(None,
        bad=OUTPUTS), "memory": given("1GiB", bad=MEMORY), "certify": given("every", bad=CERTIFY),
        "precision": choice("exact"), "device": given(None, bad=DEVICE)}, name="kernels.Tangent"),
]
# fmt: on
