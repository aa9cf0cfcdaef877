"""Networks drawn at random: every fast method against per-sample autograd, under any budget, outputs and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkscope.core import NumericalError
from oracles.against import GRADIENT_NAMES, compare, expected
from strategies.architectures import FAMILIES, Architecture, budgets, few, many
from strategies.crews import crew_of


def options(name: str, architecture: Architecture, pick: int) -> dict[str, Any]:
    """Small projections of either kind; a layer, or a few, at random."""
    layers = architecture.layers
    known: dict[str, dict[str, Any]] = {
        "proj-trntk": {
            "dim": 7,
            "kind": ("rademacher", "gaussian")[pick % 2],
            "normalize": None if pick % 3 else False,
        },
        "proj-pntk": {"dim": 7, "kind": ("rademacher", "gaussian")[pick % 2], "normalize": pick % 3 == 0},
        "em": {"layers": layers[pick % len(layers) :]},
        "ptk": {"layer": layers[pick % len(layers)], "form": ("dual", "features")[pick % 2]},
    }
    return known.get(name, {})


def check(data: st.DataObject, family: str, names: Sequence[str]) -> None:
    architecture = data.draw(FAMILIES[family], label="architecture")
    name = data.draw(st.sampled_from(names), label="kernel")
    memory = data.draw(budgets if name in GRADIENT_NAMES else st.just("2GiB"), label="memory")
    extra = {
        key: value
        for key, value in options(name, architecture, data.draw(st.integers(0, 11), label="pick")).items()
        if value is not None
    }
    outputs: list[int] | None = None
    params: Any = None
    classes = architecture.model.head.out_features
    if name not in ("ck", "em") and data.draw(st.booleans(), label="chosen outputs"):
        outputs = data.draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=classes, unique=True))
    if name in GRADIENT_NAMES and data.draw(st.integers(0, 3), label="chosen parameters") == 0:
        params = data.draw(
            st.sampled_from(["*.weight*", "last", ["body.*", "head.*"], lambda name: "bias" not in name])
        )
    trainable = [key for key, p in architecture.model.named_parameters() if p.requires_grad]
    if isinstance(params, list):
        params = [glob for glob in params if any(fnmatchcase(key, glob) for key in trainable)]
    if params == "last" and not any(p.requires_grad for p in architecture.model.head.parameters()):
        params = None  # the readout shares a frozen embedding
    if params == "*.weight*" and not any(fnmatchcase(key, params) for key in trainable):
        params = None  # they are all frozen with it, and a glob that matches nothing is refused
    x2 = None
    if extra.get("form") != "features" and data.draw(st.booleans(), label="two sets of inputs"):
        x2 = architecture.x.flip(0)[: max(1, len(architecture.x) - 1)]
    threads = data.draw(st.sampled_from([1, 1, 2, 3]), label="threads") if name in GRADIENT_NAMES else 1
    try:
        with crew_of(threads):
            compare(
                name, architecture.model, architecture.x, x2, outputs=outputs, params=params, memory=memory, **extra
            )
    except NumericalError as error:  # a dead network has no cosine; then the oracle has none either
        selection: dict[str, Any] = {"outputs": outputs, "params": params}
        if expected(name, architecture.model, architecture.x, x2, **selection, **extra).isfinite().all():
            raise AssertionError(f"refused a finite kernel: {error}") from error


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(few, max_examples=8)
def test_gradient_kernels(family: str, data: st.DataObject) -> None:
    check(data, family, ["entk", "trntk0", "pntk"])


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(few, max_examples=6)
def test_projections_and_activations(family: str, data: st.DataObject) -> None:
    check(data, family, ["proj-trntk", "proj-pntk", "ck", "em", "ptk"])


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["entk", "trntk0", "pntk", "proj-trntk", "proj-pntk", "ck", "em", "ptk"])
@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@many
def test_many(family: str, name: str, data: st.DataObject) -> None:
    check(data, family, [name])
