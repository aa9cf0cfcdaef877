"""The registry of views, and what is drawn for a section that has none."""

from __future__ import annotations

from collections.abc import Callable

from ntkscope.core import Registry
from ntkscope.report.markup import join, tag
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.views._generic import generic

View = Callable[[Section, Source], Drawing]
VIEWS: Registry[View] = Registry("view")


def draw(section: Section, source: Source) -> Drawing:
    """The drawing of a section by its view; by its numbers when there is no view, or when the view cannot read them.

    A page is made of what is on disk, also of what a newer or an older ntkscope wrote there: a section that a view does
    not understand says so and shows what it holds, and the rest of the page stands.
    """
    if section.name not in VIEWS:
        return generic(section, source)
    try:
        return VIEWS[section.name](section, source)
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        said = f"This section could not be drawn as planned ({type(error).__name__}: {error}); its numbers follow."
        whole = generic(section, source)
        return Drawing(join([tag("p", said, class_="note undrawn"), whole.body]))
