"""What each layer looks for: directions as pictures, patches and words, the agreement of weights and gradients beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntkscope.report.markup import Markup, folded, join, tag
from ntkscope.report.numbers import as_float, interval, number, percent
from ntkscope.report.plots import Bar, bars, forest
from ntkscope.report.plots.direction import direction_picture, picture
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.spectrum_words import shape_text
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.views.registry import VIEWS

CARDS = 16  # layers with pictures in sight; the others are folded
LOADINGS = 6  # inputs of a direction that is no picture
DOMINANT = 0.5  # share of the trace above which a direction is called the one that matters
TITLES = {"agop": "The outputs react to", "nfm": "The weights pass on"}
SHORT = {"agop": "AGOP", "nfm": "NFM"}


@VIEWS.register("layer_features")
def layer_features(section: Section, source: Source) -> Drawing:
    """The summary, a card per layer, and the table."""
    layers = list(section.data["layers"])
    kind = str(section.data["items_are"])
    cards = [_card(layer, kind, source) for layer in layers]
    rest = cards[CARDS:]
    left_out = section.data["left_out"]
    parts = [
        tag("p", features_summary(layers), class_="meaning"),
        _legend(layers, kind),
        tag("div", *cards[:CARDS], class_="layer-looks"),
        folded(f"{len(rest):,} more layers", tag("div", *rest, class_="layer-looks")) if rest else None,
        tag("h3", "In numbers"),
        _table(layers, source),
        _left_out(left_out) if left_out else None,
    ]
    return Drawing(join(parts))


# -- in words, for readers who know neither NFM nor AGOP ----------------------------------------------------------------


def above_chance(layer: Mapping[str, Any]) -> bool | None:
    """Whether the correlation is above the control's range; None where there is none.

    >>> above_chance({"correlation": 0.9, "high": 0.6}), above_chance({"correlation": None, "high": None})
    (True, None)
    """
    if layer["correlation"] is None or layer["high"] is None:
        return None
    return as_float(layer["correlation"]) > as_float(layer["high"])


def features_summary(layers: Sequence[Mapping[str, Any]]) -> str:
    """All layers in a sentence.

    >>> features_summary([{"correlation": 0.9, "high": 0.6}, {"correlation": None, "high": None}])
    'In the only layer with weights that could be compared, they look for what the outputs react to, more than by chance.'
    """
    told = [above for layer in layers if (above := above_chance(layer)) is not None]
    if not told:
        return "No layer has weights that could be compared with what the outputs react to."
    if len(told) == 1:
        what = "they look for what the outputs react to, more than by chance"
        other = "they agree with what the outputs react to no more than random directions would"
        return f"In the only layer with weights that could be compared, {what if told[0] else other}."
    yes = sum(told)
    if not yes:
        return (
            f"In none of {len(told)} layers do the weights agree with what the outputs react to more than random directions"
            " would: as far as this tells, training has not taught them what to look for."
        )
    which = f"{yes} of {len(told)}"
    if yes == len(told):
        which = "both" if yes == 2 else f"all {yes}"
    return f"In {which} layers the weights look for what the outputs react to, more than random directions would."


def layer_sentence(layer: Mapping[str, Any]) -> str:
    """What the numbers of one layer say."""
    if layer["reason"]:
        return (
            f"There is nothing to compare here: {layer['reason']}. {_share(layer['agop'], 'what the outputs react to')}"
        )
    if layer["kind"] == "input":
        return f"{_share(layer['agop'], 'what the outputs react to')} It has no weights to compare."
    above = above_chance(layer)
    ends = interval(layer["low"], layer["high"])
    rho = number(layer["correlation"])
    if above:
        said = f"Its weights look for what the outputs react to: ρ = {rho}, where random directions give {ends}."
    elif as_float(layer["correlation"]) < as_float(layer["low"]):
        said = (
            f"Its weights avoid what the outputs react to: ρ = {rho} is below the {ends} of random directions."
            " Look at whether it was trained."
        )
    else:
        said = f"Its weights agree with the gradients as random directions would: ρ = {rho}, random ones give {ends}."
    if layer["centred"] is not None:
        said += f" What training added to them: ρ = {number(layer['centred'])}."
    return f"{said} {_share(layer['agop'], 'what the outputs react to')}"


def _share(shares: Sequence[Any], of: str) -> str:
    if not shares:
        return ""
    first = as_float(shares[0])
    if first >= DOMINANT:
        return f"One direction is {percent(first, 0)} of {of}."
    return f"Its strongest direction is {percent(first, 0)} of {of}."


# -- one layer ------------------------------------------------------------------------------------------------------------


def _card(layer: Mapping[str, Any], kind: str, source: Source) -> Markup:
    sides = [_side(side, layer, kind, source) for side in TITLES if layer[side]]
    name = "The network's input" if layer["kind"] == "input" else tag("code", layer["name"], class_="layer-name")
    mark = None
    if layer["correlation"] is not None:
        rho = number(layer["correlation"])
        least = -1.0 if min(as_float(layer["correlation"]), as_float(layer["low"])) < 0 else 0.0
        drawn = forest(layer["correlation"], layer["low"], layer["high"], smallest=least, largest=1)
        word, kind_of = ("above chance", "good") if above_chance(layer) else ("as by chance", "quiet")
        pill = tag("span", tag("span", word, class_=f"pill {kind_of}"), class_="of-rho")
        mark = tag("p", tag("b", f"ρ {rho}"), drawn, pill, class_="rho")
    shape = [layer["rows"], layer["columns"]] if layer["kind"] != "input" else list(layer["shape"])
    return tag(
        "div",
        tag("h3", name, tag("span", shape_text(shape), class_="count")),
        mark,
        tag("p", layer_sentence(layer), class_="small"),
        tag("div", *sides, class_="looks") if sides else None,
        class_="card",
    )


def _side(side: str, layer: Mapping[str, Any], kind: str, source: Source) -> Markup | None:
    first = 0 if side == "agop" else len(layer["agop"])
    count, columns = len(layer[side]), int(layer["columns"])
    vectors = _slice("vectors", layer["vectors"], first, (count, columns), source)
    if vectors is None:
        return None
    shown = []
    for k, (vector, share) in enumerate(zip(vectors.astype(np.float64), layer[side], strict=True)):
        said = f"direction {k + 1} of {layer['name']}, {TITLES[side].lower()}"
        if layer["kind"] == "deep":
            body = join([_window(vector, layer, said), _picked_out(first + k, layer, kind, source)])
        else:
            body = _direction(vector, layer, said)
        told = tag("p", f"{k + 1}.", tag("span", percent(share, 0), class_="share"), class_="small soft")
        shown.append(tag("li", told, body))
    head = tag("p", tag("b", TITLES[side]), tag("span", SHORT[side], class_="count"), class_="small")
    return tag("div", head, tag("ul", *shown, class_=f"of-side {layer['kind']}"), class_="side")


def _slice(name: str, start: Any, first: int, shape: tuple[int, ...], source: Source) -> np.ndarray | None:
    """Of the array of all layers, what stands after `first` rows of this layer's own; None where the record ends before."""
    whole = source.array(f"layer_features.{name}")
    if whole is None or whole.ndim != 1 or not isinstance(start, int) or start < 0:
        return None
    at = start + first * int(np.prod(shape[1:]))
    found = whole[at : at + int(np.prod(shape))]
    return np.asarray(found).reshape(shape) if found.size == int(np.prod(shape)) else None


