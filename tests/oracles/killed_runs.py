"""Runs in processes of their own, to be killed: each writes to a folder, resumes what is there, and says what it came to."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ntkscope as ns
from ntkscope.cli import main
from ntkscope.core import Part, Record
from ntkscope.core.types import fingerprint
from ntkscope.training import fit_ensemble
from ntkscope.xray import Budget

TIMES = "seconds timings spent budget rates steps_seconds recipe_checksum plan updated stages confidence"


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3)).eval()


def data(n: int, seed: int = 0) -> Part:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))
    return Part(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long())


def ensemble(folder: Path) -> str:
    options: dict[str, Any] = {"lr": 0.05, "steps": 600, "batch_size": 8, "snapshots": 60, "checkpoint_seconds": 0.05}
    found = fit_ensemble(network, data(40), seeds=[1, 2, 3], store=folder, **options)
    return fingerprint(dict(found.params))


def features(folder: Path) -> str:
    options: dict[str, Any] = {"dim": 256, "kind": "gaussian", "memory": "16MiB"}
    K = ns.kernel("proj-trntk", network().double(), data(600).x.double(), store=folder, **options)
    return fingerprint(K.dense())


def command(folder: Path) -> str:
    """`ntkscope kernel --store`, tile by tile."""
    at = ["--store", str(folder), "--memory", "3.5MB", "--device", "cpu"]
    with contextlib.suppress(SystemExit):
        main(
            [
                "kernel",
                "trntk",
                "--model",
                "oracles.store_network:network",
                "--data",
                "oracles.store_network:images",
                *at,
            ]
        )
    return fingerprint(ns.open_kernel(folder).dense())


def xray(folder: Path) -> str:
    how: dict[str, Any] = {
        "budget": Budget(None, "1GiB"),
        "untrained": True,
        "progress": False,
        "say": lambda line: None,
    }
    record = ns.xray(network(), data(60), data(40, 1), folder, kernels=["trntk", "ck"], initial=network(1), **how)
    arrays = {name: torch.from_numpy(record.arrays[name].copy()) for name in sorted(record.arrays)}
    sections = {key: without_times(value) for key, value in record.metrics.items() if key.startswith("section:")}
    del sections["section:computed"]  # which says how often it was interrupted
    assert record.status == "done"
    return fingerprint(arrays, repr(sorted(sections.items())))


def gather(folder: Path) -> str:
    """Two records with arrays are gathered into one again and again; a kill leaves a part of them."""
    sources = [folder.parent / f"{folder.name}-{k}" for k in range(4)]
    for k, source in enumerate(sources):
        if (source / "record.json").exists() and Record.open(source).status == "done":
            continue
        if (source / "record.json").exists():
            made = Record.resume(source)
        else:
            made = Record.create(source, kind="experiment", name="legs")
        with made as record:
            for j in range(12):
                if f"a{k}-{j}" not in record.arrays:
                    record.array(f"a{k}-{j}", torch.full((2000,), float(k + j)))
            record.put(**{f"leg/{k}": {"seconds": 1.0, "value": k}})
    from ntkscope_papers.framework.gather import gather as gathered

    whole = (
        Record.resume(folder)
        if (folder / "record.json").exists()
        else Record.create(folder, kind="experiment", name="legs")
    )
    with whole as record:
        gathered(record, sources)
    arrays = {name: torch.from_numpy(record.arrays[name].copy()) for name in sorted(record.arrays)}
    legs = [source["legs"] for source in record.metrics["provenance"]]
    return fingerprint(arrays, repr((legs, [record.metrics[f"leg/{k}"] for k in range(4)])))


def without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: without_times(item) for key, item in value.items() if not any(word in key for word in TIMES.split())
        }
    return [without_times(item) for item in value] if isinstance(value, list | tuple) else value


RUNS = {"ensemble": ensemble, "features": features, "command": command, "xray": xray, "gather": gather}


def run(name: str, folder: str) -> None:
    """Run to the end, or resume, and write what it came to beside the folder."""
    torch.set_num_threads(1)
    answer = RUNS[name](Path(folder))
    Path(f"{folder}.answer").write_text(answer)
