"""The registry of views, and the fallback for a section that has none."""

from __future__ import annotations

from collections.abc import Callable

from ntkscope.core import Registry
from ntkscope.report.markup import join, tag
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.views._generic import generic

View = Callable[[Section, Source], Drawing]
VIEWS: Registry[View] = Registry("view")


def draw(section: Section, source: Source) -> Drawing:
    """A section drawn by its view, or as plain numbers if there is no view or the view cannot read them.

    A page is made from what is on disk, which a newer or an older ntkscope may have written: a section that a view does
    not understand says so and shows its contents, and the rest of the page is not affected.
    """
    if section.name not in VIEWS:
        return generic(section, source)
    try:
        return VIEWS[section.name](section, source)
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        said = f"This section could not be drawn as planned ({type(error).__name__}: {error}); its numbers follow."
        whole = generic(section, source)
        return Drawing(join([tag("p", said, class_="note undrawn"), whole.body]))
