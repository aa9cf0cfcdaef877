"""Training: the tracker's record as its own page shows it, inside the X-ray's."""

from __future__ import annotations

from ntkscope.report.markup import folded, join, tag
from ntkscope.report.numbers import whole
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.timeline import first_against_last
from ntkscope.report.track import read_track
from ntkscope.report.tracked import DIAGONAL, HOW, changes_table, facts, moments_table, player
from ntkscope.report.views.registry import VIEWS

PREFIX = "training."  # of the series in the X-ray's record


@VIEWS.register("tracked_training")
def tracked_training(section: Section, source: Source) -> Drawing:
    """Facts, what changed, the player with its curves, Q–Q plots, and the moments (folded)."""
    track = read_track(source.record, PREFIX)
    name = f"{source.record.name}-training"
    drawn, data = player(track)
    quantiles = first_against_last(track)
    notes = [*track.troubles]
    if section.data["status"] != "done":
        notes.append("The training had not ended when this page's record was made.")
    if section.data["ends_here"] is False:
        step = whole(section.data["last_step"])
        notes.append(f"The weights that were X-rayed are not those of the last moment, step {step}.")
    thin = section.data["thinned"]
    parts = [
        facts(track),
        *(tag("p", note, class_="note") for note in notes),
        [tag("h3", "What changed"), changes_table(track, name)],
        tag("h3", "Spectra over training"),
        tag("p", HOW),
        drawn,
        [tag("h3", "First against last"), tag("p", DIAGONAL), quantiles] if quantiles else None,
        tag("p", f"Of each spectrum, {whole(thin)} values were copied from the tracker's record.", class_="soft small")
        if thin
        else None,
        folded("All moments", moments_table(track, name)) if track.moments else None,
    ]
    return Drawing(join(parts), data)
