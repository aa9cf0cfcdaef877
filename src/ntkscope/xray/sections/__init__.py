"""The sections of an X-ray; importing this registers all of them."""

from ntkscope.xray.sections import (
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

__all__ = [
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
