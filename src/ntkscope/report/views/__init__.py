"""One view a section: how what an X-ray found is shown. A section without one is shown by its numbers."""

from ntkscope.report.views import computed, explain, kernel, layers, problems, summary, surrogates
from ntkscope.report.views.registry import VIEWS, draw

__all__ = ["VIEWS", "computed", "draw", "explain", "kernel", "layers", "problems", "summary", "surrogates"]
