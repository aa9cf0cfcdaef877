"""Damage valid files of every kind that is read, at random, and read them:

python tools/fuzz.py [--seconds 60] [--seed 0] [PARSER ...]

A parser may refuse with an error of ntkscope's own, or read what is still whole. Anything else is a finding: another error,
more than ten seconds, more than two gigabytes, a process that dies, code that is imported or a program that is started, and,
where numbers are protected by checksums, other numbers. Each parser runs in a process of its own for so many seconds; a finding
is printed with the case that shows it again: `--case N` with the same seed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 10.0  # seconds for one case
ROOM = 2 << 30  # bytes that one parser may map beyond what it had mapped
SOME = 20  # findings printed in full for each parser
HOSTILE = (  # what somebody would write who hopes that it runs, or that it fills the memory
    b"cos\nsystem\n(S'true'\ntR.", b"\x80\x02ccanary\nrun\n)R.", b"cbuiltins\neval\n(S'1'\ntR.", b"__import__('canary')",
    b"../../../canary", b"/dev/zero", b"\x00", b"NaN", b"1e999", b"-1", b"9" * 30, b"\xff\xfe", b"[" * 2000, b'"\\ud800"',
    b"\r\n", b"\x1b]0;\x07",
)  # fmt: skip
NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1)
FORBIDDEN = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "ctypes.dlopen"}


class TooLong(BaseException):
    """A case took more than `LIMIT`."""


@dataclass(frozen=True)
class Parser:
    """How a valid example is written into an empty folder, and how it is read; `same`: whole numbers or a refusal."""

    write: Callable[[Path], None]
    read: Callable[[Path], Any]
    same: bool = False


# -- the files ---------------------------------------------------------------------------------------------------------


def tensors() -> dict[str, Any]:
    import torch

    return {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(3), "n": torch.tensor(3)}


def write_idx(folder: Path) -> None:
    import struct

    (folder / "images").write_bytes(struct.pack(">HBB3I", 0, 8, 3, 4, 5, 5) + bytes(range(100)))


def write_npz(folder: Path) -> None:
    import numpy as np

    np.savez(folder / "a.npz", a=np.arange(4, dtype="u1"))


def write_pickle(folder: Path) -> None:
    import pickle

    import numpy as np

    value = {
        b"data": np.arange(60, dtype=np.uint8).reshape(3, 20),
        b"labels": [1, 2, 3],
        b"names": ("a", b"b", None, 1.5),
    }
    for protocol in (2, 4):
        (folder / f"p{protocol}").write_bytes(pickle.dumps(value, protocol=protocol))


def write_images(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (24, 20, 3), dtype=np.uint8)
    for suffix in ("png", "jpg", "webp"):
        Image.fromarray(pixels).save(folder / f"a.{suffix}")


def read_images(folder: Path) -> Any:
    from ntkscope.data.image_folder import read_image

    return [read_image(path, 16, "crop") for path in sorted(folder.iterdir())]


def write_tables(folder: Path) -> None:
    rows = [f"{k},word {k},{'yes' if k % 2 else 'no'}" for k in range(9)]
    (folder / "train.csv").write_text("\n".join(["number,text,label", *rows]))


def write_parquet(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"text": [f"word {k}" for k in range(9)], "label": [k % 2 for k in range(9)]}
    parquet.write_table(pa.table(columns), folder / "train.parquet")


def read_table(folder: Path) -> Any:
    import ntkscope as ns

    split = ns.data.load("table", root=next(iter(folder.iterdir())))
    return [split.train[k] for k in range(len(split.train))]


def write_weights(folder: Path) -> None:
    import safetensors.torch
    import torch

    torch.save(tensors(), folder / "w.pt")
    torch.save(tensors(), folder / "old.pt", _use_new_zipfile_serialization=False)
    safetensors.torch.save_file(tensors(), folder / "w.safetensors")


def read_weights(folder: Path) -> Any:
    from ntkscope.models import read_weights

    return [read_weights(path) for path in sorted(folder.iterdir())]


def write_snapshot(folder: Path) -> None:
    from ntkscope.core import Snapshot
    from ntkscope.training.snapshots import save_snapshot

    kept = {name: value.float() for name, value in tensors().items()}
    save_snapshot(Snapshot(step=3, epoch=1.0, params=kept, buffers={}, metrics={"loss": 0.5}), folder / "s.safetensors")


def read_snapshot(folder: Path) -> Any:
    from ntkscope.training.snapshots import load_snapshot

    found = load_snapshot(folder / "s.safetensors")
    return [found.step, found.epoch, dict(found.metrics), *found.params.values()]


def write_record(folder: Path) -> None:
    import numpy as np

    from ntkscope.core import Claim, Record

    with Record.create(folder / "run", kind="test", name="one", config={"n": 3}, seeds={"data": 0}) as record:
        record.array("a", np.arange(6.0).reshape(2, 3))
        record.claim(Claim("a-b", "Table 1", 0.7, 0.7, 0.01, "reproduced"))
        record.put(x=1, table=[{"a": 1}])
        with record.stage("tiles", total=2) as stage:
            stage.advance(2)
        record.series("loss").append({"step": 0, "loss": 0.5})


def read_record(folder: Path) -> Any:
    from ntkscope.core import Record
    from ntkscope.report import write_index, write_page

    record = Record.open(folder / "run")
    numbers = [record.arrays[name].copy() for name in record.arrays]
    rows = [list(record.series(name)) for name in ("loss",)]
    write_page(folder / "run")
    write_index(folder)
    return numbers, rows


def kernel() -> Any:
    import torch

    from ntkscope.kernels import kernel

    model = torch.nn.Sequential(torch.nn.Linear(3, 2)).double().eval()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.linspace(-1, 1, value.numel()).reshape(value.shape))
    return kernel, model, torch.linspace(0, 1, 60, dtype=torch.float64).reshape(20, 3)


def write_store(folder: Path) -> None:
    of, model, x = kernel()
    of("trntk", model, x, store=folder / "k")


def write_cross(folder: Path) -> None:
    of, model, x = kernel()
    of("trntk0", model, x[:8], x, store=folder / "k")


def write_features(folder: Path) -> None:
    of, model, x = kernel()
    of("proj-trntk", model, x, store=folder / "k", kind="gaussian", dim=8)


def read_store(folder: Path) -> Any:
    from ntkscope.storage import open_kernel

    gram = open_kernel(folder / "k")
    return gram.dense(), gram.diagonal() if gram.shape[0] == gram.shape[1] else None


def write_review(folder: Path) -> None:
    decision = {"index": 4, "original": 40, "label": 1, "suggested": 2, "decision": "accept", "id": "a/b.png"}
    review = {"format": "ntkscope-review", "version": 1, "record": "0123456789abcdef", "decisions": [decision]}
    (folder / "r.json").write_text(json.dumps(review))
    head = ["record", *decision]
    (folder / "r.csv").write_text(
        ",".join(head) + "\n" + ",".join(["0123456789abcdef", *map(str, decision.values())]) + "\n"
    )


def read_reviews(folder: Path) -> Any:
    from ntkscope.xray import read_review

    return [read_review(path) for path in sorted(folder.iterdir())]


def write_config(folder: Path) -> None:
    config = {
        "model_type": "bert",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 20,
    }
    (folder / "config.json").write_text(json.dumps(config))


def read_config(folder: Path) -> Any:
    from ntkscope.models.text import check_config

    return check_config(folder, False)


def of_data(module: str, name: str, file: str, *options: Any) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        import importlib

        return getattr(importlib.import_module(f"ntkscope.data.{module}"), name)(folder / file, *options)

    return read


def read_pickles(folder: Path) -> Any:
    from ntkscope.data import _pickle

    return [_pickle.load(path) for path in sorted(folder.iterdir())]


PARSERS = {
    "idx": Parser(write_idx, of_data("_idx", "read_idx", "images", 3)),
    "npz": Parser(write_npz, of_data("_npz", "read_npz", "a.npz", {"a": ("u1", (4,))})),
    "pickle": Parser(write_pickle, read_pickles),
    "image": Parser(write_images, read_images),
    "table": Parser(write_tables, read_table),
    "parquet": Parser(write_parquet, read_table),
    "weights": Parser(write_weights, read_weights),
    "snapshot": Parser(write_snapshot, read_snapshot, same=True),
    "record": Parser(write_record, read_record),
    "kernel store": Parser(write_store, read_store, same=True),
    "cross store": Parser(write_cross, read_store, same=True),
    "feature store": Parser(write_features, read_store, same=True),
    "review": Parser(write_review, read_reviews),
    "encoder": Parser(write_config, read_config),
}


# -- damage ------------------------------------------------------------------------------------------------------------


def mutated(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """`data` damaged in one to four places."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(changed) + 1)
        length = min(draw.choice((1, 2, 4, 8, 64, 1024)), max(1, len(changed) - at))
        kind = draw.randrange(9)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed[at : at + length] = draw.randbytes(length)
        elif kind == 2:
            del changed[at : at + length]
        elif kind == 3:
            changed[at:at] = changed[at : at + length] * draw.choice((1, 2, 100))
        elif kind == 4:
            del changed[at:]
        elif kind == 5:
            size = draw.choice((1, 2, 4, 8))
            number = draw.choice(NUMBERS) % (1 << 8 * size)
            changed[at : at + size] = number.to_bytes(size, draw.choice(("little", "big")))
        elif kind == 6:
            changed[at : at + draw.choice((0, length))] = draw.choice(HOSTILE)
        elif kind == 7:
            start = draw.randrange(len(other) + 1)
            changed[at : at + length] = other[start : start + length]
        else:  # a digit of a text, another
            digits = [place for place, byte in enumerate(changed[:100_000]) if 48 <= byte <= 57]
            if digits:
                changed[draw.choice(digits)] = draw.randrange(48, 58)
    return bytes(changed)


