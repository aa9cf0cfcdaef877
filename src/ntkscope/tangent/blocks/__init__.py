"""A block of samples: one pass forward, passes back, the features they leave, and products of those."""
