"""Judge every record of the papers anew and compare with the verdicts it holds: `python tools/verdicts.py [PAPER ...]`.

Exits with 1 if any differs or cannot be judged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ntkscope.core import Record
from ntkscope.experiments import EXPERIMENTS

PAPERS = Path(__file__).parents[1] / "papers" / "ntkscope_papers"


def judged(record: Record) -> dict[str, str]:
    """The verdict on every claim, from what the record holds."""
    config = EXPERIMENTS[record.name].of(record)
    return {claim.id: claim.verdict for claim in config.judge(record, config.difference())}


def records(folder: Path) -> Iterator[Record]:
    """Those of experiments in and below a folder, by paper and name."""
    for path in sorted(folder.glob("**/results/*/record.json")):
        record = Record.open(path.parent)
        if record.name in EXPERIMENTS:
            yield record


def compared(record: Record) -> tuple[int, list[str]]:
    """How many verdicts are the same, and a line for each other one; a record that cannot be judged is one line."""
    held = {claim.id: claim.verdict for claim in record.claims}
    try:
        now = judged(record)
    except Exception as error:
        return 0, [f"cannot be judged: {type(error).__name__}: {error}"]
    same = [key for key in held if now.get(key) == held[key]]
    return len(same), [f"{key}: {held.get(key)} -> {now.get(key)}" for key in {**held, **now} if key not in same]


def main(*papers: str) -> int:
    total, differing = 0, 0
    for record in (one for folder in papers or [""] for one in records(PAPERS / folder)):
        same, other = compared(record)
        total, differing = total + same, differing + len(other)
        print(f"{Path(record.folder).name}: {same} the same" + "".join(f"\n    {line}" for line in other))
    print(f"{total} verdicts the same, {differing} not")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
