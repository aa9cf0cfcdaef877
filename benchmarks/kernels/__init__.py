"""Kernels, their speed, memory and precision."""
