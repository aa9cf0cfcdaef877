"""Neural collapse by its definitions: covariances (p, p), an eigendecomposition cut at its known rank, loops over pairs."""

from __future__ import annotations

from itertools import combinations

import numpy as np


def covariances(H: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Σ_W, Σ_B (p, p) and the class means (c, p), every class with the same weight."""
    classes = np.unique(y)
    means = np.array([H[y == c].mean(0) for c in classes])
    within, between = np.zeros((H.shape[1],) * 2), np.zeros((H.shape[1],) * 2)
    for c, mean in zip(classes, means):
        away = H[y == c] - mean
        within += away.T @ away / len(away) / len(classes)
        between += np.outer(mean - means.mean(0), mean - means.mean(0)) / len(classes)
    return within, between, means


def nc1(H: np.ndarray, y: np.ndarray, rank: int) -> float:
    """tr(Σ_W Σ_B⁺) / C, the pseudo-inverse of this rank."""
    within, between, means = covariances(H, y)
    values, vectors = np.linalg.eigh(between)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    return float(np.trace(within @ (vectors / values) @ vectors.T)) / len(means)


def nc2(H: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    _, _, means = covariances(H, y)
    means = means - means.mean(0)
    norms = [np.linalg.norm(mean) for mean in means]
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in combinations(means, 2)]
    return float(np.std(norms) / np.mean(norms)), float(np.mean([abs(c + 1 / (len(means) - 1)) for c in cosines]))


def cdnv(H: np.ndarray, y: np.ndarray) -> float:
    found = []
    for a, b in combinations(np.unique(y), 2):
        first, second = H[y == a], H[y == b]
        spread = np.square(first - first.mean(0)).sum(1).mean() + np.square(second - second.mean(0)).sum(1).mean()
        found.append(spread / 2 / np.square(first.mean(0) - second.mean(0)).sum())
    return float(np.mean(found))


def nearest(H: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    classes = np.unique(y)
    means = np.array([H[y == c].mean(0) for c in classes])
    return np.array([classes[np.argmin([np.linalg.norm(x - mean) for mean in means])] for x in at])
