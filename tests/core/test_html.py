"""What notebooks show: escaped, well-formed, without other addresses, and no larger for larger data."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import ntkscope as ns
from ntkscope.core import Certificate, Record, Snapshot
from ntkscope.core.html import heat_map, spectrum
from ntkscope.explain.attribution import Attribution
from ntkscope.linalg import DenseGram, OperatorGram, as_gram
from ntkscope.tangent.kernel.coverage import Coverage

EVIL = "<script src='https://example.org/x.js'>&\""
TAGS = set("div table caption tr th td img svg path polyline text br small".split())  # noqa: SIM905
DRAW = torch.Generator().manual_seed(0)


def features(n: int) -> torch.Tensor:
    return torch.randn(n, 4, generator=DRAW, dtype=torch.float64)


def gram(n: int) -> ns.Gram:
    x = features(n)
    held = {"certificate": Certificate(1e-7, 1e-3, 1, 2, fell_back=(EVIL,))}
    return as_gram(x @ x.T).with_labels(name=EVIL, rows=EVIL, coverage=EVIL, meta=held)


def record(n: int, folder: Path) -> Record:
    made = Record.create(folder / str(n), kind="test", name=EVIL)
    made.put(**{EVIL: [EVIL] * n})
    return made


def influence(n: int) -> Any:
    x = as_gram(features(n) @ features(n).T)
    return ns.explain.influence(x @ torch.eye(n).double() @ x.T, x[:20], torch.arange(n) % 2)


MADE: dict[str, Callable[[int, Path], Any]] = {
    "gram": lambda n, _: gram(n),
    "cross gram": lambda n, _: gram(n)[: n // 2],
    "certificate": lambda n, _: Certificate(1e-7, 1e-3, n, n, n, (EVIL,) * n, (EVIL,) * n, 1.0, EVIL, EVIL, n),
    "coverage": lambda n, _: Coverage(
        dict.fromkeys(map(str, range(n)), "func") | {EVIL: EVIL},
        dict.fromkeys([*map(str, range(n)), EVIL], 2),
        {EVIL: 1.0},
        {EVIL: 2.0},
        execution=EVIL,
    ),
    "attribution": lambda n, _: Attribution(gram(n)[:20], np.ones((2, n)), np.ones(2)),
    "influence": lambda n, _: influence(n),
    "snapshot": lambda n, _: Snapshot(1, 1.0, {EVIL: torch.zeros(n)}, {}, {EVIL: 1.0}),
    "spikes": lambda n, _: ns.linalg.spike_test(features(n).numpy() @ features(n).T.numpy(), null="tracy-widom"),
    "record": record,
}


def shown(value: Any) -> str:
    html = value._repr_html_()
    tree = ElementTree.fromstring(html)  # well-formed: nothing that was put in has become markup
    assert {element.tag for element in tree.iter()} <= TAGS
    for element in tree.iter():
        assert not any(name.startswith("on") for name in element.attrib)
        for name in ("src", "href"):
            assert element.get(name, "data:image/png;base64,").startswith("data:image/png;base64,")
    return str(html)


@pytest.mark.parametrize("name", MADE)
def test_escaped_without_addresses_and_bounded(name: str, tmp_path: Path) -> None:
    small, large = (shown(MADE[name](n, tmp_path)) for n in (150, 450))
    assert len(large) < min(25_000, 1.5 * len(small))
    assert "background" not in large  # the notebook's own, light or dark
    assert re.search(r"[^-]color:", large) is None


def test_a_gram_shows_its_certificate_and_pictures() -> None:
    html = shown(gram(30))
    assert "1 of 2 blocks agree" in html
    assert html.count("<img") == html.count("<svg") == 1
    assert shown(gram(30)[:10]).count("<svg") == 0  # a cross kernel has no eigenvalues


def test_a_gram_behind_products_is_not_computed_to_be_shown() -> None:
    def multiply(v: torch.Tensor) -> torch.Tensor:
        raise AssertionError("showing it took a product")

    assert "<img" not in shown(OperatorGram((9, 9), multiply, symmetric=True))


@pytest.mark.parametrize("place", [(0, 0), (5, 7), (250, 251)])
def test_a_gram_that_is_not_finite_is_shown_all_the_same(place: tuple[int, int]) -> None:
    values = torch.eye(300)
    values[place] = values[place[::-1]] = torch.nan
    assert "<svg" not in shown(DenseGram(values, symmetric=True))


def test_the_heat_map_is_red_where_positive_and_blue_where_negative() -> None:
    import base64
    import io

    from PIL import Image

    found = re.search(r"base64,([^\"]+)", heat_map("m", np.array([[2.0, -2.0, 0.0]])))
    assert found is not None
    ((left, right, middle),) = np.asarray(Image.open(io.BytesIO(base64.b64decode(found[1])))).tolist()
    assert left[0] > left[2]
    assert right[0] < right[2]
    assert middle == [255, 255, 255]


def test_a_spectrum_falls_from_the_largest_to_the_smallest() -> None:
    values = 10.0 ** -np.arange(5)
    found = re.search(r'points="([^"]+)"', spectrum("s", np.concatenate([values, [-1.0, 0.0, 1e-30]])))
    assert found is not None
    height = [float(point.split(",")[1]) for point in found[1].split()]
    np.testing.assert_allclose(np.diff(height), 30.0, atol=0.11)  # equal steps of a logarithmic axis of 120 pixels
    assert spectrum("s", np.array([1.0])) == ""


def test_influence_of_very_many_points_is_not_computed_to_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(influence(40)).count("<tr>") == 6  # a head and five items
    monkeypatch.setattr("ntkscope.explain.ranking.MOST", 39)
    assert shown(influence(40)).count("<tr>") == 0
