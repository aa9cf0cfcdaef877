"""What is known to break a law: the law and the argument (or what was tried), by case."""

KNOWN: dict[str, tuple[str, ...]] = {}
