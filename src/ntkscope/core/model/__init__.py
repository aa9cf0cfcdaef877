"""The caller's model and its inputs: how it is called, what it reaches, how it is copied and fed."""
