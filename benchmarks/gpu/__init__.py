"""Benchmarks that need a CUDA device; one machine, one command each."""
