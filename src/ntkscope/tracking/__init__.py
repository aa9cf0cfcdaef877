"""Tracking: kernels, spectra and alignment of a network, recorded while it trains."""

from ntkscope.tracking.schedules import OnPlateau
from ntkscope.tracking.tracker import Tracker
from ntkscope.training.moments import Every, LogSpaced

__all__ = ["Every", "LogSpaced", "OnPlateau", "Tracker"]
