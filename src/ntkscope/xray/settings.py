"""The settings of an X-ray: every keyword argument of `ns.xray` besides the network, its data and the folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ntkscope.core import UsageError
from ntkscope.tangent.certify.auditor import CERTIFY
from ntkscope.xray.items import Tokenizer
from ntkscope.xray.plan import check_choice

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an X-ray is made.

    `initial`: the network before training (a module, a state dict or a weights file), without which there is no verdict on
    how lazy it was. `budget`: `Budget("15m", "2GiB")` or a time; a probe of a few items finds what fits, `say` gets the
    plan before the run starts (default: printed unless `progress=False`), and items are sampled, class by class, only if
    not all fit. `device`: where to compute (where the model is). `seed`: of samples and intervals.

    `task`: "classification" or "regression"; by default real labels that are not whole numbers, (n,) or (n, outputs), are the
    targets of a regression, and all others class numbers. `classes`: names of the classes, or of a regression's outputs.
    `tokenizer`: for texts. `max_train`, `max_test`: use at most so many items. `kernels`: by name; what fits unless given.
    `params`: names or globs of the parameters by which kernels of gradients differentiate (all that are trainable), or "last"
    for the last affine layer's. `certify`: which blocks of gradients are checked against plain autograd: "every" one,
    "sampled" (one in eight), or False. A network that is at chance on training and on test items is refused unless
    `untrained=True`. `tracked`: the folder in which `ntkscope.Tracker` recorded the training of this network; the page then has
    a section on it. `training`: the training that made this network, of a classifier: what `fit(…, store=DIR)` returned,
    finished, or a `Loop`; the page then has influence by replaying it beside the kernel's. `compare`: further items, as
    `train` or inputs alone, which the section on shift compares with the training items. `name`, `data_name`: for the page.
    `options`: what a factory made the network with, part of its identity. `began`: when the time of the budget began to run,
    by `time.perf_counter`; by default when `ns.xray` is called.
    """

    initial: Any = None
    budget: Any = None
    device: torch.device | str | None = None
    seed: int = 0
    progress: bool | Literal["auto"] = "auto"
    classes: Sequence[str] | None = None
    tokenizer: Tokenizer | None = None
    max_train: int | None = None
    max_test: int | None = None
    kernels: Sequence[str] | None = None
    params: Any = None
    certify: str | bool = "every"
    untrained: bool = False
    task: str | None = None
    tracked: str | Path | None = None
    training: Any = None
    compare: Any = None
    name: str = ""
    data_name: str = ""
    options: Mapping[str, Any] | None = None
    say: Say | None = None
    began: float | None = None

    def __post_init__(self) -> None:
        check_choice(self.kernels, self.max_train, self.max_test)
        if not (self.certify is False or (isinstance(self.certify, str) and self.certify in CERTIFY)):
            raise UsageError(f"got certify={self.certify!r}; expected 'every', 'sampled' or False")

    def tell(self, line: str) -> None:
        """Say one line, to whom was named or on the terminal."""
        if self.say is not None:
            self.say(line)
        elif self.progress:
            print(line)
