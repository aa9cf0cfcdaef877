"""A LightningDataModule as data: set up as a Trainer would, its loaders read in a fixed order."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from ntkscope.core import UsageError
from ntkscope.core.model.loading import in_order

BASE = "LightningDataModule"


def is_datamodule(made: Any) -> bool:
    """Whether it is a LightningDataModule, of `lightning` or `pytorch_lightning`; neither is imported to find out."""
    return _base(made) is not None


def loaders_of(module: Any) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Training and test loader of a LightningDataModule, neither of them shuffling.

    `prepare_data()`, `setup("fit")` and `setup("test")` are called as a Trainer calls them; the validation loader is read
    where there is no test loader.
    """
    base = _base(module)
    module.prepare_data()
    module.setup("fit")
    train = _ordered(module.train_dataloader(), "train_dataloader()")
    for stage in ("test", "val"):
        name = f"{stage}_dataloader"
        if getattr(type(module), name) is not getattr(base, name):
            if stage == "test":
                module.setup("test")
            return train, _ordered(getattr(module, name)(), f"{name}()")
    raise UsageError(
        f"{type(module).__name__} has neither a test_dataloader nor a val_dataloader; expected one: an X-ray needs items the"
        " network was not trained on"
    )


def _base(made: Any) -> type | None:
    return next((each for each in type(made).__mro__ if each.__name__ == BASE), None)


def _ordered(loader: Any, what: str) -> DataLoader[Any]:
    if isinstance(loader, list | tuple) and len(loader) == 1:
        loader = loader[0]
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"{what} gave a {type(loader).__name__}; expected one DataLoader: write a function that returns (train, test)"
            " from the loaders you mean, and pass it as --data package.module:function"
        )
    return in_order(loader)
