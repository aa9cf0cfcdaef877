"""Machines of the network's own outputs: what is fitted, that it is nearer to the network than a fit of labels, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import DenseGram
from ntkscope.machines import KernelPair, fit_machine, kernel_pairs, rate
from ntkscope.surrogates import KernelRidgeLOO
from xray.small import blobs, trained


def pair(n: int = 20, m: int = 7, seed: int = 0) -> KernelPair:
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(n + m, 6)))
    train = DenseGram(x[:n] @ x[:n].T, symmetric=True)
    return KernelPair("linear", train, DenseGram(x[n:] @ x[:n].T))


def network(n: int = 20, classes: int = 3) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, classes)) * 3 + 10


def test_logits_are_centred_and_fitted_by_ridge() -> None:
    made, logits = pair(), network()
    machine = fit_machine(made, None, target="logits", network=logits)
    centred = logits - logits.mean(1, keepdims=True)
    expected = KernelRidgeLOO().fit(made.train, centred)
    np.testing.assert_allclose(machine.logits(made.test), expected.logits(made.test), rtol=0, atol=1e-12)
    np.testing.assert_allclose(machine.logits(made.test).sum(1), 0, atol=1e-9)  # stays centred: the fit is linear
    assert (machine.target, machine.alpha, machine.edge) == ("logits", expected.alpha_, expected.edge_)
    shifted = fit_machine(made, None, target="logits", network=logits + np.arange(20.0)[:, None])
    np.testing.assert_allclose(shifted.logits(made.test), machine.logits(made.test), rtol=0, atol=1e-9)


def test_probabilities_are_fitted_and_logits_are_their_logarithm() -> None:
    made, logits = pair(), network()
    machine = fit_machine(made, None, target="probabilities", network=logits)
    np.testing.assert_allclose(machine.scores(made.test).sum(1), 1, atol=1e-9)
    assert np.isfinite(machine.logits(made.test)).all()
    scores = machine.scores(made.test)
    assert (machine.logits(made.test).argmax(1) == scores.argmax(1)).all()


def test_a_class_without_training_inputs_has_the_networks_logit() -> None:
    """The network has an opinion of classes that no training item is in; a fit of labels has none."""
    made, logits = pair(), network(classes=4)
    machine = fit_machine(made, np.zeros(20), target="logits", network=logits, classes=4)
    assert (np.abs(machine.logits(made.test)) < 50).all()


def test_it_is_nearer_to_the_network_than_a_fit_of_labels() -> None:
    train, test = blobs(n=120)
    _, model = trained(train)
    own, other = (model(part.x).detach().double().numpy() for part in (train, test))
    y, held = train.y.numpy(), test.y.numpy()
    for made in kernel_pairs({"trntk": {}, "trntk0": {}}, model.eval(), train.x, test.x):
        labels = fit_machine(made.scaled(), y, alpha=1e-4)
        logits = fit_machine(made.scaled(), y, target="logits", network=own)
        before, after = (rate(m.logits(made.scaled().test), other, held, bootstrap=0).figures for m in (labels, logits))
        assert before.wrong == after.wrong > 0
        assert after.tau > before.tau + 0.05
        assert after.r2_logits > max(0.7, before.r2_logits)
        assert after.agreement_wrong >= before.agreement_wrong
        if made.name == "trntk0":  # the readout's share of it spans the logits
            assert after.tau > 0.95
            assert after.r2_logits > 0.99
            assert after.agreement_wrong >= 0.9
        low, high = after.intervals["agreement_wrong"]
        assert low < after.agreement_wrong <= high


def test_a_network_that_is_always_right_has_no_errors_to_agree_on() -> None:
    logits = np.eye(3)[np.arange(6) % 3]
    found = rate(logits, logits, np.arange(6) % 3, bootstrap=0).figures
    assert found.wrong == 0
    assert np.isnan(found.agreement_wrong)
    assert found.intervals["agreement_wrong"] == (0.0, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "logit"}, "got target='logit'; expected one of 'labels'"),
        ({"network": None}, "without network="),
        ({"network": network(19)}, r"shape \(19, 3\); expected \(20, 3\)"),
        ({"classes": 4}, r"shape \(20, 3\); expected \(20, 4\)"),
        ({"network": network(classes=1)}, "at least two classes"),
        ({"surrogate": "glm"}, "expected a regression, such as 'ridge-loo'"),
    ],
)
def test_refusals(change: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_machine(pair(), None, **{"target": "logits", "network": network(), **change})


def test_logits_that_are_not_finite_are_refused() -> None:
    spoiled = network()
    spoiled[3, 1] = np.nan
    for target in ("logits", "probabilities"):
        with pytest.raises(NumericalError, match=r"1 NaN or infinite values, the first at \(3, 1\)"):
            fit_machine(pair(), None, target=target, network=spoiled)


def test_degenerate_networks_and_kernels_give_finite_answers() -> None:
    made = pair()
    constant = fit_machine(made, None, target="logits", network=np.tile([3.0, 1.0], (20, 1)))
    np.testing.assert_allclose(constant.logits(made.test), np.tile([1.0, -1.0], (7, 1)), atol=1e-12)
    zeros = KernelPair("zeros", DenseGram(torch.zeros(20, 20), symmetric=True), DenseGram(torch.zeros(7, 20)))
    own = network()
    expected = (own - own.mean(1, keepdims=True)).mean(0)
    answer = fit_machine(zeros, None, target="logits", network=own).logits(zeros.test)
    np.testing.assert_allclose(answer, np.tile(expected, (7, 1)), atol=1e-12)
    two = fit_machine(pair(2, 3), None, target="logits", network=network(2))
    assert np.isfinite(two.logits(pair(2, 3).test)).all()
