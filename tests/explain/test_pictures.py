"""Pictures: what is drawn is what was computed, nothing is cut off, and no global state is touched."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib._pylab_helpers import Gcf
from matplotlib.figure import Figure

from ntkscope.core import UsageError, numpy_generator
from ntkscope.explain import attribute, attribution_figure, class_summary, nearest, neighbour_grid
from ntkscope.surrogates import KernelRidgeClassifier

NAMES = ["airplane", "automobile", "bird", "cat", "a very long class name", "dog", "frog", "horse", "ship", "truck"]


def problem(c: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = numpy_generator(0, "test", "pictures")
    y = np.arange(80) % c
    x = random.normal(size=(80, 12)) + 2 * np.eye(12)[y]
    return x @ x.T, random.normal(size=(6, 12)) @ x.T, y


def items(kind: str, n: int) -> object:
    random = numpy_generator(1, "test", "items")
    if kind == "texts":
        return [" ".join(["word"] * int(random.integers(1, 60))) for _ in range(n)]
    return {"grey": random.normal(size=(n, 1, 8, 8)), "colour": random.normal(size=(n, 3, 8, 8)), "none": None}[kind]


def cut_off(figure: Figure) -> float:
    """By how many inches anything that is drawn reaches over the figure's edge; 0 or less is good."""
    box = figure.get_tightbbox(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    width, height = figure.get_size_inches()
    return float(max(-box.x0, -box.y0, box.x1 - width, box.y1 - height))


def test_canary_a_cut_text_is_found() -> None:
    figure = attribution(2, "none")
    assert cut_off(figure) <= 0
    figure.text(0.99, 0.5, "far too long for its place")
    assert cut_off(figure) > 0.5


def attribution(c: int, kind: str) -> Figure:
    K, K_test, y = problem(c)
    found = attribute(KernelRidgeClassifier(alpha=1.0).fit(K, y), K_test)
    return attribution_figure(
        found, 1, y, items=items(kind, 6), train_items=items(kind, 80), classes=NAMES[:c], label=0, top=4
    )


@pytest.mark.parametrize(("c", "kind"), [(2, "texts"), (10, "colour"), (3, "grey"), (10, "none")])
def test_attribution_shows_what_was_computed(c: int, kind: str) -> None:
    K, K_test, y = problem(c)
    found = attribute(KernelRidgeClassifier(alpha=1.0).fit(K, y), K_test)
    figure = attribution(c, kind)
    assert cut_off(figure) <= 0
    values = found.item(1)
    shown = int(values.sum(0).argmax())
    means = figure.axes[1].images[0].get_array()
    assert means is not None
    scaled = class_summary(values, y).mean
    assert np.allclose(np.asarray(means) / np.asarray(means).flat[0], scaled / scaled.flat[0])
    strips = [axes for axes in figure.axes if axes.get_title().split("  ")[-1][:1] in "+-" and axes.get_title()]
    assert len(strips) == 8
    strongest = np.argsort(-values[:, shown], kind="stable")
    short = [n if len(n) <= 14 else "a very long…" for n in NAMES]
    expected = [short[y[i]] for i in [*strongest[:4], *strongest[::-1][:4]]]
    assert [axes.get_title().split("  ")[0] for axes in strips] == expected


@pytest.mark.parametrize("kind", ["texts", "colour", "grey"])
def test_neighbours_show_what_was_found(kind: str) -> None:
    _, K_test, y = problem(3)
    found = nearest(K_test, 4)
    marked = np.zeros(80, dtype=bool)
    marked[found.indices[0, 0]] = True
    figure = neighbour_grid(
        {"trntk": found, "proj-trntk": found},
        items(kind, 80),
        y,
        items=items(kind, 6),
        rows=[0, 5],
        y=np.array([0, 1, 2, 0, 1, 2]),
        classes=NAMES[:3],
        marked=marked,
    )
    assert cut_off(figure) <= 0
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 2 * (1 + 2 * 4)
    expected = [f"{NAMES[y[i]]}{' *' if marked[i] else ''}  {v:.3g}" for i, v in zip(found.indices[0], found.values[0])]
    assert titles[1:5] == expected
    assert sum(" *" in title for title in titles) >= 2


def test_no_global_state() -> None:
    before = Gcf.get_all_fig_managers()
    figure = attribution(2, "none")
    assert Gcf.get_all_fig_managers() == before
    assert figure.canvas.manager is None


def test_bad_input() -> None:
    K, K_test, y = problem(3)
    found = attribute(KernelRidgeClassifier(alpha=1.0).fit(K, y), K_test)
    with pytest.raises(UsageError, match="logit=7"):
        attribution_figure(found, 0, y, logit=7)
    with pytest.raises(UsageError, match="got 2 class names for 3"):
        attribution_figure(found, 0, y, classes=["a", "b"])
    with pytest.raises(UsageError, match="1 or 3"):
        attribution_figure(found, 0, y, train_items=np.zeros((80, 5, 8, 8)))
    with pytest.raises(UsageError, match="no kernels"):
        neighbour_grid({}, np.zeros((80, 8, 8)), y)
