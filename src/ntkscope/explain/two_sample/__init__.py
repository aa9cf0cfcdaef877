"""Two-sample tests: whether two samples come from one distribution, and where they differ."""
