"""neural-tangents' three empirical NTK methods on the equivalent JAX network; runs in its own environment.

The kernel is computed in jit-compiled square tiles over the upper triangle and mirrored: the library itself computes
both halves, so this is the stronger peer. With `trace_axes=(-1,)` the library returns the mean over outputs; it is
multiplied by their number here, outside the timed part, to give the trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import neural_tangents as nt
import numpy as np
from jax import lax

from benchmarks.peers import serve

Params = dict[str, Any]
RATE, MOMENTUM = 1e-3, 0.9  # of the steps on a linearised network
NHWC = ("NHWC", "HWIO", "NHWC")
METHODS = {
    "jacobian contraction": nt.NtkImplementation.JACOBIAN_CONTRACTION,
    "ntk-vector products": nt.NtkImplementation.NTK_VECTOR_PRODUCTS,
    "structured derivatives": nt.NtkImplementation.STRUCTURED_DERIVATIVES,
}


def conv(x: Any, w: Any, stride: int = 1, padding: int = 0) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), [(padding, padding)] * 2, dimension_numbers=NHWC)


def max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def lenet(p: Params, constants: Params, x: Any) -> Any:
    x = max_pool(jax.nn.relu(conv(x, p["conv1.weight"], padding=2) + p["conv1.bias"]))
    x = max_pool(jax.nn.relu(conv(x, p["conv2.weight"]) + p["conv2.bias"]))
    x = x.reshape(x.shape[0], -1)
    for name in ("fc1", "fc2"):
        x = jax.nn.relu(x @ p[f"{name}.weight"] + p[f"{name}.bias"])
    return x @ p["readout.weight"] + p["readout.bias"]


def mlp(p: Params, constants: Params, x: Any) -> Any:
    for layer in (0, 2, 4):
        x = jax.nn.relu(x @ p[f"{layer}.weight"] + p[f"{layer}.bias"])
    return x @ p["6.weight"] + p["6.bias"]


def resnet20(p: Params, constants: Params, x: Any) -> Any:
    def norm(x: Any, name: str) -> Any:
        scale = lax.rsqrt(constants[f"{name}.running_var"] + 1e-5)
        return (x - constants[f"{name}.running_mean"]) * scale * p[f"{name}.weight"] + p[f"{name}.bias"]

    x = jax.nn.relu(norm(conv(x, p["conv1.weight"], padding=1), "bn1"))
    for stage, width in ((1, 16), (2, 32), (3, 64)):
        for block in range(3):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = jax.nn.relu(norm(conv(x, p[f"{name}.conv1.weight"], stride, 1), f"{name}.bn1"))
            y = norm(conv(y, p[f"{name}.conv2.weight"], padding=1), f"{name}.bn2")
            if stride == 2:
                x = jnp.pad(x[:, ::2, ::2], [(0, 0)] * 3 + [(width // 4, width // 4)])
            x = jax.nn.relu(x + y)
    return x.mean((1, 2)) @ p["linear.weight"] + p["linear.bias"]


NETWORKS: dict[str, Callable[[Params, Params, Any], Any]] = {"lenet": lenet, "mlp": mlp, "resnet20": resnet20}


def from_torch(name: str, arrays: dict[str, np.ndarray]) -> tuple[Params, Params]:
    """Parameters and constants in this library's layout: channels last, matrices transposed."""
    params, constants = {}, {}
    for key, w in arrays.items():
        if key.startswith("__") or key.endswith("num_batches_tracked"):
            continue
        if "running" in key:
            constants[key] = jnp.asarray(w)
            continue
        if w.ndim == 4:
            w = w.transpose(2, 3, 1, 0)
        elif w.ndim == 2:
            if name == "lenet" and key == "fc1.weight":  # its columns count channels first; the features here, last
                channels = arrays["conv2.weight"].shape[0]
                side = round((w.shape[1] / channels) ** 0.5)
                w = w.reshape(-1, channels, side, side).transpose(0, 2, 3, 1).reshape(len(w), -1)
            w = w.T
        params[key] = jnp.asarray(w)
    return params, constants


