"""One view per section: how an X-ray's findings are shown. A section without a view shows its numbers."""

from ntkscope.report.views import (
    computed,
    confusion,
    explain,
    kernel,
    layers,
    output_explain,
    output_problems,
    output_summary,
    output_surrogates,
    problems,
    shift,
    summary,
    surrogates,
    tangent,
    tracked_training,
    weight_spectra,
)
from ntkscope.report.views.registry import VIEWS, draw

__all__ = [
    "VIEWS",
    "draw",
    "computed",
    "confusion",
    "explain",
    "kernel",
    "layers",
    "output_explain",
    "output_problems",
    "output_summary",
    "output_surrogates",
    "problems",
    "shift",
    "summary",
    "surrogates",
    "tangent",
    "tracked_training",
    "weight_spectra",
]
