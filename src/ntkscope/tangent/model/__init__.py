"""The caller's model: run as it is, with its state put back, its inputs as batches, and plain autograd on it."""
