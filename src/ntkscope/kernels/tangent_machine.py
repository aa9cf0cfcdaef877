"""`kernel`: one kernel of a model. `Tangent`: a model that was probed once and answers many questions about its gradients."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ntkscope.core import Params, UsageError
from ntkscope.core.arguments import as_device
from ntkscope.core.checked import check_arguments, checked
from ntkscope.core.sizes import parse_bytes
from ntkscope.kernels.registry import KERNELS, Kept, Request
from ntkscope.linalg import Gram
from ntkscope.tangent.blocks.heads import OutputSketch, as_heads, chosen_outputs
from ntkscope.tangent.blocks.precision import PRECISIONS, Precision
from ntkscope.tangent.certify.auditor import Certify
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.batches import Batch, as_batch
from ntkscope.tangent.model.selection import Selection
from ntkscope.tangent.model.subject import quiet
from ntkscope.tangent.operators.jacobian import Jacobian


class Tangent:
    """The tangent features of one model with one choice of outputs and parameters, kept between calls.

    `sample`: inputs to probe the model with now; left out, the first call does it with its own. Weights may change in place
    between calls. Another mode, other modules or another graph are noticed, and the model is probed again.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> tangent = Tangent(model)
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> tangent.kernel("trntk0", x).dense()
        tensor([[1., 1.],
                [1., 2.]])
        >>> tangent.features(x)["weight"].shape
        torch.Size([2, 1, 1, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        sample: Any = None,
        *,
        outputs: Sequence[int] | set[int] | int | OutputSketch | None = None,
        params: Selection = None,
        precision: Annotated[str, PRECISIONS] = "exact",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        memory: str | int | float = "2GiB",
        certify: Certify = "every",
    ) -> None:
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise UsageError(f"got dtype={dtype!r}; expected a floating-point torch.dtype such as torch.float64")
        as_device(device, auto=False)
        self.model, self.params, self.precision = model, params, precision
        if not (outputs is None or isinstance(outputs, OutputSketch)):
            outputs = chosen_outputs(outputs)
        self.outputs: list[int] | OutputSketch | None = outputs
        self.dtype, self.device, self.certify = dtype, device, certify
        self.memory = parse_bytes(memory)
        self._kept = Kept(lasting=True)
        if sample is not None:
            request = self._request("trntk0", sample, None, {})
            with quiet(request.place(), self.model):
                request.engines().probe(request.x1)

    def _once(self) -> Tangent:
        """This, for a single call: nothing is done that pays only later."""
        self._kept.lasting = False
        return self

    @checked
    def kernel(
        self,
        name: str,
        x1: Any,
        x2: Any = None,
        *,
        memory: str | int | float | None = None,
        store: str | os.PathLike[str] | None = None,
        executor: Any = None,
        progress: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> Gram:
        """The kernel `name` between `x1` and `x2`, as `ntkscope.kernel` gives it."""
        make = KERNELS[name]
        if store is None and executor is not None:
            raise UsageError(
                "got executor= without store=; expected a folder that the workers write tiles to: pass store="
            )
        known = [p.name for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY]
        unknown = [key for key in options if key not in known]
        if unknown:
            raise UsageError(
                f"kernel {name!r} has no option {', '.join(unknown)}; its options: {', '.join(known) or 'none'}"
            )
        if "precision" in known:
            options = {"precision": self.precision, **options}
        options = check_arguments(make, options)
        chosen = {"store": None if store is None else os.fspath(store), "executor": executor, "progress": progress}
        if memory is not None:
            chosen["memory"] = parse_bytes(memory)
        request = self._request(name, x1, x2, {**chosen, "seed": seed})
        with quiet(request.place(), self.model):
            return make(request, **options)

    def features(self, x: Any) -> Params:
        """`∂f_c(x_i)/∂θ` of every chosen parameter, (n, c, *shape), for all samples at once."""
        request = self._request("trntk0", x, None, {})
        with quiet(request.place(), self.model):
            engines = request.engines()
            rounding = Precision("exact", engines.subject.dtype)
            attempts = engines.attempts(request.x1, as_heads(self.outputs), full=False, precision=rounding)
            while True:
                with attempts:
                    return _features(attempts.engine(), request.x1)

    def jvp(self, x: Any, direction: Params) -> Tensor:
        """`J v`, (n, c): how the outputs at `x` change along a direction in parameter space."""
        return self._jacobian(x).jvp(direction)

    def vjp(self, x: Any, cotangent: Tensor) -> Params:
        """`Jᵀ u` for `u` of shape (n, c): a gradient for every chosen parameter."""
        return self._jacobian(x).vjp(cotangent)

    def _jacobian(self, x: Any) -> Jacobian:
        if isinstance(self.outputs, OutputSketch):
            raise UsageError("got outputs=OutputSketch(...) for a Jacobian product; expected the numbers of outputs")
        request = self._request("trntk0", x, None, {})
        with quiet(request.place(), self.model):
            return Jacobian.of(request.engines().subject, request.x1, as_heads(self.outputs), certify=self.certify)

    def _request(self, name: str, x1: Any, x2: Any, options: dict[str, Any]) -> Request:
        guards.check_mode(self.model)
        made: dict[str, Any] = {"memory": self.memory, "progress": False, "seed": 0, **options}
        request = Request(
            name=next(key for key in KERNELS if key.lower() == name.lower()),
            model=self.model,
            x1=as_batch(x1, self.model),
            x2=None if x2 is None else as_batch(x2, self.model),
            outputs=self.outputs,
            params=self.params,
            dtype=self.dtype,
            device=self.device,
            certify=self.certify,
            kept=self._kept,
            **made,
        )
        request.check_inputs()
        return request


def kernel(
    name: str,
    model: nn.Module,
    x1: Any,
    x2: Any = None,
    *,
    outputs: Sequence[int] | set[int] | int | OutputSketch | None = None,
    params: Selection = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    precision: Annotated[str, PRECISIONS] = "exact",
    memory: str | int | float = "2GiB",
    store: str | os.PathLike[str] | None = None,
    executor: Any = None,
    progress: bool = False,
    seed: int = 0,
    certify: Certify = "every",
    **options: Any,
) -> Gram:
    """The kernel `name` of `model` between `x1` and `x2` (`x1` with itself when left out).

    `outputs`: which outputs count (all), or `OutputSketch(k)` for k random combinations of them. `params`: which parameters
    (all that require a gradient): a glob or globs on their names, "last" for the last affine layer, or a predicate. `dtype`,
    `device`: compute there instead of where the model is. `precision`: "exact", "float32" (plain products), or on a GPU "tf32",
    "bf16", "fp16". `memory`: bytes held besides model and inputs, the result included. `seed`: of random projections.
    `store`: a folder or fsspec URL to keep the kernel in, tile by tile; tiles that are there already are not computed
    again, and the Gram reads them when they are needed. `executor`: a Dask client (or its scheduler's address) whose workers
    compute the tiles. `certify`: which blocks are checked against plain autograd on the model itself: "every" one, "sampled"
    (one in eight), or False; `K.certificate` says what the checks found. Further options belong to the kernel. The model is
    never changed.

    To compute several kernels of one model, keep a `Tangent`: it probes the model once.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> kernel("trntk0", model, x).dense()
        tensor([[1., 1.],
                [1., 2.]])
    """
    KERNELS[name]  # an unknown name is refused before anything is looked at
    tangent = Tangent(model, outputs=outputs, params=params, dtype=dtype, device=device, memory=memory, certify=certify)
    if precision != "exact":
        options["precision"] = precision
    return tangent._once().kernel(name, x1, x2, store=store, executor=executor, progress=progress, seed=seed, **options)


def _features(engine: Engine, x: Batch) -> Params:
    backward_pass = engine.capture(x)
    leaves = engine.subject.leaves
    made = {
        name: torch.zeros(backward_pass.n, engine.width, leaf.numel(), dtype=leaf.dtype, device=leaf.device)
        for name, leaf in leaves.items()
    }
    for piece in engine.pieces:
        engine.feature(backward_pass, piece)
        values = backward_pass.func[piece.name] if piece.method == "func" else backward_pass.gradient(piece)
        each = piece.numbers // max(1, piece.stop - piece.start)
        made[piece.name][:, :, piece.start * each : piece.start * each + piece.numbers] = values
    engine.settle(backward_pass)
    return {name: value.unflatten(2, leaves[name].shape or (1,)).detach() for name, value in made.items()}
