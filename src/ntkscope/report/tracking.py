"""The page of a tracked training: spectra moment by moment, spikes and alignments over the steps, first against last."""

from __future__ import annotations

from ntkscope.core import Record
from ntkscope.report.document import page_of_parts
from ntkscope.report.markup import Markup, folded, join, tag
from ntkscope.report.result import made, setting, status_note
from ntkscope.report.timeline import first_against_last
from ntkscope.report.track import Track, read_track
from ntkscope.report.tracked import DIAGONAL, HOW, changes_table, facts, moments_table, player

TRACKING = "tracking"  # the kind of such records


def tracking(record: Record) -> Markup:
    """The page of a record of kind "tracking"."""
    track = read_track(record)
    drawn, data = player(track)
    written, held = record.to_json(), setting(record)
    parts = {
        "changes": ("What changed", changes_table(track, record.name)),
        "spectra": ("Spectra over training", join([tag("p", HOW, class_="meaning"), drawn])),
        "first-last": ("First against last", _explained(DIAGONAL, first_against_last(track))),
        "moments": ("Moments", moments_table(track, record.name) if track.moments else None),
        "setting": ("Setting", folded("What was tracked, and how", held) if held else None),
        "made": ("How this was computed", made(record, written)),
    }
    return page_of_parts(_title(record), [_header(record, track)], parts, data={"tracked_training": data})


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
