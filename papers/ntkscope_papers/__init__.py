"""Published results reproduced with ntkscope: one folder per paper, what several share, and the framework that runs them."""
