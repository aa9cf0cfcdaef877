"""Draw an experiment's figures again from its record:

python -m ntkscope_papers.framework.figures DIR
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ntkscope.core import Record
from ntkscope.experiments import EXPERIMENTS
from ntkscope_papers.framework.drawing import save_figures


def main(folders: Sequence[str]) -> int:
    """Draw the figures of every folder; exit status 2 when none was given."""
    if not folders:
        print("usage: python -m ntkscope_papers.framework.figures DIR ...", file=sys.stderr)
        return 2
    for folder in folders:
        record = Record.open(folder)
        print("\n".join(save_figures(EXPERIMENTS[record.name].of(record).draw, record)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
