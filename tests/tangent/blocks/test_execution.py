"""Ways to run a block through the network and back: the same numbers, the same model afterwards, the fastest one chosen."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import ntkscope as ns
from ntkscope.tangent.blocks import backward, replaced_calls
from ntkscope.tangent.blocks import convolution as quick_convolution
from ntkscope.tangent.blocks import execution as execution
from ntkscope.tangent.blocks.execution import AHEAD, BLOCK, LONGEST, PLAIN, USES, Execution, ExecutionMode, Stopwatch
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.tape import cotangents, watch
from oracles.against import expected, smallest_budget
from oracles.closeness import assert_kernel_close
from oracles.unchanged import assert_unchanged, state
from strategies.architectures import FAMILIES, few, many
from strategies.modes import WAYS, compared, harvested
from strategies.networks import Case, Net, noise, randomize
from strategies.schedules import everything_deferred, planned_as
from zoo.catalogue import CASES as ZOO

N = 11


def convolutional() -> Case:
    """A pooled network whose `view` would fail on images with their channels innermost."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = torch.max_pool2d(torch.relu(m.b(torch.relu(m.a(x)))), 2)
        return m.head(h.view(len(h), -1))

    parts = {"a": nn.Conv2d(3, 6, 3, padding=1), "b": nn.Conv2d(6, 4, 3, stride=2, groups=2, padding=1)}
    return randomize(Net(run, **parts, head=nn.Linear(16, 5))), noise(N, 3, 8, 8)


def residual() -> Case:
    """Batch norms with running statistics, a strided shortcut, an average at the end."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = torch.relu(m.norm_a(m.a(x)))
        h = torch.relu(m.short(h) + m.norm_b(m.c(torch.relu(m.norm_b(m.b(h))))))
        return m.head(h.mean((2, 3)))

    parts: dict[str, nn.Module] = {"a": nn.Conv2d(1, 4, 3, padding=1), "norm_a": nn.BatchNorm2d(4)}
    parts |= {"b": nn.Conv2d(4, 8, 3, 2, 1, bias=False), "c": nn.Conv2d(8, 8, 3, 1, 1), "norm_b": nn.BatchNorm2d(8)}
    return randomize(Net(run, **parts, short=nn.Conv2d(4, 8, 1, 2), head=nn.Linear(8, 4))), noise(N, 1, 8, 8)


def mlp() -> Case:
    return randomize(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.GELU(), nn.Linear(6, 3))), noise(
        N, 5
    )


def attention() -> Case:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return randomize(Net(lambda m, x: m.head(m.body(x).mean(1)), body=body, head=nn.Linear(8, 3))), noise(N, 4, 8)


def tied() -> Case:
    """One weight in a convolution, in its transposed one, and in a module that is called twice."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = torch.tanh(m.a(m.twice(torch.tanh(m.twice(x)))))
        h = torch.nn.functional.conv_transpose2d(h, m.a.weight)
        return m.head(h.flatten(1))

    parts = {"a": nn.Conv2d(2, 3, 2), "twice": nn.Conv2d(2, 2, 3, padding=1)}
    return randomize(Net(run, **parts, head=nn.Linear(2 * 25, 4))), noise(N, 2, 5, 5)


CASES: list[Callable[[], Case]] = [convolutional, residual, mlp, attention, tied]
everywhere = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
every_way = pytest.mark.parametrize("mode", WAYS.values(), ids=WAYS)


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[ExecutionMode]:
    """The way of every block that was captured."""
    seen: list[ExecutionMode] = []
    original = backward.capture

    def noted(*args: Any) -> Any:
        made = original(*args)
        seen.append(made.mode)
        return made

    monkeypatch.setattr("ntkscope.tangent.kernel.engine.capture", noted)
    return seen


