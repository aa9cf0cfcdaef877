"""Replay: the derivative of a trained network with respect to its training, through every step of it."""
