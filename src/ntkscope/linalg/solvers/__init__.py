"""Solvers of kernel systems and of least squares, dense and by products alone."""
