"""What a record says of its checks: read whatever it holds, never better than it is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from contracts.view import ALLOWED, read
from ntkscope.core import Certificate
from ntkscope.report.certificates import NAMES, Checks, sentence
from report.fixtures.xray import HOSTILE, certificates

GOOD = Certificate(1e-7, 1e-3, checked=3, blocks=3, alone=3)


def kept(*certificates_: Certificate) -> dict[str, Any]:
    return {"certificates": {f"k{n}": {"train": one.to_json()} for n, one in enumerate(certificates_)}}


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_a_kernel_add_up_and_only_whole_checks_are_called_checked(seed: int) -> None:
    draw = random.Random(seed)
    parts = []
    for _ in range(draw.randint(1, 5)):
        blocks = draw.randint(1, 9)
        checked = draw.choice([0, blocks, draw.randint(0, blocks)])
        parts.append(Certificate(draw.random() * 1e-4 * bool(checked), 1e-3, checked, blocks, checked))
    checks = Checks.of({"certificates": {"k": {str(n): part.to_json() for n, part in enumerate(parts)}}})
    whole = checks.by_kernel["k"]
    assert whole.worst == max(part.worst for part in parts)
    assert (whole.checked, whole.blocks) == (sum(p.checked for p in parts), sum(p.blocks for p in parts))
    expected = "checked" if whole.checked == whole.blocks else "partly checked" if whole.checked else "not checked"
    assert checks.state == expected
    said = " ".join(checks.lines())
    assert ("not checked" in said) == (expected == "partly checked")
    assert ("was compared" in said) == (expected == "not checked")


@pytest.mark.parametrize(
    "broken",
    [
        None,
        3,
        "text",
        [],
        {},
        {"blocks": "many"},
        {"blocks": 3, "checked": True},
        {"blocks": 3, "checked": 4},
        {"blocks": -1},
        {"blocks": 3, "checked": 3, "worst": "small"},
        {"blocks": 3, "checked": 3, "worst": float("nan")},
        {"blocks": 3, "checked": 3, "fell_back": "a.weight"},
        {"blocks": 3, "checked": 3, "changes": 4},
        {"blocks": 3, "checked": 3, "against": ["autograd"]},
    ],
)
def test_what_cannot_be_read_is_named_and_never_counts_as_checked(broken: Any) -> None:
    for parts in ({"train": broken}, broken):
        checks = Checks.of({"certificates": {"k0": {"train": GOOD.to_json()}, "odd": parts}})
        assert checks.missing == ("odd",)
        assert checks.state == "partly checked"
        assert "These kernels have no complete certificate: odd." in checks.lines()[-1]
        read(checks.statement() or "")
    assert Checks.of({"certificates": broken}).statement() is None


def test_kernels_of_the_record_without_a_certificate_are_named() -> None:
    arrays = [
        "kernels.k0.train",
        "kernels.k0.test",
        "kernels.initial.ck.train",
        "kernels.k0.test_diagonal",
        "labels.train",
    ]
    checks = Checks.of(kept(GOOD), arrays)
    assert checks.missing == ("k0", "initial.ck")  # of k0 the training part alone was certified
    assert checks.state == "partly checked"
    assert "k0, ck, initial network." in checks.lines()[-1]


def test_hostile_names_stay_text_and_long_lists_are_cut() -> None:
    checks = Checks.of({"certificates": certificates([*HOSTILE, *(f"layer.{n}" for n in range(30))])})
    body = f"{checks.statement()}{checks.table()}"
    found = read(body)
    assert found.names <= ALLOWED
    assert found.handlers == []
    assert HOSTILE[0] in "".join(found.text)
    assert f"and {len(HOSTILE) + 30 - NAMES} more" in body


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (
            Certificate(0.0, 1e-8, 1, 1, 1),
            "The one block of gradients agrees with PyTorch's own autograd on your model exactly; 1",
        ),
        (Certificate(2e-9, 1e-8, 1, 8, 1), "1 of 8 blocks of gradients agree with"),
        (Certificate(2e-9, 1e-8, 1, 8, 1), "1 sample was also run alone. The other 7 were not checked."),
        (Certificate(0.0, 1e-8, 0, 1), "None of 1 block of gradients was compared"),
        (Certificate(1e-9, 1e-8, 2, 2, 4, against="single samples"), "agrees with the same samples run alone to 10⁻⁹"),
        (Certificate(1e-9, 1e-8, 2, 2, 4, against="something new"), "agrees with something new to"),
    ],
)
def test_sentences(one: Certificate, words: str) -> None:
    assert words in sentence(one)
