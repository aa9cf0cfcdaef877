"""Wrong use, refused before anything is computed: got, expected, remedy."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from ntkscope.core import NtkscopeError, NumericalError, UsageError, generator
from ntkscope.core.random import kept_randomness, reseed
from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.model.arithmetic import largest_number
from ntkscope.tangent.model.autograd import compare, dense, pull
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.randomness import Draws, Extreme
from ntkscope.tangent.model.state import ours
from ntkscope.tangent.model.subject import Subject

LOG = logging.getLogger(__name__)
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
DROPOUTS = (nn.modules.dropout._DropoutNd,)
# of a batch and of one alone
OUTPUTS = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}
# what rounding leaves of gradients that cancel
CANCELLED = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
MIXED = (
    "a sample's outputs change with the other samples of the batch (batch statistics, attention or comparisons across samples),"
    " so a kernel between two samples is not defined; use running statistics or rewrite the model so that each sample is"
    " computed alone"
)
RANDOM = (
    "the model gives other outputs when it is run twice on the same inputs, or draws from a random generator of its own"
    " (functional dropout, noise); expected a deterministic one: call model.eval() or switch the noise off"
)
# by a model
BROKEN = (RuntimeError, TypeError, LookupError, AttributeError, ValueError, AssertionError, ArithmeticError)
SHAPED = (
    "the model {what}, so its samples are not computed one by one; expected outputs of shape (n, c) for any n, also 1: look for"
    " .squeeze() without an axis, fixed batch sizes, or statistics over the batch"
)


def check_mode(model: nn.Module) -> None:
    """BatchNorm in training mode, and dropout that is active, make a kernel mean nothing."""
    for name, module in model.named_modules():
        if not getattr(module, "training", False):  # a frozen script has no mode
            continue
        where = f'{type(module).__name__} (at "{name}")'
        if isinstance(module, BATCH_NORMS):
            raise UsageError(
                f"{where} is in training mode, where one sample's output depends on the whole batch; expected evaluation"
                " mode: call model.eval() first"
            )
        dropout = module.p if isinstance(module, DROPOUTS) else getattr(module, "dropout", 0.0)
        if isinstance(dropout, float) and dropout > 0:
            raise UsageError(
                f"{where} drops units at random (p = {dropout}), so there is no one kernel; expected evaluation mode: call"
                " model.eval() first"
            )


def check_placement(where: torch.device, moved: bool, batch: Batch) -> None:
    """Inputs must be where the model is, unless a device was asked for (`moved`)."""
    for tensor in batch.tensors():
        if tensor.device != where and not moved:
            raise UsageError(
                f"got inputs on {tensor.device} for a model on {where}; move them with x.to('{where}') or pass device= to have"
                " both moved"
            )


def check_inputs_finite(batch: Batch) -> None:
    for tensor in batch.tensors():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = (
                (~torch.isfinite(tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None])).any(1).nonzero().flatten()
            )
            raise NumericalError(
                f"inputs hold NaN or infinity in {len(bad)} samples, the first at index {int(bad[0])}; clean or drop them"
            )


def first_outputs(subject: Subject, batch: Batch) -> Tensor:
    """The outputs of a few samples; failures are reported in terms of the inputs."""
    try:
        outputs = subject(batch)
    except NtkscopeError:
        raise
    except BROKEN as error:
        raise UsageError(_explain(subject, batch, error)) from error
    if outputs.dim() != 2 or len(outputs) != len(batch):
        raise UsageError(
            f"the model's outputs have shape {tuple(outputs.shape)} for {len(batch)} samples; expected (n, c) ="
            f" ({len(batch)}, number of outputs): flatten or pool them in a wrapping module (one output an input is"
            " .unsqueeze(-1))"
        )
    if not outputs.is_floating_point():
        raise UsageError(
            f"the model's outputs are {outputs.dtype}; expected floating-point ones that can be differentiated: return the"
            " scores, not the predicted classes"
        )
    if outputs.shape[1] == 0:
        raise UsageError("the model has no outputs: expected shape (n, c) with c at least 1")
    check_finite(subject, batch, outputs)
    compare(subject, batch)
    return outputs


def check_differentiable(subject: Subject, outputs: Tensor) -> None:
    """Outputs without a graph have no gradients, and a kernel of zeros says nothing."""
    if subject.leaves and not outputs.requires_grad:
        raise UsageError(
            f"the outputs of {type(subject.original).__name__} do not depend on the chosen parameters ("
            f"{', '.join(list(subject.leaves)[:4])}{' …' if len(subject.leaves) > 4 else ''}) as far as autograd can see;"
            " expected outputs with a graph: look for @torch.no_grad(), .detach() or .data in forward, or choose other params="
        )


def check_used(subject: Subject, batch: Batch) -> float:
    """Chosen parameters that no output depends on give a kernel of zeros. How large gradients are, for random signs."""
    outputs = subject(batch)
    signs = torch.randint(0, 2, outputs.shape, generator=generator(0, "used")).to(outputs) * 2 - 1
    grads = pull(subject, outputs, signs, list(subject.leaves.values()))
    if subject.leaves and all(grad is None for grad in grads):
        raise UsageError(
            f"no output depends on the chosen parameters ({', '.join(list(subject.leaves)[:4])}), so their kernel is zero;"
            " choose parameters that the forward pass uses with params="
        )
    return _largest(grads)


def _largest(grads: list[Tensor | None]) -> float:
    return largest_number(*(dense(grad, grad) for grad in grads if grad is not None))


def check_sum(subject: Subject, batch: Batch, heads: Heads) -> None:
    """The sum of outputs that always add up to the same (a softmax) has no gradient but for rounding."""
    chosen, leaves = Heads(heads.outputs)(subject(batch)), list(subject.leaves.values())
    signs = torch.randn(chosen.shape, generator=generator(0, "sum"), dtype=torch.float64).to(chosen)
    sizes = [_largest(pull(subject, chosen, weights, leaves)) for weights in (torch.ones_like(chosen), signs)]
    if chosen.shape[1] > 1 and sizes[1] > 0 and sizes[0] <= subject.loosest(CANCELLED) * sizes[1]:
        raise UsageError(
            f"the outputs of {type(subject.original).__name__} add up to a constant (a softmax, centred outputs), so the"
            " gradient of their sum is zero but for rounding, and so are 'pntk' and 'proj-pntk'; use 'trntk', choose some"
            " outputs=, or return the logits"
        )


def check_randomness(subject: Subject, batch: Batch, outputs: Tensor) -> None:
    """A model whose outputs depend on chance is refused; one that draws but answers the same is not."""
    tolerance = 0.0 if subject.device.type == "cpu" else 1e-6
    first = outputs.detach()
    with kept_randomness([subject.device] if subject.device.type == "cuda" else []):
        for seed in (1, 2):
            reseed(seed)
            before = torch.get_rng_state()
            if differs(subject(batch).detach(), first, tolerance):
                raise UsageError(RANDOM)
        drew = subject.draws or not torch.equal(torch.get_rng_state(), before)
        known = _seeded(subject, batch) if drew else set()
        for high in (False, True) if drew else ():
            reseed(3)
            with Extreme(high, known):
                if differs(subject(batch).detach(), first, subject.loosest(OUTPUTS)):
                    raise UsageError(RANDOM)
    if subject.draws:
        raise UsageError(RANDOM)


def _seeded(subject: Subject, batch: Batch) -> set[bytes]:
    """The random states that a model draws from whatever came before, because it seeds the generator itself."""
    found = []
    for seed in (1, 2):
        reseed(seed)
        with Draws() as draws:
            subject(batch)
        found.append(draws.states)
    known = found[0] & found[1]
    if known:
        subject.changes.add("the global random state")  # so that one thread runs it
    return known


def differs(left: Tensor, right: Tensor, tolerance: float) -> bool:
    """Whether any entry differs by more than that part of the largest."""
    if left.shape != right.shape:
        return True
    scale = float(right.abs().max()) or 1.0
    return not float((left - right).abs().max()) <= tolerance * scale


def _explain(subject: Subject, batch: Batch, error: Exception) -> str:
    shapes = ", ".join(f"{tuple(t.shape)} {t.dtype}".replace("torch.", "") for t in batch.tensors())
    wanted = str(subject.dtype).replace("torch.", "")
    floats = [t for t in batch.tensors() if t.is_floating_point()]
    message = f"the model could not be run on inputs of shape {shapes}: {error}"
    if not floats and any(word in str(error) for word in ("dtype", "type", "Long", "Int", "Byte", "not implemented")):
        return f"{message}. Got integer inputs for a model that computes in {wanted}: convert them with x.to(torch.{wanted})"
    if any(t.dtype != subject.dtype for t in floats):
        return f"{message}. The model computes in {wanted}: convert the inputs with x.to(torch.{wanted}) or pass dtype="
    return f"{message}. Check that model(x) runs on these inputs"


def check_finite(subject: Subject, batch: Batch, outputs: Tensor) -> None:
    """Non-finite outputs are traced to the first layer that made them."""
    if bool(torch.isfinite(outputs).all()):
        return
    bad = (~torch.isfinite(outputs)).any(1).nonzero().flatten()
    layer = first_nonfinite(subject, batch[bad[:1]])
    raise NumericalError(
        f"the model gives NaN or infinity for {len(bad)} of {len(batch)} samples (first at index {int(bad[0])} of its"
        f" block); the first layer to do so is {layer}: check its weights and the scale of its inputs"
    )


def first_nonfinite(subject: Subject, batch: Batch) -> str:
    """The name of the first module whose output holds NaN or infinity."""
    found: list[str] = []
    names = {module: name for name, module in subject.model.named_modules()}

    def look(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor) and not found and not bool(torch.isfinite(output).all()):
            found.append(f'{type(module).__name__} (at "{names[module]}")')

    handles = [module.register_forward_hook(ours(look)) for module in names]
    try:
        subject(batch)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "outside every module"


def check_independence(subject: Subject, batch: Batch, outputs: Tensor) -> None:
    """A sample's outputs must not depend on the samples beside it."""
    tolerance = subject.loosest(OUTPUTS) * 10
    outputs = outputs.detach()
    for i in range(len(batch)):
        try:
            alone = subject(batch[i : i + 1]).detach()
        except NtkscopeError:
            raise
        except BROKEN as error:
            raise UsageError(SHAPED.format(what=f"cannot be run on one sample alone ({error})")) from error
        if alone.shape != outputs[i : i + 1].shape:
            what = f"gives outputs of shape {tuple(alone.shape)} for one sample"
            raise UsageError(SHAPED.format(what=what))
        if differs(alone, outputs[i : i + 1], tolerance):
            raise UsageError(MIXED)
    if 2 * float((outputs - outputs[:1]).abs().max()) < float(outputs.abs().max()):
        _check_inputs_apart(subject, batch)


def _check_inputs_apart(subject: Subject, batch: Batch) -> None:
    """The same by gradients: beside a large constant, what the others add to outputs is lost in rounding.

    Only inputs of real numbers have gradients.
    """
    asking = batch.map(lambda t: t.detach().requires_grad_(t.is_floating_point()))
    leaves, outputs = [t for t in asking.tensors() if t.requires_grad], subject(asking)
    own = others = 0.0
    for i in range(len(batch) if leaves and outputs.requires_grad else 0):
        weights = torch.zeros_like(outputs)
        weights[i] = torch.randn(outputs.shape[1], generator=generator(0, "apart", i), dtype=torch.float64).to(outputs)
        try:
            grads = pull(subject, outputs, weights, leaves)
        except RuntimeError as error:
            LOG.info("the outputs cannot be differentiated by the inputs (%r)", error)
            return
        for grad in grads:
            rows = [0.0] * len(batch) if grad is None else grad.reshape(len(batch), -1).double().norm(dim=1).tolist()
            own, others = max(own, rows.pop(i)), max([others, *rows])
    if others > subject.loosest(OUTPUTS) * own:
        raise UsageError(MIXED)
