"""Options that mean the same for every verb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TIME, MEMORY = "15m", "2GiB"
CHOICE = "package.module:factory, or a name `ntkscope list` knows"

MODEL = typer.Option(help=f"The network: {CHOICE}.")  # these two are needed by one verb and optional in another
DATA = typer.Option(
    help="The data: a folder of images (train/CLASS/, test/CLASS/, or CLASS/ to be split), a table with a text or image-path"
    " column (.csv, .tsv, .parquet), a Hugging Face data set on disk, a name `ntkscope list` knows, or"
    " package.module:factory, which makes a Split, (train, test) or a LightningDataModule."
)

Weights = Annotated[Path | None, typer.Option(help="Its trained weights (.safetensors, .pt, .pth, .ckpt).")]
Tokenizer = Annotated[
    str | None, typer.Option(help="For texts: a folder save_pretrained wrote, or package.module:factory.")
]
ModelOptions = Annotated[list[str] | None, typer.Option(help="key=value for the network's factory; repeatable.")]
DataOptions = Annotated[
    list[str] | None,
    typer.Option(
        help="key=value for the data: image_size=32, normalise=unit, input=review, label=stars …; repeatable."
    ),
]
DataRoot = Annotated[Path | None, typer.Option(help="Where real data lie; $NTKSCOPE_DATA unless given.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")]
Memory = Annotated[str, typer.Option(help="Most memory besides model and data, on each machine that computes.")]
ParamGlobs = Annotated[
    list[str] | None, typer.Option(help="Gradients by the parameters alone whose name this glob matches; repeatable.")
]
Certify = Annotated[
    str,
    typer.Option(help="Blocks of gradients that are checked against autograd: every, sampled (one in eight) or none."),
]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
