"""Track a training loop of your own, then X-ray what came out. Run: python examples/tracked_loop.py [FOLDER]"""

import copy
import sys
from pathlib import Path

import torch
from torch import nn

import ntkscope as ns


def main(
    folder: str = "runs/tracked-loop", steps: int = 150, max_train: int | None = 200
) -> tuple[ns.Record, ns.Record]:
    split = ns.data.load("digits")
    train, test = split.train, split.test
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
    initial = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    tracked = Path(folder, "training")
    with ns.Tracker(model, (test.x[:100], test.y[:100]), tracked, total=steps, overhead=20) as tracker:
        for _ in range(steps):
            rows = torch.randint(len(train), (64,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(train.x[rows]), train.y[rows])
            loss.backward()
            optimizer.step()
            tracker.step(loss)

    training = ns.Record.open(tracked)
    print("measured at steps", [moment["step"] for moment in training.series("moments")])
    record = ns.xray(
        model,
        train,
        test,
        Path(folder, "xray"),
        initial=initial,
        tracked=tracked,
        kernels=["ck"],
        max_train=max_train,
        progress=False,
    )
    print("page:", ns.report.write_page(record.folder))
    return training, record


if __name__ == "__main__":
    main(*sys.argv[1:2])
