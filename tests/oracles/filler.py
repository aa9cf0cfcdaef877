"""A process that starts others which fill stores, so that those start at once and can be killed.

It reads `start`, a source and a URL, with tabs between, and answers with the new process's id; or `wait` and an id, and
answers with how that one ended.
"""

from __future__ import annotations

import os
import sys
import traceback

import google_crc32c  # noqa: F401 - what each process would import
import torch
import zarr  # noqa: F401

from ntkscope.storage import KernelStore, fill
from oracles.tiles import NetworkTiles, Products


def sources() -> dict[str, NetworkTiles | Products]:
    """What can be filled from: a network's kernel, where computing takes the time, and products, where writing does."""
    features = torch.randn(1500, 2, generator=torch.Generator().manual_seed(0))
    return {
        "network": NetworkTiles(),
        "small network": NetworkTiles(n=20, size=5),
        "products": Products(features, size=150),
    }


def main() -> None:
    torch.set_num_threads(1)
    ready = sources()
    for name in ("network", "small network"):
        ready[name].tile(0, 0)  # what is made once need not be made in each process
    print("ready", flush=True)
    for line in sys.stdin:
        command, first, *rest = line.rstrip("\n").split("\t")
        if command == "wait":
            print(os.waitpid(int(first), 0)[1], flush=True)
            continue
        identity = os.fork()
        if identity:
            print(identity, flush=True)
            continue
        try:
            fill(KernelStore.prepare(rest[0], ready[first]), ready[first])
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)


if __name__ == "__main__":
    main()
