"""Track a Lightning training and look at its kernel. Run: python examples/lightning_digits.py; needs ntkscope[lightning]"""

import sys
import warnings

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ntkscope as ns


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(folder: str = "runs/lightning", epochs: int = 6) -> tuple[ns.Record, float]:
    split = ns.data.load("digits")
    torch.manual_seed(0)
    module = Classifier()
    # The network that has the outputs is tracked, not the module around it.
    tracker = ns.Tracker(module.net, (split.test.x[:100], split.test.y[:100]), folder, overhead=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning, on workers of loaders
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[tracker.lightning()],
        )
        trainer.fit(module, DataLoader(TensorDataset(split.train.x, split.train.y), batch_size=64, shuffle=True))

    few = split.train.take(range(400))
    K = ns.kernel("trntk", module.net.eval(), few.x)
    K_test = ns.kernel("trntk", module.net, split.test.x, few.x)
    surrogate = ns.surrogates.KernelRidgeClassifier().fit(K, few.y)
    accuracy = float((surrogate.predict(K_test) == split.test.y.numpy()).mean())
    print(f"ridge regression on the trained kernel, 400 labels: {accuracy:.1%} of the test digits")
    return ns.Record.open(folder), accuracy


if __name__ == "__main__":
    main(*sys.argv[1:2])
