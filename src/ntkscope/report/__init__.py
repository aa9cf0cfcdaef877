"""The report: records on disk as pages a person can read, offline, in one file each."""

from ntkscope.report.index import records, write_index
from ntkscope.report.page import Page, write_page
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.views import VIEWS

__all__ = ["VIEWS", "Drawing", "Page", "Section", "Source", "records", "write_index", "write_page"]
