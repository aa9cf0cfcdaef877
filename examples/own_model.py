"""X-ray a network of your own, in ten lines: any nn.Module, any data set. Run: python examples/own_model.py [FOLDER]"""

import copy
import sys

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ntkscope as ns


def main(folder: str = "runs/own-model") -> ns.Record:
    x, y = map(torch.tensor, load_wine(return_X_y=True))
    data = TensorDataset(((x - x.mean(0)) / x.std(0)).float(), y)
    train, test = torch.utils.data.random_split(data, [120, 58], generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 3))
    initial = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(train, batch_size=32, shuffle=True)
    for _ in range(20):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()

    record = ns.xray(model, train, DataLoader(test), folder, initial=initial, name="wine", data_name="wine")
    print(record.metrics["section:summary"]["data"]["verdict"], "page:", ns.report.write_page(folder))
    return record


if __name__ == "__main__":
    main(*sys.argv[1:])
