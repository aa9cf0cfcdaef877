"""Settings: one object or keywords, for one network, an ensemble and a search; the same numbers each way."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.training_problems import classes_part, small_net
from ntkscope.core import Part, UsageError
from ntkscope.core.errors import RecordError
from ntkscope.training import Settings, fit, fit_ensemble, search
from ntkscope.training.settings import NOT_TOLD

SETTINGS = Settings(lr=0.1, optimizer="adam", epochs=3, batch_size=5, loss="cross_entropy", schedule={1: 0.5})
KEYWORDS: dict[str, Any] = {"lr": 0.1, "optimizer": "adam", "epochs": 3, "batch_size": 5, "schedule": {1: 0.5}}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_settings_and_keywords_train_the_same_network() -> None:
    part = classes_part()
    one = fit(small_net(), part, SETTINGS).final()
    assert same(one.params, fit(small_net(), part, **KEYWORDS).final().params)
    assert same(
        fit(small_net(), part, SETTINGS, seed=4).final().params,
        fit(small_net(), part, **KEYWORDS, seed=4).final().params,
    )
    assert SETTINGS.seed == 0
    together = fit_ensemble(small_net, part, SETTINGS, seeds=2)
    assert same(together.params, fit_ensemble(small_net, part, **KEYWORDS, seeds=2).params)


def test_a_search_takes_settings() -> None:
    def build(seed: int) -> nn.Module:
        return small_net(seed)

    part, grid = classes_part(), {"lr": [0.01, 0.1]}
    rest = {name: value for name, value in KEYWORDS.items() if name != "lr"}
    found = search(build, part, grid, SETTINGS, folds_count=2)
    assert [row.scores for row in found.rows] == [
        row.scores for row in search(build, part, grid, folds_count=2, **rest).rows
    ]
    with pytest.raises(UsageError, match="expected seed= beside the grid"):
        search(build, part, {"seed": [1, 2]}, SETTINGS)


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        (None, {"lr": 0.1, "step": 3}, "got step=, .* did you mean 'steps'"),
        (None, {"lr": 0.1, "zzz": 3}, "expected one of lr, optimizer"),
        (None, {"steps": 3}, "got no learning rate"),
        (SETTINGS, {"steps": 3}, "exactly one"),
        (SETTINGS, {"autocast": "int8"}, "expected one of .bfloat16."),
    ],
)
def test_wrong_settings_say_what_was_expected(settings: Settings | None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit(small_net(), classes_part(), settings, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"on_step": print},
        {"channels_last": True},
        {"autocast": "bfloat16"},
        {"seed": 3},
        {"drop_last": True},
    ],
)
def test_ensembles_refuse_what_only_fit_has(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"fit_ensemble got {next(iter(options))}, which only fit has"):
        fit_ensemble(small_net, classes_part(), SETTINGS, seeds=2, **options)


def test_what_a_caller_uses_up_is_kept() -> None:
    options = {"betas": (0.8, 0.9)}
    settings = Settings(lr=0.1, steps=4, optimizer="adam", optimizer_options=options, snapshots=iter([1, 3]))
    options["betas"] = (0.0, 0.0)
    assert settings.update_rule()["options"] == {"betas": (0.8, 0.9)}
    for _ in range(2):
        assert [snapshot.step for snapshot in fit(small_net(), classes_part(), settings)] == [1, 3, 4]


def test_every_setting_is_told_to_a_store_or_found_in_the_network_and_the_data(tmp_path: Path) -> None:
    assert set(SETTINGS.describe()) == {f.name for f in fields(Settings)} - set(NOT_TOLD)
    plain = classes_part()
    part = Part(plain.x, plain.y, {"w": torch.full((len(plain),), 1 / len(plain), dtype=plain.x.dtype)})
    fit(small_net(), part, SETTINGS, store=tmp_path / "run").final()
    for options in ({"weights": "w"}, {"dtype": torch.float64}, {"snapshots": 2}):
        with pytest.raises(RecordError, match="another run"):
            fit(small_net(), part, SETTINGS, store=tmp_path / "run", **options)
    fit(small_net(), part, SETTINGS, store=tmp_path / "run", measure=False).final()