def _direction(vector: np.ndarray, layer: Mapping[str, Any], said: str) -> Markup:
    """A direction in the space of inputs: a picture, or its largest entries."""
    shape = [int(side) for side in layer["shape"]]
    drawn = direction_picture(vector, shape, said)
    return drawn if drawn is not None else _loadings(vector, shape, said)


def _loadings(vector: np.ndarray, shape: Sequence[int], said: str) -> Markup:
    order = np.argsort(-np.abs(vector), kind="stable")[:LOADINGS]
    fits = len(shape) > 1 and int(np.prod(shape)) == vector.size
    rows = []
    for j in order.tolist():
        place = ", ".join(str(int(v)) for v in np.unravel_index(j, shape)) if fits else str(j)
        value = float(vector[j])
        rows.append(
            Bar(f"input {place}", abs(value), f"{value:+.2f}".replace("-", "−"), "against" if value < 0 else "")
        )
    return bars(rows, label=f"{said}: its largest entries", largest=1.0)


def _window(vector: np.ndarray, layer: Mapping[str, Any], said: str) -> Markup | None:
    """Where in the window of a deep convolution a direction lies; none for a window of one pixel."""
    shape = [int(side) for side in layer["shape"]]
    if len(shape) != 3 or max(shape[1:]) < 2 or int(np.prod(shape)) != vector.size:
        return None
    size = np.sqrt(np.square(vector.reshape(shape)).sum(0)).ravel()
    several = np.stack([size / np.sqrt(2), size / np.sqrt(2)]).ravel()  # of more than one channel: its size
    return direction_picture(several, (2, *shape[1:]), f"window of {said}")


