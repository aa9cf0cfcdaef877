"""The cases of all tables, and everything that breaks a law of one."""

from __future__ import annotations

from laws import data_and_models, explain, files, infinite, kernels, linalg, machines, measures, surrogates, training
from laws.laws import LAWS, scale
from laws.table import Case

TABLES = (linalg, measures, surrogates, infinite, explain, machines, kernels, training, data_and_models, files)
CASES: list[Case] = [case for table in TABLES for case in table.CASES]
SEED = 3


def all_broken(case: Case) -> list[str]:
    found = [f"{law}: {broken}" for law, holds in LAWS.items() for broken in holds(case, SEED)]
    return found + [f"scale: {broken}" for exponent in (-200, 200) for broken in scale(case, SEED, exponent)]
