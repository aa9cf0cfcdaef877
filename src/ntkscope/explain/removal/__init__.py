"""Removal: what a prediction would lose if a training point were removed."""
