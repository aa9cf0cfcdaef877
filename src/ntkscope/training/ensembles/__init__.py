"""Ensembles: many networks of one architecture, stacked and trained in step."""
