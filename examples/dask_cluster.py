"""A kernel on disk, filled by a Dask cluster. Run: python examples/dask_cluster.py [FOLDER]; needs ntkscope[distributed,store]

Here the cluster is two processes on this machine. With dask-jobqueue, or a scheduler's address in place of the client, the
call is the same; the folder must then be one that all machines see.
"""

import logging
import sys

from dask.distributed import Client, LocalCluster

import ntkscope as ns


def main(folder: str = "runs/kernel", items: int = 200) -> ns.Gram:
    split = ns.data.load("digits")
    model = ns.models.build("mlp", in_features=64, classes=10, widths=64, depth=2).eval()
    x = split.train.x[:items].flatten(1)
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.ERROR)
    with cluster, Client(cluster) as client:
        K = ns.kernel("trntk", model, x, memory="32MiB", store=folder, executor=client)
    print(K, K.certificate, sep="\n")
    return ns.open_kernel(folder)  # later, elsewhere, without the model


if __name__ == "__main__":  # worker processes import this file
    main(*sys.argv[1:2])
