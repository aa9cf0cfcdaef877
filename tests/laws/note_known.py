"""Write `known.py`, what breaks a law now: `PYTHONPATH=src:tests python -m laws.note_known`. Read what it adds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAD = '''"""What is known to break a law: the law and the argument (or what was tried), by case. Written by `note_known.py`."""

from __future__ import annotations

KNOWN: dict[str, tuple[str, ...]] = {
'''


def starts(broken: list[str]) -> list[str]:
    """The law and the first words of what was tried: the argument's name where a law tries arguments in turn."""
    found = set()
    for what in broken:
        law, tried, *_ = what.split(": ")
        name = tried.split(" ")[0] if law in ("wrong types", "kinds", "sizes", "scale") else tried
        found.add(f"{law}: {name}" + (" " if name != tried else ""))
    return sorted(found)


def scan(part: int, parts: int, path: str) -> None:
    from laws.test_laws import CASES, all_broken

    os.chdir(tempfile.mkdtemp())
    found: dict[str, tuple[float, list[str]]] = {}
    for case in CASES[part::parts]:
        begun = time.process_time()
        found[case.name] = (all_broken(case), time.process_time() - begun)
        Path(path).write_text(json.dumps(found))


def main(parts: int = 2) -> None:
    files = [f"{tempfile.mkdtemp()}/{part}.json" for part in range(parts)]
    commands = [
        [sys.executable, "-m", "laws.note_known", str(part), str(parts), file] for part, file in enumerate(files)
    ]
    for process in [subprocess.Popen(command) for command in commands]:
        assert process.wait() == 0
    found = {name: what for file in files for name, what in json.loads(Path(file).read_text()).items()}
    lines = [
        f"    {json.dumps(name)}: {tuple(starts(broken))!r},\n" for name, (broken, _) in sorted(found.items()) if broken
    ]
    Path(__file__).with_name("known.py").write_text(HEAD + "".join(lines) + "}\n")
    seconds = {name: spent for name, (_, spent) in found.items()}
    print(f"{len(found)} cases, {sum(seconds.values()):.0f} s; {len(lines)} break a law")
    print("slowest:", {name: round(seconds[name], 1) for name in sorted(seconds, key=seconds.__getitem__)[-40:]})


if __name__ == "__main__":
    scan(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]) if len(sys.argv) > 1 else main()
