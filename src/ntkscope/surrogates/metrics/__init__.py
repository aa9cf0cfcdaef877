"""Metric learning: the recursion of a feature machine and the regressions it repeats."""
