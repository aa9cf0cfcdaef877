"""Judge every record of the papers anew and compare with the verdicts it holds:

python tools/verdicts.py [--write] [PAPER ...]

Exits with 1 if any differs or cannot be judged. With `--write` the record then holds what today's code says of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ntkscope.core import Claim, Record
from ntkscope.core.files.atomic import CHECKED, write_file
from ntkscope.core.files.plain import to_plain
from ntkscope.core.records.record_schema import FILE, record_text
from ntkscope.experiments import EXPERIMENTS

PAPERS = Path(__file__).parents[1] / "papers" / "ntkscope_papers"


def judged(record: Record) -> dict[str, Claim]:
    """Every claim, from what the record holds."""
    config = EXPERIMENTS[record.name].of(record)
    difference = config.difference() and f"other settings: {config.difference()}"
    return {claim.id: claim for claim in config.judge(record, difference)}


def write(record: Record) -> None:
    """Replace the claims of a record, and nothing else in it."""
    document = {
        **record.to_json(),
        "claims": [to_plain(claim.to_json(), claim.id) for claim in judged(record).values()],
    }
    write_file(record.folder / FILE, (record_text(document) + "\n").encode(), over=CHECKED)


def records(folder: Path) -> Iterator[Record]:
    """Those of experiments in and below a folder, by paper and name."""
    for path in sorted(folder.glob("**/results/*/record.json")):
        record = Record.open(path.parent)
        if record.name in EXPERIMENTS:
            yield record


def compared(record: Record) -> tuple[int, list[str]]:
    """How many verdicts are the same, and a line for each other one; a record that cannot be judged is one line."""
    held = {claim.id: claim.outcome for claim in record.claims}
    try:
        now = {claim.id: claim.outcome for claim in judged(record).values()}
    except Exception as error:
        return 0, [f"cannot be judged: {type(error).__name__}: {error}"]
    same = [key for key in held if now.get(key) == held[key]]
    return len(same), [f"{key}: {held.get(key)} -> {now.get(key)}" for key in {**held, **now} if key not in same]


def main(*words: str) -> int:
    papers, options = [word for word in words if word[0] != "-"], [word for word in words if word[0] == "-"]
    total, differing = 0, 0
    for record in (one for folder in papers or [""] for one in records(PAPERS / folder)):
        same, other = compared(record)
        if "--write" in options and record.claims and not any("cannot be judged" in line for line in other):
            write(record)
        total, differing = total + same, differing + len(other)
        print(f"{Path(record.folder).name}: {same} the same" + "".join(f"\n    {line}" for line in other))
    print(f"{total} verdicts the same, {differing} not")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
