"""Write `known.txt`, what breaks a law now: `PYTHONPATH=src:tests python -m laws.note_known`. Read what it adds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from laws.known import FILE, written


def scan(part: int, parts: int, path: str) -> None:
    from laws.every import CASES, all_broken

    os.chdir(tempfile.mkdtemp())
    found: dict[str, tuple[list[str], float]] = {}
    for case in CASES[part::parts]:
        begun = time.process_time()
        found[case.name] = (all_broken(case), time.process_time() - begun)
    Path(path).write_text(json.dumps(found))


def main(parts: int = 2) -> None:
    files = [f"{tempfile.mkdtemp()}/{part}.json" for part in range(parts)]
    start = [sys.executable, "-m", "laws.note_known"]
    commands = [[*start, str(part), str(parts), file] for part, file in enumerate(files)]
    for process in [subprocess.Popen(command) for command in commands]:
        assert process.wait() == 0
    found = {name: what for file in files for name, what in json.loads(Path(file).read_text()).items()}
    FILE.write_text(written({name: broken for name, (broken, _) in found.items()}), encoding="utf-8")
    print(f"{len(found)} cases; {sum(bool(broken) for broken, _ in found.values())} break a law")
    slow = {name: round(spent, 1) for name, (_, spent) in found.items() if spent > 0.4}
    print("seconds:", dict(sorted(slow.items(), key=lambda pair: -pair[1])))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        scan(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        main()
