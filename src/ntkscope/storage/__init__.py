"""Kernels and features on disk, and the cluster that computes them: stores, how they are filled, and their Grams."""

from ntkscope.storage.feature_store import FeatureStore
from ntkscope.storage.filling import fill
from ntkscope.storage.kernel_store import KernelStore
from ntkscope.storage.lacking import DamageWarning
from ntkscope.storage.tiled import TiledGram, open_kernel

__all__ = [
    "DamageWarning",
    "FeatureStore",
    "KernelStore",
    "TiledGram",
    "fill",
    "open_kernel",
]
