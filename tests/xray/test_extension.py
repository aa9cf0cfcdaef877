"""A new kernel or measure appears in the X-ray, its plan and its page by being registered, and by nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ntkscope.core.errors import RecordError
from ntkscope.kernels import KERNELS, costs
from ntkscope.kernels.conjugate import ck
from ntkscope.kernels.registry import Request
from ntkscope.linalg import Gram
from ntkscope.measures import MEASURES
from ntkscope.measures.registry import measure
from ntkscope.report import write_page
from ntkscope.xray.plan import standard
from ntkscope.xray.sections import kernel, surrogates
from xray.small import only, xrayed


@pytest.fixture
def added() -> Iterator[None]:
    """A kernel, a measure of two logits and one of a kernel and labels, registered for one test."""

    @KERNELS.register("mine", features=True, cost=costs.activations)
    def mine(request: Request) -> Gram:
        """The features of the last layer, without the bias."""
        return ck(request, bias=False)

    @measure("logit-gap", of="two logits")
    def logit_gap(a: Any, b: Any) -> float:
        """`mean |a - b|`."""
        return float(np.abs(np.asarray(a) - np.asarray(b)).mean())

    @measure("trace-share", of="kernel and labels")
    def trace_share(K: Any, y: Any) -> float:
        """`tr K / n`."""
        return float(np.asarray(K).diagonal().mean())

    yield
    for registry, name in ((KERNELS, "mine"), (MEASURES, "logit-gap"), (MEASURES, "trace-share")):
        del registry._entries[name], registry._spelling[name]


def test_what_is_registered_is_planned_computed_rated_and_shown(added: None, tmp_path: Path) -> None:
    assert standard()[-1] == "mine"  # given up first: it said nothing of its priority
    with only(surrogates.SECTION, kernel.SECTION):
        record = xrayed(tmp_path, kernels=["mine"])
    assert list(record.metrics["plan"]["kernels"]) == ["trntk0", "mine"]
    assert "kernel mine" in record.metrics["plan"]["steps"]  # so few items may be forecast to take no time
    rated, decomposed = surrogates.SECTION.read(record.metrics), kernel.SECTION.read(record.metrics)
    assert rated is not None
    assert decomposed is not None
    assert [row.kernel for row in rated.table[::2]] == ["trntk", "trntk0", "mine"]
    assert all(row.more["logit-gap"] > 0 for row in rated.table)
    assert decomposed.more == {"trace-share": 1.0}
    assert set(record.metrics["certificates"]["mine"]) == {"all"}  # its features: one pass
    page = write_page(tmp_path).read_text()
    for text in ("Logit gap", "trace-share", "mine"):
        assert text in page


@pytest.mark.guard
def test_a_section_of_another_version_is_computed_again(tmp_path: Path) -> None:
    record = xrayed(tmp_path, kernels=["ck"])
    file = tmp_path / "record.json"
    file.write_text(file.read_text().replace('"condition_number"', '"condition"'))
    with pytest.raises(RecordError, match="Kernel without condition_number"):
        kernel.SECTION.read(type(record).open(tmp_path).metrics)
    again = kernel.SECTION.read(xrayed(tmp_path, kernels=["ck"]).metrics)
    assert again == kernel.SECTION.read(record.metrics)
