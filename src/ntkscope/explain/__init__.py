"""Which training points speak for a prediction, and which of them look wrong."""
