"""Modes: who learns when, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from contracts.training_problems import classes_part, small_net
from ntkscope.core import Snapshot, UsageError
from ntkscope.core.errors import UnknownName
from ntkscope.training import Every, Phase, first_last, fit, reg, reinit, stop_first

PART = classes_part(20)
FIRST, LAST = ("0.weight", "0.bias"), ("4.weight", "4.bias")


def epochs(mode: object, **options: object) -> list[Snapshot]:
    settings = {"lr": 1.0, "optimizer": "adadelta", "epochs": 3, "batch_size": 5, "snapshots": Every(1, "epoch")}
    return list(fit(small_net(), PART, mode=mode, **{**settings, **options}))


def moved(a: Snapshot, b: Snapshot, names: tuple[str, ...]) -> list[bool]:
    return [not torch.equal(a.params[name], b.params[name]) for name in names]


def test_reg_is_what_fit_does_anyway() -> None:
    plain, named = epochs(None), epochs("reg")
    assert not any(moved(plain[-1], named[-1], FIRST + LAST))
    assert all(moved(plain[1], plain[2], FIRST + LAST))


def test_stop_first_freezes_the_first_layer_after_one_epoch() -> None:
    regular, stopped = epochs("reg"), epochs("stop-first")
    assert not any(moved(regular[1], stopped[1], FIRST + LAST))
    assert not any(moved(stopped[1], stopped[3], FIRST))
    assert all(moved(stopped[1], stopped[2], LAST))


def test_first_last_trains_one_then_the_other() -> None:
    seen = epochs("first-last")
    assert all(moved(seen[0], seen[1], FIRST))
    assert not any(moved(seen[0], seen[1], LAST))
    assert not any(moved(seen[1], seen[3], FIRST))
    assert all(moved(seen[1], seen[3], LAST))


def test_reinit_redraws_the_last_layer_from_its_own_law() -> None:
    stopped, drawn = epochs("stop-first"), epochs("reinit")
    assert not any(moved(stopped[1], drawn[1], FIRST + LAST))
    assert not any(moved(drawn[1], drawn[3], FIRST))
    # the layer just after the switch: one update of adadelta away from a fresh draw in ±1/√7
    settings = {"lr": 0.0, "optimizer": "sgd", "batch_size": 5, "mode": "reinit"}
    end = fit(small_net(), PART, steps=5, **settings).final()
    start = small_net()
    assert not torch.equal(end.params["4.weight"], start[4].weight)
    assert end.params["4.weight"].abs().max() <= 7**-0.5
    other = fit(small_net(), PART, steps=5, seed=1, **settings).final()
    assert not torch.equal(end.params["4.weight"], other.params["4.weight"])


def test_reinit_from_a_fresh_network() -> None:
    def fresh(seed: int) -> nn.Module:
        net = small_net(seed)
        nn.init.constant_(net[4].weight, 7.0)
        return net

    end = fit(small_net(), PART, lr=0.0, steps=5, batch_size=5, mode=reinit(fresh=fresh)).final()
    assert bool((end.params["4.weight"] == 7).all())


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "adadelta"])
def test_redrawn_parameters_start_with_a_fresh_optimizer_state(optimizer: str) -> None:
    settings = {"optimizer": optimizer, "lr": 0.01, "steps": 6, "batch_size": 5, "snapshots": [4]}
    options = {"momentum": 0.9} if optimizer == "sgd" else {}
    final = fit(small_net(), PART, mode="reinit", **settings, **options).final()
    if optimizer != "sgd":
        assert float(final.optimizer["4.weight"]["step"]) == 2
        assert float(final.optimizer["0.weight"]["step"]) == 4


def test_modes_compose_and_select_by_pattern() -> None:
    mode = (*first_last(epochs=1)[:1], Phase(train=("*.bias",), epochs=1), Phase(freeze=("first.weight", "4.*")))
    seen = epochs(mode)
    assert moved(seen[0], seen[1], FIRST + LAST) == [True, True, False, False]
    assert moved(seen[1], seen[2], FIRST + LAST) == [False, True, False, True]
    assert moved(seen[2], seen[3], FIRST + LAST) == [False, True, False, False]
    assert len(reg() + stop_first()) == 3


def test_resetting_the_optimizer_forgets_everything() -> None:
    mode = (Phase(epochs=1), Phase(reset_optimizer=True))
    final = fit(small_net(), PART, optimizer="adam", lr=0.01, epochs=2, batch_size=5, mode=mode).final()
    assert float(final.optimizer["0.weight"]["step"]) == 4


def test_bad_modes_are_told_before_training() -> None:
    with pytest.raises(UnknownName, match="did you mean 'stop-first'"):
        epochs("stop-frist")
    with pytest.raises(UsageError, match=r"'readout' selects no parameter .* 0.weight"):
        fit(small_net(), PART, lr=0.1, steps=1, mode=[Phase(freeze=("readout",))])
    with pytest.raises(UsageError, match="only the last phase"):
        fit(small_net(), PART, lr=0.1, steps=1, mode=reg() + reg())
    with pytest.raises(UsageError, match="without phases"):
        fit(small_net(), PART, lr=0.1, steps=1, mode=[])
    with pytest.raises(UsageError, match="epochs=0; expected a whole number ≥ 1"):
        Phase(epochs=0)

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(5, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w

    with pytest.raises(UsageError, match=r"reset_parameters.*fresh="):
        fit(Bare(), PART, lr=0.1, epochs=2, mode="reinit").final()
