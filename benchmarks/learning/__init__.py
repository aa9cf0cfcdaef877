"""Surrogates, training, attribution and what the X-ray says of them."""
