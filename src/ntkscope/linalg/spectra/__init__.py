"""Spectra: eigenvalues, singular values and what they say of a matrix or of two."""
