"""The registry of surrogates: names to estimator classes."""

from __future__ import annotations

from sklearn.base import BaseEstimator

from ntkscope.core import Registry

SURROGATES: Registry[type[BaseEstimator]] = Registry("surrogate")
