"""The Jacobian as an operator, the first-order expansion, and derivatives by inputs."""
