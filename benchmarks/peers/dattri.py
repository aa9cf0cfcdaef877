"""dattri's EK-FAC influence of a small network, as it is and with its defects repaired; runs in its own environment.

The repairs wrap the package from outside, in the order of `ekfac.REPAIRS`; each one includes those before it.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from dattri.algorithm.influence_function import IFAttributorEKFAC
from dattri.func import fisher
from dattri.task import AttributionTask
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.learning.ekfac import REPAIRS, case, margins
from benchmarks.peers import THREADS, serve

estimate_eigenvector = fisher.estimate_eigenvector


def rows(covariances: Any) -> Any:
    """Eigenvectors as rows, which is how the package uses what `eigh` returns as columns."""
    return {name: (a.T, s.T) for name, (a, s) in estimate_eigenvector(covariances).items()}


class BiasAsColumn(IFAttributorEKFAC):
    """Each layer's bias as the last column of its weights, not appended to them before they are cut into rows anew."""

    def transform_test_rep(self, ckpt_idx: int, test_rep: Tensor) -> Tensor:
        places, start = [], 0
        for name in self.module_name:
            module = self.name_to_module[name]
            out, into = module.weight.shape
            layer = torch.arange(start, start + out * into).view(out, into)
            start += out * into
            if module.bias is not None:
                layer = torch.cat([layer, torch.arange(start, start + out)[:, None]], 1)
                start += out
            places.append(layer.flatten())
        order = torch.cat(places)
        found: Tensor = super().transform_test_rep(ckpt_idx, test_rep[:, order])
        back = torch.empty_like(found)
        back[:, order] = found
        return back


class FisherOfLoss(BiasAsColumn):
    """The Fisher matrix of the training loss; the package takes that of whatever is attributed."""

    def cache(self, full_train_dataloader: Any, max_iter: int | None = None) -> None:
        kept, self.task.get_target_func = self.task.get_target_func, lambda: self.task.loss_func
        try:
            super().cache(full_train_dataloader, max_iter)
        finally:
            self.task.get_target_func = kept


KINDS = (IFAttributorEKFAC, IFAttributorEKFAC, BiasAsColumn, FisherOfLoss)


def scores(network: str, target: str, damping: float, repair: str) -> dict[str, Any]:
    """(train, test) influences, with the repairs up to `repair`."""
    level = REPAIRS.index(repair)
    fisher.estimate_eigenvector = rows if level else estimate_eigenvector
    given = case(network)

    def of(kind: str) -> Any:
        def value(params: Any, data: Any) -> Tensor:
            outputs = torch.func.functional_call(given.model, params, (data[0],))
            return nn.functional.cross_entropy(outputs, data[1]) if kind == "loss" else margins(outputs, data[1]).mean()

        return value

    task = AttributionTask(of("loss"), given.model, given.model.state_dict(), target_func=of(target))
    train, test = (
        DataLoader(TensorDataset(x, y), batch_size=len(x))
        for x, y in ((given.x, given.y), (given.x_test, given.y_test))
    )
    attributor = KINDS[level](task=task, damping=damping)
    attributor.cache(train)
    found = attributor.attribute(train, test).detach()
    return {"scores": np.asarray(found).tolist(), "version": version("dattri")}


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    torch.set_default_dtype(torch.float64)
    serve({"scores": scores})
