"""The registries of surrogates: names to estimator classes."""

from __future__ import annotations

from sklearn.base import BaseEstimator

from ntkscope.core import Registry

SURROGATES: Registry[type[BaseEstimator]] = Registry("surrogate")
"""Estimators on precomputed kernels, which `ns.machines.fit_machine` fits by name."""

INPUT_SURROGATES: Registry[type[BaseEstimator]] = Registry("surrogate on inputs")
"""Estimators that are fitted on inputs and make their own kernel."""