def _picked_out(row: int, layer: Mapping[str, Any], kind: str, source: Source) -> Markup | None:
    """The training items that project most on a direction of a deep layer, its `row` of both sides."""
    shown = int(layer["shown"])
    items = _slice("items", layer["items"], row, (1, shown), source)
    if items is None:
        return None
    numbers = [int(i) for i in items[0]]
    shape = tuple(int(side) for side in layer["patch"])
    patches = _slice("patches", layer["patches"], row, (1, shown, *shape), source) if len(shape) == 3 else None
    if patches is not None and patches.dtype == np.uint8 and shape[-1] in (1, 3):
        return tag("span", *(_patch(patches[0, j], i, source) for j, i in enumerate(numbers)), class_="patches")
    if kind == "text":
        tokens = layer["tokens"]
        words = tokens[row] if row < len(tokens) else ()
        quotes = [_quote(i, words[j] if j < len(words) else "", source) for j, i in enumerate(numbers)]
        return tag("ul", *quotes, class_="quotes")
    return tag("span", *(source.items.link("train", i, longest=60) for i in numbers), class_="patches")


def _patch(pixels: np.ndarray, item: int, source: Source) -> Markup:
    source.items.slot("train", item)
    said = f"patch of training item {source.items.number('train', item)}"
    return tag("a", picture(pixels, said, "patch"), href=source.items.address("train", item), class_="to-item")


def _quote(item: int, word: str, source: Source) -> Markup:
    source.items.slot("train", item)
    told = tag("b", tag("bdi", word)) if word else None
    return tag("li", told, " in " if word else None, source.items.link("train", item, longest=70))


# -- the rest -------------------------------------------------------------------------------------------------------------


def _legend(layers: Sequence[Mapping[str, Any]], kind: str) -> Markup:
    said = [
        "ρ is the correlation of what the weights pass on (NFM) and what the outputs react to (AGOP), 1 for equal; the line is"
        " the range of ρ with random directions. The share beside each direction is its part of the whole."
    ]
    if kind == "image":
        if any(layer["kind"] != "deep" for layer in layers):
            colour = any(len(layer["shape"]) == 3 and layer["shape"][0] == 3 for layer in layers)
            tones = (
                "grey is ignored, a colour and its opposite count against each other"
                if colour
                else ("white is ignored, orange and blue count against each other")
            )
            said.append(f"In pictures {tones}; the sign of a whole direction means nothing.")
        if any(layer["kind"] == "deep" for layer in layers):
            said.append(
                "Deep layers show the patches of training images that project most on a direction; those of convolutions are"
                " preceded by the window, bright where the direction lies."
            )
    elif any(layer["kind"] == "deep" for layer in layers):
        said.append(
            "Deep layers show the training items that project most on a direction"
            + (", after the word that the projection reacts to most." if kind == "text" else ".")
        )
    return tag("p", " ".join(said), class_="soft small")


def _table(layers: Sequence[Mapping[str, Any]], source: Source) -> Markup:
    rows = [
        [
            Cell(tag("code", layer["name"]), layer["name"]),
            Cell(shape_text([layer["rows"], layer["columns"]]), shape_text([layer["rows"], layer["columns"]])),
            *figures(layer["correlation"]),
            Cell(interval(layer["low"], layer["high"]) or "–", layer["high"], True),
            *figures(layer["p"], digits=2),
            *figures(layer["centred"]),
            *figures(*(next(iter(layer[side]), None) for side in TITLES), shown=percent, digits=0),
            *figures(layer["overlap"], digits=2),
            *figures(layer["positions"]),
        ]
        for layer in layers
    ]
    heads = ["Layer", "Shape", "ρ", "Random", "p", "ρ of the change", "AGOP, first", "NFM, first", "cos²", "Positions"]
    return table(heads, rows, name="Feature matrices", export=f"{source.record.name}-features.csv", kind="snug")


def _left_out(left_out: Mapping[str, Any]) -> Markup:
    rows = [tag("li", tag("code", name), f": {why}") for name, why in left_out.items()]
    return folded(f"{len(rows):,} not looked at", tag("ul", *rows), "folded small")
