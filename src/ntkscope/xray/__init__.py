"""The main job: a trained network and its data in, a record out that says which kernel machine it is.

`ns.xray(model, train, test, out=…)` computes the record, `ns.report.write_page(out)` makes its page, and
`ntkscope xray` does both. `ns.xray` is that function; the other names of this package are imported from `ntkscope.xray`.
"""

from ntkscope.xray.budget import Budget
from ntkscope.xray.job import xray
from ntkscope.xray.registry import SECTIONS
from ntkscope.xray.review import Review, read_review

__all__ = ["SECTIONS", "Budget", "Review", "read_review", "xray"]
