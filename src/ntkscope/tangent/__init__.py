"""The engine: what a model's parameters see of one input.

Read in this order: `trace.terms` (what one call adds to a gradient), `trace.rules` (one layer kind per file),
`trace.tape` (which calls there are), `trace.probe` (three samples decide what to trust), `trace.parameter_blocks`
(the method for each parameter), `blocks.backward` and `blocks.features` (a block of samples and its products),
`certify.auditor` (the check of every block), `kernel.plan` (memory), `kernel.engine` (all of that for one model),
`kernel.tiles`, and `kernel.in_memory` or `kernel.store_source`. docs/design/engine.md says more.
"""

from ntkscope.tangent.forward.activations import activations
from ntkscope.tangent.kernel.coverage import Coverage
from ntkscope.tangent.matrices.feature_matrices import FeatureMatrices, LayerFeatures, feature_matrices
from ntkscope.tangent.operators.jacobian import Jacobian

__all__ = ["Coverage", "FeatureMatrices", "Jacobian", "LayerFeatures", "activations", "feature_matrices"]
