"""Grams: kernel matrices that are formed, factored, on disk or known by their products, and the tiles they are cut into."""