def damage(folder: Path, draw: random.Random) -> str:
    """Damage one or two files of a folder; their names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    chosen = draw.sample(files, min(len(files), draw.choice((1, 1, 2))))
    for path in chosen:
        path.write_bytes(mutated(path.read_bytes(), draw.choice(files).read_bytes(), draw))
    return ", ".join(path.relative_to(folder).as_posix() for path in chosen)


# -- one parser, in a process of its own ---------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Numbers as bytes, to compare."""
    out = io.BytesIO()
    import torch

    torch.save(value, out)
    return out.getvalue()


def one(name: str, seconds: float, seed: int, case: int | None, told: Path) -> None:
    """Cases until the time is over; what was found, as lines of JSON in the file `told`."""
    from ntkscope.core import NtkscopeError

    warnings.simplefilter("ignore")
    parser, events = PARSERS[name], list[str]()

    def watch(event: str, details: tuple[Any, ...]) -> None:
        if event in FORBIDDEN or (event == "import" and "canary" in str(details[0])):
            events.append(f"{event} {str(details)[:80]}")

    def late(number: int, frame: Any) -> None:
        raise TooLong

    with tempfile.TemporaryDirectory() as held:
        whole, folder = Path(held) / "whole", Path(held) / "case"
        whole.mkdir()
        parser.write(whole)
        shutil.copytree(whole, folder)
        expected = plain(parser.read(folder)) if parser.same else None  # and everything is imported that reading needs
        for _ in range(2):
            parser.read(folder)
        shutil.rmtree(folder)
        sys.addaudithook(watch)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM, resource.RLIM_INFINITY))
        signal.signal(signal.SIGALRM, late)
        end, number, read, refused = time.monotonic() + seconds, case or 0, 0, 0
        while number == case if case is not None else time.monotonic() < end:
            draw = random.Random(f"{name} {seed} {number}")
            shutil.copytree(whole, folder)
            files, wrong = damage(folder, draw), ""
            with told.open("a") as file:
                file.write(json.dumps({"case": number, "files": files}) + "\n")
            events.clear()
            signal.setitimer(signal.ITIMER_REAL, LIMIT)
            try:
                value = parser.read(folder)
                signal.setitimer(signal.ITIMER_REAL, 0)
                read += 1
                if parser.same and plain(value) != expected:
                    wrong = "other numbers than were written"
            except NtkscopeError:
                refused += 1
            except TooLong:
                wrong = f"more than {LIMIT:g} s"
            except Exception as error:
                wrong = "".join(traceback.format_exception_only(error)).strip()[:300] + " at " + where(error)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if wrong or events:
                with told.open("a") as file:
                    file.write(
                        json.dumps({"case": number, "wrong": "; ".join([wrong, *events]), "files": files}) + "\n"
                    )
            shutil.rmtree(folder, ignore_errors=True)
            number += 1
        with told.open("a") as file:
            file.write(json.dumps({"cases": number - (case or 0), "read": read, "refused": refused}) + "\n")


