"""The sections of an X-ray, one topic per file, for either task; importing this registers all of them."""

from ntkscope.core.registry import import_parts

import_parts(__name__, __path__)
