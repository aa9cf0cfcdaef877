"""A kernel: an engine for one model, a plan that fits its memory, tiles in memory or for a store."""
