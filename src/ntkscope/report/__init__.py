"""The report: records on disk as pages a person can read, offline, in one file each."""

from ntkscope.report.index import records, write_index
from ntkscope.report.page import Page, write_page
from ntkscope.report.views import VIEWS

__all__ = ["VIEWS", "Page", "records", "write_index", "write_page"]
