"""Sketches: random projections from counters, dense, sparse and factored, and their standard errors."""
