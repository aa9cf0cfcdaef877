"""Solvers: the numerical methods behind the estimators and the linearised network."""