# -- the same numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [mode for mode in WAYS.values() if mode.flipped], ids=str)
@pytest.mark.parametrize("case", [residual, tied], ids=lambda case: case.__name__)
def test_patches_are_multiplied_where_images_are_small(
    case: Callable[[], Case], mode: ExecutionMode, modes: list[ExecutionMode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick_convolution, "MULTIPLIED", ("cpu",))
    used, multiplied = [], quick_convolution.patches_multiplied

    def noted(*args: Any) -> Tensor:
        used.append(1)
        return multiplied(*args)

    monkeypatch.setattr(quick_convolution, "patches_multiplied", noted)
    model, x = case()
    with harvested(mode, 4):
        found = ns.kernel("trntk0", model, x)
    assert_kernel_close(found.dense(), expected("trntk0", model, x), 1e-10)
    assert used
    assert set(modes) == {mode}


@everywhere
@every_way
def test_the_numbers_of_the_oracle(case: Callable[[], Case], mode: ExecutionMode, modes: list[ExecutionMode]) -> None:
    model, x = case()
    before, formats = state(model), [p.stride() for p in model.parameters()]
    for name, block in (("entk", 0), ("trntk0", 4)):
        with harvested(mode, block):
            found = ns.kernel(name, model, x)
        assert_kernel_close(found.dense(), expected(name, model, x), 1e-10)
        assert found.certificate.checked == found.certificate.blocks == (-(-N // 4) if block else 1)
    assert set(modes) == {mode}  # none was refused
    with harvested(mode), everything_deferred(), planned_as(7, 7, 3, 20_000):
        layered = ns.kernel("trntk0", model, x)
    assert_kernel_close(layered.dense(), found.dense(), 1e-10)
    assert_unchanged(model, before)
    assert [p.stride() for p in model.parameters()] == formats


@pytest.mark.parametrize("case", [convolutional, residual, mlp, attention], ids=lambda case: case.__name__)
def test_heads_share_every_operation_of_a_pass(case: Callable[[], Case]) -> None:
    """None is made for one head after another, but for fused attention, which PyTorch cannot batch; nobody is warned."""
    model, x = case()
    outputs, tape = watch(Subject(model), Batch((x,), {}))
    weights = torch.eye(outputs.shape[1]).to(outputs)[:, None].expand(-1, len(x), -1)
    calls = []
    for several in (False, True):
        with warnings.catch_warnings(), profile(activities=[ProfilerActivity.CPU]) as watched:
            warnings.simplefilter("error")
            found = cotangents(outputs, weights if several else weights[0], tape.calls, several=several)
        calls.append({event.key: event.count for event in watched.key_averages() if "_backward" in event.key})
    assert calls[0]
    for name, count in calls[1].items():
        fused = "scaled_dot_product" in name
        assert fused or count <= 2 * calls[0].get(name, 0), name  # itself, and what it is made of
    for position, each in enumerate(found):
        one = cotangents(outputs, weights[1], tape.calls)[position]
        if one is not None:
            torch.testing.assert_close(each[1], one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@few
def test_random_architectures(family: str, data: st.DataObject) -> None:
    agrees(family, data)


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@many
def test_many_random_architectures(family: str, data: st.DataObject) -> None:
    agrees(family, data)


def agrees(family: str, data: st.DataObject) -> None:
    drawn = data.draw(FAMILIES[family], label="architecture")
    mode = data.draw(st.sampled_from([mode for mode in WAYS.values() if mode != PLAIN]), label="way")
    block = data.draw(st.integers(0, len(drawn.x)), label="block")
    with harvested(mode, block):
        found = ns.kernel("entk", drawn.model, drawn.x)
    assert_kernel_close(found.dense(), expected("entk", drawn.model, drawn.x), 1e-10)


def test_float32_and_shorter_numbers() -> None:
    model, x = residual()
    truth = expected("trntk0", model, x)
    for precision, tolerance in (("exact", 1e-5), ("bf16", 2e-2)):
        with harvested(ExecutionMode(True, 16)):
            found = ns.kernel("trntk0", model.float(), x.float(), precision=precision)
        assert_kernel_close(found.dense(), truth, tolerance)


def test_autocast_casts_what_it_casts() -> None:
    """A product in float32 would be another network's, and too near for a certificate to tell."""
    model, x = ZOO["autocast_with_its_cache"].make()
    plain = ns.kernel("trntk0", model, x).dense()
    with harvested(WAYS["split"]):
        found = ns.kernel("trntk0", model, x).dense()
    assert_kernel_close(found, plain, 1e-6)


def test_channels_are_innermost_where_a_convolution_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, every test of that way could pass on a way that does nothing."""
    seen: list[bool] = []
    original = replaced_calls.channels_last

    def noted(function: Any, *rest: Any) -> Any:
        made = original(function, *rest)
        if function is torch.nn.functional.conv2d:
            seen.append(made.is_contiguous(memory_format=torch.channels_last))
        return made

    monkeypatch.setattr(replaced_calls, "channels_last", noted)
    model, x = convolutional()
    with harvested(ExecutionMode(channels_last=True)):
        ns.kernel("trntk0", model, x)
    assert seen == [True, True]


def test_outputs_share_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    original = backward.cotangents

    def noted(outputs: Tensor, weights: Tensor, calls: Any, *, several: bool = False) -> Any:
        passes.append(len(weights) if several else 1)
        return original(outputs, weights, calls, several=several)

    monkeypatch.setattr(backward, "cotangents", noted)
    model, x = convolutional()
    for together, counts in ((1, [1] * 5), (2, [2, 2, 1]), (16, [5])):
        passes.clear()
        with harvested(ExecutionMode(together=together)):
            ns.kernel("trntk0", model, x)
        assert passes == counts


# -- what does not go that way -------------------------------------------------------------------------------------


class Unbatched(torch.autograd.Function):
    """A function whose backward pass looks at a number, which one pass for several outputs cannot."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return cotangents[0] * (3 if float(cotangents[0].sum()) != 0.123 else 0)


def test_an_operation_that_cannot_be_batched(modes: list[ExecutionMode]) -> None:
    parts = {"a": nn.Linear(5, 4), "b": nn.Linear(4, 3)}
    model, x = randomize(Net(lambda m, x: m.b(Unbatched.apply(m.a(x))), **parts)), noise(N, 5)
    with harvested(ExecutionMode(together=16), 4):
        found = ns.kernel("trntk0", model, x)
    assert_kernel_close(found.dense(), expected("trntk0", model, x), 1e-10)
    assert found.coverage.share("func") == 0
    assert set(modes) == {PLAIN}


@pytest.mark.parametrize("kind", ["tensor", "module"])
def test_hooks_see_one_gradient_at_a_time(kind: str) -> None:
    shapes: list[torch.Size] = []

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        if kind == "tensor":
            h.register_hook(lambda grad: shapes.append(grad.shape))
        return m.b(torch.tanh(h))

    model = randomize(Net(run, a=nn.Linear(5, 4), b=nn.Linear(4, 3)))
    if kind == "module":
        model.b.register_full_backward_hook(lambda module, inner, outer: shapes.append(outer[0].shape))
    x = noise(N, 5)
    with harvested(ExecutionMode(together=16)):
        found = ns.kernel("trntk0", model, x)
    assert_kernel_close(found.dense(), expected("trntk0", model, x), 1e-10)
    assert {len(shape) for shape in shapes} == {2}


def wrong(function: Any, args: Any, kwargs: Any) -> Any:
    made = function(*args, **kwargs)
    return made * 1.01 if function is torch.nn.functional.conv2d else made


def test_a_way_with_other_numbers_is_found_by_the_certificate(
    monkeypatch: pytest.MonkeyPatch, modes: list[ExecutionMode]
) -> None:
    monkeypatch.setattr(replaced_calls, "channels_last", wrong)
    model, x = convolutional()
    with harvested(ExecutionMode(channels_last=True), 4):
        found = ns.kernel("trntk0", model, x)
    assert_kernel_close(found.dense(), expected("trntk0", model, x), 1e-10)
    assert found.coverage.execution == ""
    assert found.coverage.share("func") == 0
    assert modes[-1] == PLAIN


def test_a_wrong_pass_back_of_several_outputs_is_found_when_its_block_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = backward.cotangents

    def off(outputs: Tensor, weights: Tensor, calls: Any, *, several: bool = False) -> Any:
        made = original(outputs, weights, calls, several=several)
        return [value if value is None else value * 1.01 for value in made] if several else made

    monkeypatch.setattr(backward, "cotangents", off)
    model, x = mlp()
    with harvested(ExecutionMode(together=16), 4):
        found = ns.kernel("trntk0", model, x)
    assert_kernel_close(found.dense(), expected("trntk0", model, x), 1e-10)
    assert found.coverage.share("func") == 0


# -- which one is chosen -------------------------------------------------------------------------------------------

FLIPPED, BOTH = ExecutionMode(flipped=True), ExecutionMode(True, flipped=True)
COSTS = {PLAIN: 1.0, ExecutionMode(True): 0.4, FLIPPED: 0.9, BOTH: 0.6}
COSTS |= {ExecutionMode(together=5): 1.2, ExecutionMode(True, 5): 0.5, ExecutionMode(together=5, flipped=True): 1.1}


class Device:
    """Blocks take as long as their way says, whatever they really take; the first of a way takes ten times as long."""

    def __init__(self, costs: dict[ExecutionMode, float], floor: float = 0.1) -> None:
        self.costs, self.floor = costs, floor
        self.ran: list[ExecutionMode] = []
        self.vetted: list[ExecutionMode] = []

    def vet(self, mode: ExecutionMode) -> float | None:
        self.vetted.append(mode)
        return self.floor if mode in self.costs else None

    def call(self, found: Execution, blocks: int, n: int = 256) -> list[ExecutionMode]:
        """One call of so many blocks; the ways they were run."""
        found.begin(blocks)
        made = []
        for _ in range(blocks):
            mode = found.next(n, self.vet)
            spent = self.costs[mode] * n * (1 if mode in self.ran else 10)
            self.ran.append(mode)
            made.append(mode)
            found.took(mode, n, lambda spent=spent: spent)  # type: ignore[misc]
        return made


def test_the_first_blocks_are_the_trial_and_the_fastest_stays() -> None:
    found, device = Execution(True, convolutions=True, heads=5), Device(COSTS)
    tried = [mode for mode in (PLAIN, ExecutionMode(True), FLIPPED, BOTH) for _ in range(USES)]
    assert device.call(found, 11) == [*tried, *[ExecutionMode(True)] * (11 - len(tried))]
    assert found.settled
    assert device.call(found, 3) == [ExecutionMode(True)] * 3
    assert device.vetted == [
        ExecutionMode(True),
        FLIPPED,
        BOTH,
    ]  # what it measured shows that launches are not what a block costs
    assert "channels last" in str(found)
    assert "400 ms per sample" in str(found)


LAST, FIVE, FLIPPED_FIVE = (
    ExecutionMode(True),
    ExecutionMode(together=5),
    ExecutionMode(together=5, flipped=True),
)
CHOICES: dict[str, tuple[dict[ExecutionMode, float], float, ExecutionMode, set[ExecutionMode]]] = {
    "where launches rule, outputs share passes": (
        {PLAIN: 1.0, LAST: 0.9, FLIPPED: 1.1, BOTH: 1.0, FIVE: 0.2, FLIPPED_FIVE: 0.25, ExecutionMode(True, 5): 0.3},
        0.8 * 256,
        FIVE,
        {PLAIN, LAST, FLIPPED, BOTH, FIVE, FLIPPED_FIVE, ExecutionMode(True, 5)},
    ),
    "flipped kernels are faster, and a layout that is far slower is left": (
        {PLAIN: 1.0, LAST: 1.5, FLIPPED: 0.7, FIVE: 0.6, FLIPPED_FIVE: 0.5},
        0.8 * 256,
        FLIPPED_FIVE,
        {PLAIN, LAST, FLIPPED, FIVE, FLIPPED_FIVE},
    ),
    "flipped kernels are slower for one output, and faster for several": (
        {PLAIN: 1.0, LAST: 1.5, FLIPPED: 1.1, FIVE: 0.6, FLIPPED_FIVE: 0.3},
        0.8 * 256,
        FLIPPED_FIVE,
        {PLAIN, LAST, FLIPPED, FIVE, FLIPPED_FIVE},
    ),
    "hardly faster": ({PLAIN: 1.0, LAST: 0.99}, 0.1, PLAIN, {PLAIN, LAST}),
    "other numbers": ({PLAIN: 1.0}, 0.1, PLAIN, {PLAIN}),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_the_fastest_of_those_worth_a_trial_is_taken(choice: str) -> None:
    costs, floor, best, tried = CHOICES[choice]
    found, device = Execution(True, convolutions=True, heads=5), Device(costs, floor)
    device.call(found, 16)
    assert found.mode == best
    assert found.settled
    assert set(device.ran) == tried
    assert all(device.ran.count(mode) == USES for mode in tried - {best})


SPLIT, SPLIT_FIVE = ExecutionMode(flipped=True, split=True), ExecutionMode(together=5, flipped=True, split=True)


@pytest.mark.parametrize(
    ("costs", "best"),
    [
        ({PLAIN: 1.0, SPLIT: 0.5, FIVE: 0.4, SPLIT_FIVE: 0.3}, SPLIT_FIVE),
        (
            {PLAIN: 1.0, SPLIT: 1.1, LAST: 1.5, FLIPPED: 0.9, FIVE: 0.8, SPLIT_FIVE: 0.75, FLIPPED_FIVE: 0.7},
            FLIPPED_FIVE,
        ),
        ({PLAIN: 1.0, SPLIT: 1.1, LAST: 1.5, FLIPPED: 1.1, FIVE: 0.8, SPLIT_FIVE: 0.2, FLIPPED_FIVE: 0.7}, SPLIT_FIVE),
    ],
    ids=["faster", "slower", "slower for one output"],
)
def test_products_are_split_where_that_is_faster(costs: dict[ExecutionMode, float], best: ExecutionMode) -> None:
    found, device = Execution(True, convolutions=True, heads=5, splits=True), Device(costs, 0.8 * 256)
    device.call(found, 16)
    assert found.mode == best
    assert set(device.ran) == set(costs)


def test_few_blocks_are_not_tried_on_until_there_were_several_calls() -> None:
    found, device = Execution(True, convolutions=True, heads=1), Device(COSTS)
    calls = [device.call(found, 1)[0] for _ in range(16)]
    assert calls[:AHEAD] == [PLAIN] * AHEAD
    assert calls[-1] == ExecutionMode(True)
    assert calls.count(PLAIN) <= AHEAD + USES


def test_what_few_samples_say_is_not_kept_for_long_blocks() -> None:
    found, device = Execution(True, convolutions=True, heads=5), Device(COSTS)
    device.call(found, 16, n=2)
    assert found.settled
    assert device.call(found, 2, n=BLOCK) == [PLAIN] * 2  # compared again
    device.call(found, 12, n=BLOCK)
    assert found.length == BLOCK
    assert found.settled
    assert device.call(found, 1, n=4 * BLOCK) == [found.mode]  # and that stays


def test_blocks_get_longer_once_a_way_is_chosen_unless_that_is_slower() -> None:
    for slower in (False, True):
        found, device = Execution(True, convolutions=True), Device(dict(COSTS))
        assert found.longest(2048) == BLOCK
        assert found.longest(50_000) == LONGEST
        device.call(found, 12)
        assert found.longest(2048) == LONGEST
        if slower:
            device.costs[ExecutionMode(True)] = 0.6
        device.call(found, USES, n=LONGEST)
        assert found.longest(2048) == (BLOCK if slower else LONGEST)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ways are compared here, in blocks of four, by a clock that says what each costs."""
    monkeypatch.setattr(execution, "BLOCK", 4)
    original, stop, last = Engine._run, Stopwatch.stop, [PLAIN]

    def run(self: Engine, batch: Any, mode: ExecutionMode, *rest: Any) -> Any:
        last[0] = mode
        return original(self, batch, mode, *rest)

    def stopped(self: Any) -> None:
        stop(self)
        self.cost = COSTS[last[0]]

    monkeypatch.setattr(Engine, "_run", run)
    monkeypatch.setattr(Stopwatch, "stop", stopped)
    monkeypatch.setattr(Stopwatch, "seconds", lambda watch: watch.cost)
    with compared():
        yield


def test_a_kept_engine_is_probed_and_tried_once(trial: None, modes: list[ExecutionMode], probes: list[int]) -> None:
    model, x = convolutional()
    x = torch.cat([x, x + 1, x - 1])
    tangent = ns.Tangent(model)
    truth = expected("trntk0", model, x)
    for _ in range(2):
        assert_kernel_close(tangent.kernel("trntk0", x).dense(), truth, 1e-10)
    first = len(modes)
    K = tangent.kernel("trntk0", x)
    assert_kernel_close(K.dense(), truth, 1e-10)
    assert set(modes[first:]) == {ExecutionMode(True)}
    assert len(modes[first:]) == K.certificate.blocks == K.certificate.checked  # and nothing was run but blocks
    assert len(probes) == 1
    assert K.coverage.execution.startswith("channels last, one output per backward pass")
    assert "execution: channels last" in str(K.coverage)
    assert "the model's own layout" in K.coverage.execution


def test_another_layout_that_changes_numbers_is_not_used_after_the_trial(
    trial: None, modes: list[ExecutionMode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaced_calls, "channels_last", wrong)
    model, x = convolutional()
    x = torch.cat([x, x + 1, x - 1])
    K = ns.kernel("trntk0", model, x)
    assert_kernel_close(K.dense(), expected("trntk0", model, x), 1e-10)
    assert 1 <= modes.count(ExecutionMode(True)) <= torch.get_num_threads()  # on the probed samples, by each thread


def test_a_kept_engine_compares_ways_before_its_first_block(trial: None, modes: list[ExecutionMode]) -> None:
    model, x = convolutional()
    tangent = ns.Tangent(model)
    K = tangent.kernel("trntk0", x[:4])  # one block, which alone would not be worth a trial
    assert_kernel_close(K.dense(), expected("trntk0", model, x[:4]), 1e-10)
    assert K.coverage.execution.startswith("channels last, one output per backward pass")
    assert K.certificate.checked == K.certificate.blocks == 1
    assert modes.count(PLAIN) >= USES
    seen = len(modes)
    tangent.kernel("trntk0", x[:4])
    assert set(modes[seen:]) == {ExecutionMode(True)}
    modes.clear()
    ns.kernel("trntk0", model, x[:4])  # a single call: nothing is tried that pays only later
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "DEVICES", ("cuda",))
        assert ns.Tangent(model).kernel("trntk0", x).coverage.execution == ""  # nothing is tried on a CPU
    assert set(modes) == {PLAIN}


def test_ways_that_fail_in_the_comparison_are_not_used(
    trial: None, modes: list[ExecutionMode], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = convolutional()
    inner = Engine._run

    def run(self: Engine, batch: Any, mode: ExecutionMode, *rest: Any) -> Any:
        if mode.channels_last and len(batch) > 3:
            raise torch.OutOfMemoryError("made up")
        return inner(self, batch, mode, *rest)

    monkeypatch.setattr(Engine, "_run", run)
    tangent = ns.Tangent(model)
    for _ in range(2):
        K = tangent.kernel("trntk0", x)
        assert_kernel_close(K.dense(), expected("trntk0", model, x), 1e-10)
    assert not any(mode.channels_last for mode in modes[-2:])


def test_no_comparison_where_memory_is_scarce(
    trial: None, modes: list[ExecutionMode], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = convolutional()
    inner = Engine.compare_modes
    monkeypatch.setattr(Engine, "compare_modes", lambda self, x, room: inner(self, x, 7.9 * self.footprint.passing))
    K = ns.Tangent(model).kernel("trntk0", x[:4])  # four samples in half of the room, as before each block
    assert_kernel_close(K.dense(), expected("trntk0", model, x[:4]), 1e-10)
    assert modes == [PLAIN]


class ByStrides(nn.Module):
    """Reads its features by strides, but only those of longer blocks than the probe's."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.readout = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(3 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.features(x))
        return self.readout(h.as_strided((len(h), 48), (48, 1)) if len(h) > 3 else h.flatten(1))


@pytest.mark.parametrize("certify", ["every", "sampled", False])
def test_a_network_that_reads_strides_in_long_blocks_is_right(
    trial: None, modes: list[ExecutionMode], certify: str | bool
) -> None:
    model = ByStrides().double()
    x = noise(48, 2, 4, 4)
    K = ns.kernel("trntk0", model, x, certify=certify)
    assert_kernel_close(K.dense(), expected("trntk0", model, x), 1e-10)
    if certify != "every":
        assert set(modes) == {PLAIN}


# -- memory --------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_not_done() -> None:
    mode = ExecutionMode(True, 10)
    assert mode.within(1000, 100, 100) == mode
    assert mode.within(999, 100, 100) == ExecutionMode(True, 5)  # two passes, as many in each
    assert mode.within(99, 100, 100) == ExecutionMode(False, 1)
    assert mode.within(0, 100, 100) == PLAIN
    assert ExecutionMode(False, 10, True).within(1000, 100, 100) == ExecutionMode(False, 10, True)
    assert ExecutionMode(False, 10, True).within(999, 100, 100) == ExecutionMode(False, 5, True)
    assert ExecutionMode(True, 1, True).within(300, 100, 100) == ExecutionMode(
        True, 1, True
    )  # kernels, flipped ones, both innermost
    assert ExecutionMode(True, 1, True).within(299, 100, 100) == ExecutionMode(True)
    assert ExecutionMode(False, 1, True).within(99, 100, 100) == PLAIN


def test_the_smallest_budget_is_that_of_the_plain_way(modes: list[ExecutionMode]) -> None:
    model, x = convolutional()
    truth = expected("trntk0", model, x)

    def made(memory: int) -> Any:
        return ns.kernel("trntk0", model, x, memory=memory)

    smallest = smallest_budget(made)
    with harvested(ExecutionMode(True, 16), 2**10):
        assert smallest_budget(made) == smallest
        assert_kernel_close(made(smallest).dense(), truth, 1e-10)
        assert ExecutionMode(True, 16) not in modes
        assert_kernel_close(made(2**30).dense(), truth, 1e-10)
    assert modes[-1] == ExecutionMode(True, 16)


# -- on a GPU ------------------------------------------------------------------------------------------------------

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@functools.cache
def truths(case: Callable[[], Case]) -> Tensor:
    return expected("trntk0", *case())


@on_cuda
@everywhere
@every_way
def test_the_numbers_of_the_oracle_on_cuda(
    case: Callable[[], Case], mode: ExecutionMode, modes: list[ExecutionMode]
) -> None:
    truth = truths(case)
    model, x = (part.cuda() for part in case())
    formats = [p.stride() for p in model.parameters()]
    for block in (0, 4):
        with harvested(mode, block):
            found = ns.kernel("trntk0", model, x)
        assert_kernel_close(found.dense().cpu(), truth, 1e-10)
    assert set(modes) == {mode}
    assert [p.stride() for p in model.parameters()] == formats


@on_cuda
@every_way
def test_precisions_on_cuda(mode: ExecutionMode) -> None:
    torch.manual_seed(0)
    model, x = ns.models.build("resnet20").eval().cuda(), torch.randn(24, 3, 32, 32).cuda()
    true = ns.kernel("trntk0", model, x, dtype=torch.float64).dense()
    for precision in ("exact", "tf32", "bf16", "fp16"):
        with harvested(mode, 10):
            found = ns.kernel("trntk0", model, x, precision=precision).dense()
        assert float((found - true).norm() / true.norm()) <= 2e-3


@on_cuda
@pytest.mark.parametrize("precision", ["exact", "bf16"])
def test_a_kept_engine_settles_on_cuda(precision: str, modes: list[ExecutionMode]) -> None:
    torch.manual_seed(0)
    model, x = ns.models.build("resnet20").eval().cuda(), torch.randn(3000, 3, 32, 32).cuda()
    tangent = ns.Tangent(model, precision=precision, memory="16GiB")
    kernels = [tangent.kernel("trntk0", x) for _ in range(4)]
    for K in kernels[1:]:
        assert float((K.dense() - kernels[0].dense()).norm() / kernels[0].dense().norm()) <= 1e-3
        assert "ms per sample" in K.coverage.execution
    blocks = kernels[-1].certificate.blocks
    settled = modes[-blocks:]
    assert len({(mode.channels_last, mode.flipped) for mode in settled}) == 1
    assert (
        len({mode.together > 1 for mode in settled}) == 1
    )  # how many share a pass is a matter of a block's length, too


@on_cuda
def test_a_budget_is_kept_on_cuda() -> None:
    torch.manual_seed(0)
    model, x = ns.models.build("resnet20").eval().cuda(), torch.randn(600, 3, 32, 32).cuda()
    for mode in (WAYS["plain"], WAYS["flipped"], WAYS["all"]):
        for memory in (2**31, 2**32):
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            with harvested(mode, LONGEST):
                ns.kernel("trntk0", model, x, memory=memory)
            assert torch.cuda.max_memory_allocated() - before <= memory
