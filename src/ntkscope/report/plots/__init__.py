"""Small plots as SVG and HTML, drawn by a few lines of our own: crisp, themed, without a library in the page."""

from ntkscope.report.plots.frame import Frame, Line, Point, curve_key, lines, scatter
from ntkscope.report.plots.heatmap import heatmap
from ntkscope.report.plots.marks import Bar, bars, forest, gauge
from ntkscope.report.plots.scales import Scale

__all__ = [
    "Bar",
    "Frame",
    "Line",
    "Point",
    "Scale",
    "bars",
    "curve_key",
    "forest",
    "gauge",
    "heatmap",
    "lines",
    "scatter",
]
