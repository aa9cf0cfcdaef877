"""Measures: pure functions of arrays and Grams."""
