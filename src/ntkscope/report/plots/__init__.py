"""Small plots as SVG and HTML, drawn by a few lines of our own: crisp, themed, without a library in the page."""

from ntkscope.report.plots.bars import Bar, bars
from ntkscope.report.plots.forest import forest
from ntkscope.report.plots.gauge import gauge
from ntkscope.report.plots.heatmap import heatmap
from ntkscope.report.plots.lines import Line, lines
from ntkscope.report.plots.scales import Scale
from ntkscope.report.plots.scatter import Point, scatter

__all__ = ["Bar", "Line", "Point", "Scale", "bars", "forest", "gauge", "heatmap", "lines", "scatter"]
