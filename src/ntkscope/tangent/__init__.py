"""The engine: what a model's parameters see of one input.

Read in this order: `terms` (what one call adds to a gradient), `rules/` (one layer kind per file), `capture` (which calls
there are), `probe` (three samples decide what to trust), `probed` (what they showed), `pieces` (the method for each
parameter), `captured` and `features` (a block of samples and its products), `plan` (memory), `engine` (all of that for one
model), `detour` (what follows a failed check), `engines` (what is kept from call to call), `contraction` (blocks pass by those
that stay), then `products` (a kernel in memory) or `tile_source` (its tiles, for a store).
"""

from ntkscope.tangent.forward.activations import activations
from ntkscope.tangent.kernel.coverage import Coverage
from ntkscope.tangent.matrices.feature_matrices import FeatureMatrices, LayerFeatures, feature_matrices
from ntkscope.tangent.operators.jacobian import Jacobian

__all__ = [
    "Coverage",
    "FeatureMatrices",
    "Jacobian",
    "LayerFeatures",
    "activations",
    "feature_matrices",
]
