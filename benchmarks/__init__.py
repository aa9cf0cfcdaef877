"""Measured against peers: one run, one machine, the same network, inputs, precision and cores; ratios with their spread."""
