"""What stands in for a network: estimators on precomputed kernels or on inputs, and its linearisation."""

from ntkscope.core.checked import check_room
from ntkscope.surrogates.conjugate import ConjugateLeastSquares
from ntkscope.surrogates.glm import KernelGLM
from ntkscope.surrogates.linearized import Linearized, linearize
from ntkscope.surrogates.logistic import KernelLogistic
from ntkscope.surrogates.minimum_norm import MinimumNorm, MinimumNormClassifier
from ntkscope.surrogates.nearest_class_centre import NearestClassCentre
from ntkscope.surrogates.neighbors import KernelNeighbors
from ntkscope.surrogates.recursive_feature_machine import RecursiveFeatureClassifier, RecursiveFeatureMachine
from ntkscope.surrogates.registry import INPUT_SURROGATES, SURROGATES
from ntkscope.surrogates.ridge import KernelRidge, KernelRidgeClassifier
from ntkscope.surrogates.ridge_loo import KernelRidgeLOO
from ntkscope.surrogates.support_vectors import KernelSVM, KernelSVR

__all__ = [
    "INPUT_SURROGATES",
    "SURROGATES",
    "ConjugateLeastSquares",
    "KernelGLM",
    "KernelLogistic",
    "KernelNeighbors",
    "KernelRidge",
    "KernelRidgeClassifier",
    "KernelRidgeLOO",
    "KernelSVM",
    "KernelSVR",
    "Linearized",
    "MinimumNorm",
    "MinimumNormClassifier",
    "NearestClassCentre",
    "RecursiveFeatureClassifier",
    "RecursiveFeatureMachine",
    "linearize",
]

check_room(__name__, classes="Linearized")
