"""neural-tangents' infinite-width kernels of the networks in `benchmarks.kernels.infinite`; runs in its own environment."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import neural_tangents as nt
import numpy as np
from neural_tangents import stax

from benchmarks.peers import serve

PADDING = {"same": "SAME", "valid": "VALID", "circular": "CIRCULAR"}
PLAIN = {"Relu": stax.Relu, "Erf": stax.Erf, "Abs": stax.Abs, "Flatten": stax.Flatten, "Identity": stax.Identity}


def layer(kind: str, options: dict[str, Any]) -> Any:
    """One layer from its name and our options."""
    match kind:
        case "Dense":
            return stax.Dense(64, **options)
        case "Conv":
            size, stride = (options.pop(key, 1) for key in ("kernel", "stride"))
            padding = PADDING[options.pop("padding", "same")]
            return stax.Conv(64, (size, size), (stride, stride), padding, **options)
        case "LeakyRelu":
            return stax.LeakyRelu(options["a"])
        case "Gelu":
            return stax.Gelu()
        case "Sin":
            return stax.Sin(**options)
        case "Rbf":
            return stax.Rbf(options["gamma"])
        case "AvgPool":
            return stax.AvgPool((options["window"],) * 2, (options["window"],) * 2)
        case "GlobalAvgPool":
            return stax.GlobalAvgPool()
        case "LayerNorm":
            return stax.LayerNorm(axis=-1, eps=0.0)
        case "Residual":
            return stax.serial(
                stax.FanOut(2), stax.parallel(stax.Identity(), network(options["branch"])), stax.FanInSum()
            )
    return PLAIN[kind]()


def network(layers: list[list[Any]]) -> Any:
    return stax.serial(*(layer(kind, dict(options)) for kind, options in layers))


class Kernel:
    """One network and its inputs, compiled once."""

    def load(self, layers: list[list[Any]], path: str, kind: str, double: bool, batch: int = 0) -> dict[str, Any]:
        """`batch` of 0: the whole kernel in one compiled call; else the library's own batching."""
        jax.config.update("jax_enable_x64", double)
        arrays = np.load(path)
        self.inputs = [self._input(arrays[key], double) for key in ("x1", "x2") if key in arrays]
        _, _, f = network(layers)
        function = (lambda a, b: f(a, b, kind)) if batch == 0 else nt.batch(lambda a, b, **k: f(a, b, kind), batch)
        self.function = jax.jit(function) if batch == 0 else function
        return {"versions": {"jax": jax.__version__, "neural-tangents": nt.__version__}}

    def _input(self, x: np.ndarray, double: bool) -> Any:
        x = x.transpose(0, 2, 3, 1) if x.ndim == 4 else x
        return jnp.asarray(x, jnp.float64 if double else jnp.float32)

    def kernel(self, out: str | None = None) -> dict[str, Any]:
        start, used = time.perf_counter(), time.process_time()
        a, b = self.inputs[0], self.inputs[1] if len(self.inputs) > 1 else None
        K = jax.block_until_ready(self.function(a, b))
        seconds, used = time.perf_counter() - start, time.process_time() - used
        if out is not None:
            np.save(out, np.asarray(K))
        return {"seconds": seconds, "cpu_seconds": used}


if __name__ == "__main__":
    peer = Kernel()
    serve({"load": peer.load, "kernel": peer.kernel})
