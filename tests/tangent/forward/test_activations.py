"""Activations: against plain hooks, pooled over positions, in stores that resume, and what is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import NtkscopeError, NumericalError, UsageError
from ntkscope.core.errors import MemoryBudgetError, StoreError
from ntkscope.storage import DamageWarning, FeatureStore
from ntkscope.tangent import activations
from strategies.networks import Net


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(inplace=True)),
            nn.Flatten(),
            nn.Linear(36, 5),
        ).eval()


def images(n: int = 11) -> Tensor:
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def hooked(model: nn.Module, x: Any, name: str, grad: bool = False) -> Tensor:
    """What a module puts out in one plain forward pass."""
    seen: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_hook(lambda *call: seen.append(call[2].detach().clone()))
    with torch.set_grad_enabled(grad):
        model(x)
    handle.remove()
    return seen[0]


def test_stages_are_what_plain_hooks_see() -> None:
    model, x = network(), images()
    found = activations(model, x)
    assert list(found) == ["0", "1", "3"]  # the last is the outputs; ReLU and Flatten belong to the layers before them
    for name, rows in found.items():
        torch.testing.assert_close(rows, hooked(model, x, name).flatten(1))
    assert all(not module._forward_hooks for module in model.modules())


def test_the_embedding_kernel_is_the_sum_of_their_products() -> None:
    model, x = network(), images()
    total = torch.zeros(len(x), len(x))
    for rows in activations(model, x).values():
        total += rows @ rows.T
    torch.testing.assert_close(ns.kernel("em", model, x).dense().float(), total, rtol=1e-5, atol=1e-4)


def test_mean_averages_pixels() -> None:
    model, x = network(), images()
    torch.testing.assert_close(activations(model, x, "3", reduce="mean")["3"], hooked(model, x, "3").mean((2, 3)))
    picked = activations(model, x, ["3"], reduce=lambda h: h[:, :, 0, 0])["3"]
    torch.testing.assert_close(picked, hooked(model, x, "3")[:, :, 0, 0])


def test_mean_leaves_padding_out() -> None:
    """Tokens to hidden states, without outputs of its own."""
    torch.manual_seed(0)

    def run(m: Any, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return {"last_hidden_state": m.mix(m.embed(input_ids)).tanh()}

    model: Any = Net(run, embed=nn.Embedding(10, 4), mix=nn.Linear(4, 4)).eval()
    ids = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 9]])
    mask = (ids > 0).long()
    found = activations(model, {"input_ids": ids, "attention_mask": mask}, reduce="mean")
    assert list(found) == ["embed", "mix"]
    states = model.mix(model.embed(ids)).detach()
    for i in range(3):
        torch.testing.assert_close(found["mix"][i], states[i, : int(mask[i].sum())].mean(0))
    with pytest.raises(UsageError, match="no token"):
        activations(model, {"input_ids": ids, "attention_mask": mask * 0}, reduce="mean")


def test_attention_is_seen_inside_its_fused_form() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 2)).eval()
    x = torch.randn(5, 3, 8)
    rows = activations(model, x, ["0.linear1"])["0.linear1"]
    torch.testing.assert_close(rows, hooked(model, x.requires_grad_(), "0.linear1", grad=True).flatten(1))
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_module_called_twice_has_both_outputs_side_by_side() -> None:
    model: Any = Net(lambda m, x: m.out(m.step(m.step(x))), step=nn.Linear(3, 3), out=nn.Linear(3, 2))
    x = torch.randn(6, 3)
    with torch.no_grad():
        once = model.step(x)
        both = torch.cat([once, model.step(once)], 1)
    torch.testing.assert_close(activations(model, x, "step")["step"], both)


def test_short_numbers_become_float32() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).bfloat16()
    assert activations(model, torch.randn(5, 4).bfloat16())["0"].dtype == torch.float32


# -- stores -------------------------------------------------------------------------------------------------------------


def test_a_store_holds_the_same_rows_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network(), images(23)
    monkeypatch.setattr("ntkscope.tangent.forward.activation_stores.CHUNK", 5000)  # several chunks
    monkeypatch.setattr(sys.modules["ntkscope.tangent.forward.activations"], "CPU_BLOCK", 4)
    wanted = activations(model, x)
    stores = activations(model, x, store=tmp_path)
    for name, store in stores.items():
        assert isinstance(store, FeatureStore)
        assert len(store) > 3
        torch.testing.assert_close(torch.cat([store.read(k) for k in range(len(store))]), wanted[name])
    stores["3"].drop(1)
    stores["0"].drop(2)
    again = activations(model, x, store=tmp_path)
    for name, store in again.items():
        assert not store.missing()
        torch.testing.assert_close(store.read(1), wanted[name][store.span(1)])
    chunk = next((tmp_path / "1").glob("features/c/1/*"))
    chunk.write_bytes(bytes(len(chunk.read_bytes())))
    with pytest.warns(DamageWarning, match="chunks 1 are damaged"):
        repaired = activations(model, x, store=tmp_path)["1"]
    torch.testing.assert_close(repaired.read(1), wanted["1"][repaired.span(1)])


def test_a_store_of_another_network_inputs_or_reduction_is_refused(tmp_path: Path) -> None:
    model, x = network(), images()
    activations(model, x, store=tmp_path)
    for other, inputs, options in (
        (network(1), x, {}),
        (model, x + 1, {}),
        (model, x, {"reduce": "mean"}),
        (model, x, {"reduce": lambda h: h.flatten(1)}),
    ):
        with pytest.raises(StoreError, match="holds other features"):
            activations(other, inputs, store=tmp_path, **options)


# -- refusals -----------------------------------------------------------------------------------------------------------


def two(run: Callable[..., Tensor]) -> nn.Module:
    return Net(run, one=nn.Linear(3, 3), two=nn.Linear(3, 2))


def noisy() -> nn.Module:
    return two(lambda m, x: m.two(m.one(x + torch.randn_like(x))))


def mixing() -> nn.Module:
    return two(lambda m, x: m.two(m.one(x - x.mean(0))))


ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
REFUSED: dict[str, Callable[[], Any]] = {
    "twice": lambda: activations(noisy(), ROWS),
    "other samples": lambda: activations(mixing(), ROWS),
    "training mode": lambda: activations(network().train(), images()),
    "no module called 'nope'": lambda: activations(network(), images(), "nope"),
    "expected different names": lambda: activations(network(), images(), []),
    "'flatten', 'mean' or a function": lambda: activations(network(), images(), reduce="max"),
    "expected a tensor of shape": lambda: activations(network(), images(), "3", reduce=lambda h: h.mean()),
    "NaN": lambda: activations(network(), images() * float("nan")),
    "could not be run": lambda: activations(network(), torch.randn(4, 7)),
    "Conv1d": lambda: activations(  # whose positions must be named
        nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(18, 2)), torch.randn(4, 2, 8), "0", reduce="mean"
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_has_no_activations_of_its_own_is_refused(words: str) -> None:
    with pytest.raises(NtkscopeError, match=words):
        REFUSED[words]()


def test_a_layer_that_overflows_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight.fill_(3e38)
    x = torch.cat([torch.zeros(5, 2), torch.ones(1, 2)])
    with pytest.raises(NumericalError, match=r"'0' hold NaN or infinity for 1 samples, the first 5"):
        activations(model, x, "0")


def test_a_budget_that_is_too_small_names_one_that_works() -> None:
    model, x = network(), images(40)
    with pytest.raises(MemoryBudgetError, match="store=") as caught:
        activations(model, x, memory="50kB")
    least = int(re.search(r"\((\d+) bytes\)", str(caught.value))[1])
    activations(model, x, memory=least)
    with pytest.raises(MemoryBudgetError):
        activations(model, x, memory=int(least * 0.99))
