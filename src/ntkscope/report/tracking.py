"""The page of a tracked training: spectra moment by moment, spikes and alignments over the steps, first against last."""

from __future__ import annotations

import math

from ntkscope.core import Record
from ntkscope.report.document import document, part
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import NONE, duration, number, percent, whole
from ntkscope.report.quantile_plots import first_against_last
from ntkscope.report.result import made, setting, status_note
from ntkscope.report.tracked import changes_table, moments_table, player
from ntkscope.report.track import Track, read_track

TRACKING = "tracking"  # the kind of such records
HOW = (
    "Each picture is a histogram of one spectrum, on the same axes at every moment. What random entries of the same size would"
    " give ends at the dashed line, the edge of the noise; a diamond marks a value beyond it that chance does not explain, which"
    " is a direction that training wrote into the matrix."
)
DIAGONAL = (
    "Each point is a quantile: its value at the first moment across, at the last moment up. On the dashed diagonal nothing"
    " changed; a line above it that is straight is a spectrum that grew as a whole; single points above it are directions that"
    " grew out of the bulk."
)


def tracking(record: Record) -> Markup:
    """The page of a record of kind "tracking"."""
    track = read_track(record)
    drawn, data = player(track)
    written = record.to_json()
    parts = {
        "changes": ("What changed", changes_table(track, record.name)),
        "spectra": ("Spectra over training", join([tag("p", HOW, class_="meaning"), drawn])),
        "first-last": ("First against last", _explained(DIAGONAL, first_against_last(track))),
        "moments": ("Moments", moments_table(track, record.name) if track.moments else None),
        "setting": ("Setting", setting(record)),
        "made": ("How this was computed", made(record, written)),
    }
    shown = {key: (title, body) for key, (title, body) in parts.items() if body}
    return document(
        f"{_title(record)} – ntkscope",
        [_header(record, track), *(part(key, title, body) for key, (title, body) in shown.items())],
        links=[(key, title) for key, (title, _) in shown.items()],
        data={"training": data},
        foot=tag("p", "Made from a record on disk; this file loads nothing from the network."),
    )


def _title(record: Record) -> str:
    return record.name or "Tracked training"


def _explained(words: str, body: Markup | None) -> Markup | None:
    return None if body is None else join([tag("p", words, class_="meaning"), body])


def _header(record: Record, track: Track) -> Markup:
    notes = [*track.troubles, *filter(None, [status_note(record)])]
    return tag(
        "header",
        tag("p", "Training, seen through its spectra", class_="eyebrow"),
        tag("h1", _title(record)),
        facts(track),
        *(tag("p", note, class_="note") for note in notes),
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
        ("Steps", f"{whole(moments[0].step)} to {whole(moments[-1].step)}" if moments else NONE),
        ("Loss", f"{number(losses[0])} → {number(losses[-1])}" if losses else NONE),
        ("Spectra", number(len(track.spectra))),
        ("Measuring took", (duration(cost) + (f", {percent(share)}" if share <= 1 else "")) if cost else NONE),
    ]
    return tag(
        "dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value != NONE), class_="facts"
    )
