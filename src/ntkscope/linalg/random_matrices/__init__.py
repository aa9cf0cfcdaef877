"""Random matrices: what noise does to singular values, and which values it does not explain."""
