"""What a forward pass calls: the tape, the rules that turn its calls into terms, the probe that checks both."""
