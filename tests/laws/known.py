"""What is known to break a law, from `known.txt`: for each case, `name | law: argument; argument | law: what was tried`."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("known.txt")
BY_ARGUMENT = ("wrong types", "kinds", "sizes", "scale")  # laws that try every argument in turn


def read(text: str) -> dict[str, tuple[str, ...]]:
    """How each known break begins, by case."""
    found = {}
    for line in text.splitlines():
        name, *laws = line.split(" | ")
        pairs = [(law.split(": ", 1)[0], what) for law in laws for what in law.split(": ", 1)[1].split("; ")]
        found[name] = tuple(f"{law}: {what}" + " " * (law in BY_ARGUMENT) for law, what in pairs)
    return found


def written(broken: dict[str, list[str]]) -> str:
    lines = []
    for name in sorted(name for name, found in broken.items() if found):
        laws: dict[str, list[str]] = {}
        for text in broken[name]:
            law, what, *_ = text.split(": ")
            laws.setdefault(law, []).append(what.split(" ")[0] if law in BY_ARGUMENT else what)
        lines.append(" | ".join([name, *(f"{law}: {'; '.join(sorted(set(what)))}" for law, what in laws.items())]))
    return "\n".join(lines) + "\n"


KNOWN = read(FILE.read_text(encoding="utf-8"))
