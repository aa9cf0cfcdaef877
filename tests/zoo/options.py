"""Options of `ns.kernel` as users mistype them: outputs=, memory=, params=, dtype=."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from zoo.case import Expect, Made, case
from zoo.inputs import FAMILY, D, N, either, mlp, refused

OUTPUTS: dict[str, tuple[Any, Expect]] = {
    "one": ([1], "exact"),
    "reversed": ([2, 0], "exact"),
    "tensor": (torch.tensor([0, 2]), "either"),
    "numpy": (np.array([0, 2]), "either"),
    "tuple": ((0, 1), "either"),
    "range": (range(2), "either"),
    "mask": ([True, False, True], "refused"),
    "tensor mask": (torch.tensor([True, False, True]), "refused"),
    "true": (True, "refused"),
    "negative": ([-1], "refused"),
    "too large": ([3], "refused"),
    "empty": ([], "refused"),
    "floats": ([0.0, 1.0], "refused"),
    "half": ([0.5], "refused"),
    "string": ("01", "refused"),
    "nan": ([float("nan")], "refused"),
}


def build() -> Made:
    return mlp(), torch.randn(N, D)


for _label, (_outputs, _expect) in OUTPUTS.items():
    build.__name__ = f"outputs[{_label}]"
    case(FAMILY, _expect, f"outputs={_outputs!r}", options={"outputs": _outputs})(build)

build.__name__ = "outputs[duplicates]"
either("an output counted twice, or refused", options={"outputs": [1, 1]})(build)

MEMORY: dict[str, tuple[Any, Expect]] = {
    "true": (True, "refused"),
    "nan": (float("nan"), "refused"),
    "negative": (-1, "refused"),
    "words": ("lots", "refused"),
    "zero": (0, "refused"),
    "infinite": (float("inf"), "either"),
    "one byte": (1, "refused"),
    "none": (None, "refused"),
    "list": ([2**30], "refused"),
    "negative text": ("-1GiB", "refused"),
    "unknown unit": ("1 parsec", "refused"),
    "empty text": ("", "refused"),
    "small": ("64KiB", "either"),
    "number": (2**25, "exact"),
    "numpy": (np.int64(2**25), "either"),
    "float": (1e8, "exact"),
}

for _label, (_memory, _expect) in MEMORY.items():
    build.__name__ = f"memory[{_label}]"
    case(FAMILY, _expect, f"memory={_memory!r}", options={"memory": _memory})(build)

OTHERS: dict[str, tuple[dict[str, Any], Expect]] = {
    "params glob": ({"params": "nothing.*"}, "refused"),
    "params number": ({"params": 3}, "refused"),
    "params bytes": ({"params": b"0.weight"}, "refused"),
    "params none in list": ({"params": [None]}, "refused"),
    "dtype int": ({"dtype": torch.int64}, "refused"),
    "dtype text": ({"dtype": "float32"}, "refused"),
    "dtype complex": ({"dtype": torch.complex64}, "refused"),
    "device text": ({"device": "abacus"}, "refused"),
    "device cpu": ({"device": "cpu"}, "exact"),
    "dtype half": ({"dtype": torch.bfloat16}, "either"),
    "dtype float32": ({"dtype": torch.float32}, "exact"),
    "precision": ({"precision": "guess"}, "refused"),
    "unknown option": ({"speed": "high"}, "refused"),
    "seed text": ({"seed": "now"}, "either"),
}

for _label, (_options, _expect) in OTHERS.items():
    build.__name__ = f"option[{_label}]"
    case(FAMILY, _expect, f"{_options!r}", options=_options)(build)

NAMES: dict[str, Any] = {"unknown": "ntk0", "empty": "", "case": "TRNTK0x", "number": 3, "none": None}

for _label, _name in NAMES.items():
    build.__name__ = f"name[{_label}]"
    refused(f"kernel {_name!r}", kernel=_name)(build)
