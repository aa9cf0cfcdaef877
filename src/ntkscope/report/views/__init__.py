"""One view per section: how an X-ray's findings are shown. A section without a view shows its numbers."""

from ntkscope.core.registry import import_parts
from ntkscope.report.views.registry import VIEWS, draw

import_parts(__name__, __path__)

__all__ = ["VIEWS", "draw"]
