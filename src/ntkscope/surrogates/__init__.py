"""Estimators on precomputed kernels: the kernel machine that stands in for a network."""
