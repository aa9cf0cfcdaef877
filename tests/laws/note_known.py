"""Write `known.txt`, what breaks a law now: `PYTHONPATH=src:tests python -m laws.note_known`. Read what it adds.

With names of rooms, `… note_known linalg explain`, only their cases are tried, and all other lines stay.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from laws.known import FILE, written


def scan(part: int, parts: int, path: str, rooms: list[str]) -> None:
    from laws.every import CASES, all_broken

    os.chdir(tempfile.mkdtemp())
    found: dict[str, tuple[list[str], float]] = {}
    chosen = [case for case in CASES if not rooms or case.name.split(".")[0] in rooms]
    for case in chosen[part::parts]:
        begun = time.process_time()
        found[case.name] = (all_broken(case), time.process_time() - begun)
    Path(path).write_text(json.dumps(found))


def main(rooms: list[str], parts: int = 2) -> None:
    files = [f"{tempfile.mkdtemp()}/{part}.json" for part in range(parts)]
    start = [sys.executable, "-m", "laws.note_known"]
    commands = [[*start, str(part), str(parts), file, *rooms] for part, file in enumerate(files)]
    for process in [subprocess.Popen(command) for command in commands]:
        assert process.wait() == 0
    found = {name: what for file in files for name, what in json.loads(Path(file).read_text()).items()}
    lines = written({name: broken for name, (broken, _) in found.items()}).splitlines()
    others = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line.split(".")[0] not in rooms]
    FILE.write_text("".join(f"{line}\n" for line in sorted([*lines, *(others if rooms else [])])), encoding="utf-8")
    for name, (broken, _) in found.items():
        print(
            "\n".join([f"{name}: {len(broken)}", *(f"    {what}" for what in broken)]) if broken else f"{name}: obeys"
        )
    print(f"{len(found)} cases; {sum(bool(broken) for broken, _ in found.values())} break a law")
    slow = {name: round(spent, 1) for name, (_, spent) in found.items() if spent > 0.4}
    print("seconds:", dict(sorted(slow.items(), key=lambda pair: -pair[1])))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].isdigit():
        scan(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        main(sys.argv[1:])
