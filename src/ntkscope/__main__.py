"""`python -m ntkscope` is the command `ntkscope`."""

from ntkscope.cli import main

if __name__ == "__main__":
    main()
