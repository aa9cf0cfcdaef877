"""What a forward pass alone gives: activations, a network's stages, its readout."""