class Kernel:
    """One network and its inputs; tiles compiled a method and size."""

    def __init__(self) -> None:
        self.compiled: dict[tuple[str, int], Any] = {}
        self.step: Any = None

    def load(self, network: str, path: str) -> dict[str, Any]:
        """Read weights and inputs; answers how far this network's outputs are from those that came with them."""
        arrays = dict(np.load(path))
        self.compiled.clear()
        self.step = None
        self.params, constants = from_torch(network, arrays)
        x = arrays["__x"]
        self.x = jnp.asarray(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x)
        self.f = lambda params, x: NETWORKS[network](params, constants, x)
        outputs = self.f(self.params, self.x[: len(arrays["__outputs"])])
        self.outputs = outputs.shape[-1]
        error = float(np.linalg.norm(outputs - arrays["__outputs"]) / np.linalg.norm(arrays["__outputs"]))
        return {"error": error, "versions": {"jax": jax.__version__, "neural-tangents": nt.__version__}}

    def tile(self, method: str, tile: int, repeats: int = 1) -> dict[str, Any]:
        """Compile one tile; answers its compile time and the predicted time of the whole kernel."""
        f = nt.empirical_ntk_fn(self.f, trace_axes=(-1,), vmap_axes=0, implementation=METHODS[method])
        function = jax.jit(f)
        a, b = self.x[:tile], None if tile >= len(self.x) else self.x[-tile:]  # one tile: the library shares one side
        start = time.perf_counter()
        function(a, b, self.params).block_until_ready()
        compiled = time.perf_counter() - start
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            function(a, b, self.params).block_until_ready()
            seconds.append(time.perf_counter() - start)
        self.compiled[method, tile] = function
        pieces = -(-len(self.x) // tile)
        return {"compile": compiled, "tile": min(seconds), "predicted": min(seconds) * pieces * (pieces + 1) / 2}

    def kernel(self, method: str, tile: int, n: int, out: str | None = None) -> dict[str, Any]:
        """The kernel of the first `n` inputs, padded to whole tiles; written to `out` if given. Needs `tile` first."""
        function = self.compiled[method, tile]
        padding = [(0, -n % tile)] + [(0, 0)] * (self.x.ndim - 1)
        pieces = list(jnp.pad(self.x[:n], padding).reshape(-1, tile, *self.x.shape[1:]).block_until_ready())
        start = time.perf_counter()
        K = np.empty((len(pieces) * tile,) * 2, np.float32)
        for i, a in enumerate(pieces):
            for j, b in enumerate(pieces[i:], start=i):
                block = np.asarray(function(a, None if len(pieces) == 1 else b, self.params))
                K[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile] = block
                if i != j:
                    K[j * tile : (j + 1) * tile, i * tile : (i + 1) * tile] = block.T
        seconds = time.perf_counter() - start
        if out is not None:
            np.save(out, K[:n, :n] * self.outputs)
        return {"seconds": seconds}

    def linear_step(self, steps: int, targets: str, outputs: str) -> dict[str, Any]:
        """Seconds per step of SGD with momentum on the linearised network, compiled; its outputs at the start go to `outputs`.

        `targets` is the file of what it is trained towards. The first call compiles.
        """
        y = jnp.asarray(np.load(targets))
        if self.step is None:
            linear = nt.linearize(self.f, self.params)
            slope = jax.grad(lambda params, x: jnp.mean((linear(params, x) - y) ** 2))

            def one(params: Params, speed: Params, x: Any) -> tuple[Params, Params]:  # x comes anew: nothing is folded
                speed = jax.tree_util.tree_map(lambda v, g: MOMENTUM * v + g, speed, slope(params, x))
                return jax.tree_util.tree_map(lambda p, v: p - RATE * v, params, speed), speed

            self.step = jax.jit(one)
            np.save(outputs, np.asarray(linear(self.params, self.x)))
            still = jax.tree_util.tree_map(jnp.zeros_like, self.params)
            self.state = jax.block_until_ready(self.step(self.params, still, self.x))
        start = time.perf_counter()
        for _ in range(steps):
            self.state = self.step(*self.state, self.x)
        jax.block_until_ready(self.state)
        return {"seconds": (time.perf_counter() - start) / steps}


if __name__ == "__main__":
    peer = Kernel()
    serve({"load": peer.load, "tile": peer.tile, "kernel": peer.kernel, "linear_step": peer.linear_step})