def where(error: BaseException) -> str:
    """The last place of ours that an error passed."""
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if "ntkscope" in frame.filename]
    return f"{Path(places[-1].filename).name}:{places[-1].lineno}" if places else "?"


def tried(name: str, seconds: float, seed: int, case: int | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a process of its own says of one parser; one that dies or hangs is found out here."""
    with tempfile.TemporaryDirectory() as held:
        told = Path(held) / "told"
        command = [sys.executable, __file__, name, "--seconds", str(seconds), "--seed", str(seed), "--told", str(told)]
        command += [] if case is None else ["--case", str(case)]
        try:
            code = subprocess.run(command, timeout=seconds + 20 * LIMIT, capture_output=True, check=False).returncode
            ended = f"the process ended with {code}"
        except subprocess.TimeoutExpired:
            code, ended = 1, "it hangs"
        lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
        found = [line for line in lines if "wrong" in line]
        if code:
            found.append({"case": None, "files": "", **(lines[-1] if lines else {}), "wrong": ended})
        last = lines[-1] if lines and "cases" in lines[-1] else {"cases": len(lines), "read": 0, "refused": 0}
        return last, found


def main(names: list[str], seconds: float, seed: int, case: int | None) -> int:
    """The table, and 1 if anything was found."""
    print("| parser | cases | read | refused | findings |\n| --- | --- | --- | --- | --- |", flush=True)
    every = []
    for name in names:
        counts, found = tried(name, seconds, seed, case)
        every += [(name, finding) for finding in found]
        print(f"| {name} | {counts['cases']} | {counts['read']} | {counts['refused']} | {len(found)} |", flush=True)
        kinds = {finding["wrong"]: finding for finding in found}
        for finding in list(kinds.values())[:SOME]:
            print(f"  case {finding['case']}, {finding['files']}: {finding['wrong']}", flush=True)
    return int(bool(every))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="PARSER", help=", ".join(PARSERS))
    options.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", "60")))
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--case", type=int)
    options.add_argument("--told", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.told is not None:
        one(given.names[0], given.seconds, given.seed, given.case, given.told)
        os._exit(0)  # what libraries do at the end, in the little room that is left, is not what is tried
    raise SystemExit(main(given.names or list(PARSERS), given.seconds, given.seed, given.case))
