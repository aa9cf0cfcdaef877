"""Transfer: a trained network adapted to other labels."""
