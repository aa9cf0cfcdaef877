"""X-ray the pretrained ResNet-20 on CIFAR-10. Run: NTKSCOPE_DATA=… python examples/resnet20_cifar10.py [FOLDER] [TIME]

The same from the command line:

    ntkscope xray --model resnet20 --weights $NTKSCOPE_DATA/resnet_cifar10/resnet20.safetensors \
        --data cifar10 --data-option normalise=imagenet --time 10m --out runs/resnet20
"""

import os
import sys
from pathlib import Path

import ntkscope as ns


def main(
    folder: str = "runs/resnet20", time: str | None = "10m", max_train: int | None = None, **options: object
) -> ns.Record:
    split = ns.data.load("cifar10", normalise="imagenet")
    weights = Path(os.environ["NTKSCOPE_DATA"], "resnet_cifar10", "resnet20.safetensors")
    model = ns.models.load_weights(ns.models.build("resnet20"), weights)
    record = ns.xray(
        model,
        split.train,
        split.test,
        folder,
        budget={"time": time},
        classes=split.classes,
        max_train=max_train,
        name="resnet20",
        data_name="cifar10",
        **options,
    )
    print("page:", ns.report.write_page(folder))
    return record


if __name__ == "__main__":
    main(*sys.argv[1:])
