"""Feature matrices of every layer in one stream: what the weights look for, what the outputs react to."""
