"""Spectra, change points, shift and solvers."""
