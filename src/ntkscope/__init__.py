"""ntkscope: which kernel machine is a trained PyTorch network, how far to trust that view, and where it breaks."""

__version__ = "0.1.0"
