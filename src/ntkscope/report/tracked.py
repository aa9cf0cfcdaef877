"""Drawings of a tracked training: a player of each spectrum with curves over the same steps, and tables of the moments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import NONE, duration, number, percent, whole
from ntkscope.report.plots import Frame, Scale
from ntkscope.report.plots.histogram import (
    SINGLY,
    Axis,
    diamonds_path,
    histogram,
    histogram_frame,
    histogram_key,
    ticks_path,
)
from ntkscope.report.spectrum_words import change_sentence, shape_text
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.timeline import CURVES, steps_scale, time_frame, timeline
from ntkscope.report.track import Look, Spectrum, Track

PLAYED = 16  # spectra with a player: a page of all layers of a deep network would be too large
STILLS = 6  # pictures of one spectrum without a script
ROWS = 500
HOW = (
    "Each picture is a histogram of one spectrum, on the same axes at every moment. What random entries of the same size would"
    " give ends at the dashed line, the edge of the noise; a diamond marks a value beyond it that chance does not explain,"
    " which is a direction that training wrote into the matrix."
)
DIAGONAL = (
    "Each point is a quantile: its value at the first moment across, at the last moment up. On the dashed diagonal nothing"
    " changed; a line above it that is straight is a spectrum that grew as a whole; single points above it are directions that"
    " grew out of the bulk."
)


def facts(track: Track) -> Markup:
    """Moments, steps, loss, and what tracking cost."""
    moments = track.moments
    losses = [moment.loss for moment in moments if math.isfinite(moment.loss)]
    cost = sum(moment.cost for moment in moments if math.isfinite(moment.cost))
    spent = max((moment.seconds for moment in moments if math.isfinite(moment.seconds)), default=math.nan)
    share = cost / spent if spent > 0 else math.nan
    pairs = [
        ("Moments", number(len(moments))),
        ("Steps", " to ".join(whole(moment.step) for moment in _ends(moments)) or NONE),
        ("Loss", " → ".join(number(loss) for loss in _ends(losses)) or NONE),
        ("Spectra", number(len(track.spectra))),
        (
            "Measuring took",
            (duration(cost) + (f" ({percent(share)} of the time)" if share <= 1 else "")) if cost else NONE,
        ),
    ]
    return tag(
        "dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value != NONE), class_="facts"
    )


def player(track: Track) -> tuple[Markup, Mapping[str, Any]]:
    """Each spectrum with its curves, and what the script needs to show any moment; without a script, pictures of some."""
    groups, data = [], []
    chosen = played(track)
    for n, spectrum in enumerate(chosen):
        if not spectrum.looks:
            groups.append(_measured_alone(n, spectrum, track))
            data.append({"name": spectrum.name, "looks": []})
            continue
        axis = Axis.of([look.values for look in spectrum.looks], [look.edge for look in spectrum.looks])
        every = [axis.counts(look.values) for look in spectrum.looks]
        tallest = max((int(counts.max(initial=0)) for counts in every), default=0)
        frame = histogram_frame(axis, tallest, spectrum.noun)
        groups.append(_group(n, spectrum, axis, frame, tallest, track))
        data.append(_data(spectrum, axis, frame, track))
    if not groups:
        return tag(
            "p", "No spectrum was measured yet; run the same command again when there is one.", class_="soft"
        ), {}
    left_out = len(track.spectra) - len(chosen)
    body = [
        tag(
            "p",
            f"Here are the {len(chosen)} spectra that changed most; the other {left_out:,} are in the table above alone.",
            class_="soft",
        )
        if left_out
        else None,
        tag("div", class_="player-tools", id="player-tools", hidden=True),
        tag(
            "div",
            *groups,
            id="player",
            class_="player",
            role="group",
            aria_label="Spectra over training: arrow keys change the moment, the space bar plays",
        ),
    ]
    steps = {"step": [moment.step for moment in track.moments], "loss": [moment.loss for moment in track.moments]}
    x = steps_scale(track)
    cursor = [time_frame(x, Scale(0, 1), "").at(moment.step, 0)[0] for moment in track.moments]
    return join(body), {"moments": {**steps, "x": cursor}, "spectra": data}


def played(track: Track) -> tuple[Spectrum, ...]:
    """The spectra with a player, in their order: all, or those whose largest value changed most, kernels before weights."""
    if len(track.spectra) <= PLAYED:
        return track.spectra

    def change(spectrum: Spectrum) -> tuple[bool, float]:
        tops = [float(look.values[0]) for look in spectrum.looks if len(look.values) and look.values[0] > 0]
        return spectrum.kind == "eigen", abs(math.log(tops[-1] / tops[0])) if tops else 0.0

    most = sorted(range(len(track.spectra)), key=lambda k: change(track.spectra[k]), reverse=True)[:PLAYED]
    return tuple(track.spectra[k] for k in sorted(most))


def _group(n: int, spectrum: Spectrum, axis: Axis, frame: Frame, tallest: int, track: Track) -> Markup:
    """One spectrum: its histogram at the last moment, its curves, and the stills."""
    last, first = spectrum.looks[-1], spectrum.looks[0]
    drawn = _histogram(frame, axis, last, spectrum, first=first.values)
    caption = tag("figcaption", f"{spectrum.noun.capitalize()}s of ", tag("code", spectrum.name), _at(last))
    player_figure = tag(
        "figure", caption, drawn, _legend(spectrum), _left_out(spectrum, axis), class_="now", tabindex="0"
    )
    small = histogram_frame(axis, tallest, spectrum.noun, small=True)
    chosen = [spectrum.looks[k] for k in _evenly(len(spectrum.looks), STILLS)]
    stills = [
        tag("figure", tag("figcaption", f"Step {whole(look.step)}"), _histogram(small, axis, look, spectrum))
        for look in chosen
    ]
    return tag(
        "div",
        tag("h3", tag("code", spectrum.name), tag("span", shape_text(spectrum.shape), class_="count")),
        tag("div", player_figure, timeline(spectrum, track), class_="panels wide"),
        tag("div", *stills, class_="stills"),
        class_="of-spectrum",
        data_of=n,
    )


def _measured_alone(n: int, spectrum: Spectrum, track: Track) -> Markup:
    """Something of which only measures were tracked."""
    head = tag("h3", tag("code", spectrum.name))
    drawn = tag("div", timeline(spectrum, track), class_="panels wide")
    more = len(spectrum.measures) - CURVES
    said = f"{CURVES} of {len(spectrum.measures)} are drawn; the record has all." if more > 0 else None
    return tag("div", head, drawn, said and tag("p", said, class_="soft small"), class_="of-spectrum", data_of=n)


def _histogram(frame: Frame, axis: Axis, look: Look, spectrum: Spectrum, first: Any = None) -> Markup:
    said = f"{spectrum.noun.capitalize()}s of {spectrum.name} at step {whole(look.step)}: {len(look.values):,} values"
    if len(look.values):
        said += f", the largest {number(float(look.values[0]))}"
    if spectrum.tested:
        said += f"; {len(look.spikes)} outside the noise"
    return histogram(frame, axis, look.values, describe=said, first=first, edge=look.edge, spikes=look.spikes)


def _at(look: Look) -> Markup:
    return tag("span", f" at step {whole(look.step)}", class_="at-step")


def _legend(spectrum: Spectrum) -> Markup:
    return histogram_key([("bars-of", "at this step"), ("first", "at the first moment")], spectrum.tested)


def _left_out(spectrum: Spectrum, axis: Axis) -> Markup | None:
    """What the picture does not show."""
    left_out = max(look.left_out for look in spectrum.looks)
    below = max(axis.below(look.values) for look in spectrum.looks)
    said = []
    if left_out:
        kept = max(len(look.values) for look in spectrum.looks)
        said.append(
            f"Drawn from {kept:,} of {kept + left_out:,} {spectrum.noun}s; the record has the largest and some of the rest."
        )
    if below:
        said.append(f"Up to {below:,} values are too small for the axis.")
    return tag("p", " ".join(said), class_="soft small") if said else None


def _data(spectrum: Spectrum, axis: Axis, frame: Frame, track: Track) -> dict[str, Any]:
    """For the script: counts per bin and pixels of marks for every look, and which look each moment shows."""
    place = {look.moment: n for n, look in enumerate(spectrum.looks)}
    shows, latest = [], 0
    for moment in track.moments:
        latest = place.get(moment.moment, latest)
        shows.append(latest)
    edges = [frame.at(edge, 0)[0] for edge in axis.edges.tolist()]
    looks = [
        {
            "step": look.step,
            "counts": axis.counts(look.values).tolist(),
            "edge": frame.at(look.edge, 0)[0] if math.isfinite(look.edge) and look.edge > 0 else None,
            "edge_value": look.edge,
            "rug": ticks_path(frame, look.values[:SINGLY].tolist()),
            "spikes": diamonds_path(frame, look.spikes),
            "spike_values": list(look.spikes),
            "largest": float(look.values[0]) if len(look.values) else None,
            "label": look.label,
            "tested": look.tested,
        }
        for look in spectrum.looks
    ]
    return {
        "name": spectrum.name,
        "noun": spectrum.noun,
        "shows": shows,
        "edges": edges,
        "top": frame.top,
        "floor": frame.height - frame.bottom,
        "tallest": float(frame.y.high),
        "looks": looks,
    }


def _evenly(count: int, wanted: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(wanted, count)).round().astype(int)).tolist()


def moments_table(track: Track, name: str) -> Markup:
    """Every moment with its step, loss, cost and items; why one waited."""
    noted = any(moment.note for moment in track.moments)
    rows = [
        [
            *figures(moment.moment),
            *figures(moment.step, shown=whole),
            *figures(_finite(moment.loss), digits=4),
            *figures(_finite(moment.seconds), _finite(moment.cost), shown=_duration),
            *figures(_finite(moment.probe_items), shown=whole),
            Cell(_waited(moment.waited), _waited(moment.waited)),
            *([Cell(moment.note or NONE, moment.note or None, kind="note-cell")] if noted else []),
        ]
        for moment in track.moments[:ROWS]
    ]
    heads = ["Moment", "Step", "Loss", "Since the start", "Measuring took", "Probe items", "Waited"]
    heads += ["Note"] * noted
    more = f"The first {ROWS} of {len(track.moments):,} moments." if len(track.moments) > ROWS else None
    drawn = table(heads, rows, name="Moments", export=f"{name}-moments.csv", tall=len(rows) > 15)
    return join([drawn, more and tag("p", more, class_="soft small")])


def changes_table(track: Track, name: str) -> Markup | None:
    """One row per spectrum: class and spikes at the first and the last moment, and what that means."""
    rows = []
    for spectrum in track.spectra:
        if not spectrum.looks:
            continue
        first, last = spectrum.looks[0], spectrum.looks[-1]
        said = change_sentence(spectrum.noun, first, last, spectrum.tested)
        spikes = [str(len(look.spikes)) for look in _ends(spectrum.looks)]
        rows.append(
            [
                Cell(
                    join([tag("code", spectrum.name), tag("span", shape_text(spectrum.shape), class_="range")]),
                    spectrum.name,
                ),
                Cell(last.label or NONE, last.label or None),
                Cell(" → ".join(spikes) if spectrum.tested else NONE, len(last.spikes), False),
                Cell(said, said, kind="wide"),
            ]
        )
    several = len(track.moments) > 1
    change = "From the first to the last moment" if several else "At the one moment there is"
    heads = ["Spectrum", "Class at the last moment" if several else "Class", "Spikes", change]
    return table(heads, rows, name="Spectra", export=f"{name}-spectra.csv", kind="stacking") if rows else None


def _ends(values: Sequence[Any]) -> Sequence[Any]:
    """The first and the last; one where there is one."""
    return [*values[:1], *values[1:][-1:]]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else duration(seconds)


def _waited(value: Any) -> str:
    """`waited` is whatever the tracker says: a number of steps, yes or no, or a text."""
    if value in (None, False, 0, ""):
        return "–"
    if value is True:
        return "yes"
    return f"{number(value)} steps" if isinstance(value, (int, float)) else str(value)
