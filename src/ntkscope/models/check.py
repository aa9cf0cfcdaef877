"""Do the pretrained CIFAR-10 networks score what their authors published? `python -m ntkscope.models.check resnet20`"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from jaxtyping import Float, Int
from torch import Tensor, nn

import ntkscope.data
from ntkscope.core import NtkscopeError
from ntkscope.core.arguments import as_device
from ntkscope.core.errors import DataNotFound
from ntkscope.core.script import run_script
from ntkscope.models import build, load_weights

PUBLISHED = {"resnet20": 9173, "resnet56": 9339}  # correct of 10,000 test images


def count_correct(model: nn.Module, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], batch_size: int = 250) -> int:
    """How many images the network, in evaluation mode, puts in their class."""
    model.eval()
    with torch.inference_mode():
        batches = zip(x.split(batch_size), y.split(batch_size))
        return sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches)


def pretrained(name: str, root: str | os.PathLike[str] | None = None) -> nn.Module:
    """The network `name` with the weights under `root` (default $NTKSCOPE_DATA), in evaluation mode."""
    root = root or os.environ.get("NTKSCOPE_DATA")
    if not root:
        raise DataNotFound(f"no data root for the weights of {name}; set $NTKSCOPE_DATA or give root (--root DIR)")
    return load_weights(build(name), Path(root) / "resnet_cifar10" / f"{name}.safetensors").eval()


def compare(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PUBLISHED)}; all unless given.")] = None,
    root: Annotated[str | None, typer.Option(help="Folder of the data sets; $NTKSCOPE_DATA unless given.")] = None,
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cpu",
) -> int:
    """Print the accuracy of each named network; 0 when all are exactly the published ones, 1 otherwise."""
    unknown = sorted({*(names or ())} - {*PUBLISHED})
    if unknown:
        raise typer.BadParameter(f"got {', '.join(unknown)}, expected some of {', '.join(PUBLISHED)}")
    try:
        where = as_device(device) or torch.device("cpu")
        test = ntkscope.data.load("cifar10", normalise="imagenet", root=root).test.to(where)
        same = True
        for name in names or PUBLISHED:
            model = pretrained(name, root).to(where)
            correct = count_correct(model, test.x, test.y)
            same &= correct == PUBLISHED[name]
            print(f"{name}: {100 * correct / len(test):.2f} % of {len(test)} (published {PUBLISHED[name] / 100:.2f} %)")
    except NtkscopeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if same else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; wrong arguments exit with 2."""
    return run_script(compare, arguments, "python -m ntkscope.models.check", __doc__)


if __name__ == "__main__":
    sys.exit(main())
