KNOWN: dict[str, tuple[str, ...]] = {}
