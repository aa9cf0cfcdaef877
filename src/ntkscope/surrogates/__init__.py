"""Estimators on precomputed kernels: the kernel machine that stands in for a network."""

from ntkscope.surrogates._checks import KernelNotFinite
from ntkscope.surrogates.glm import KernelGLM
from ntkscope.surrogates.registry import SURROGATES
from ntkscope.surrogates.ridge import KernelRidge, KernelRidgeClassifier

__all__ = ["SURROGATES", "KernelGLM", "KernelNotFinite", "KernelRidge", "KernelRidgeClassifier"]
