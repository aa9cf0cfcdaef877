"""Kernel machines: a kernel between training and test inputs, the surrogate fitted on it, their cost, and its faithfulness."""

from ntkscope.core.checked import check_room
from ntkscope.machines.computing import joined, kernel_pairs
from ntkscope.machines.last_layer import retrain_last_layer, solve_last_layer
from ntkscope.machines.machine import KernelMachine, fit_machine
from ntkscope.machines.pair import KernelPair
from ntkscope.machines.rates import kernel_seconds, measure_rates
from ntkscope.machines.rating import rate

__all__ = [
    "KernelMachine",
    "KernelPair",
    "fit_machine",
    "joined",
    "kernel_pairs",
    "kernel_seconds",
    "measure_rates",
    "rate",
    "retrain_last_layer",
    "solve_last_layer",
]

check_room(__name__, classes="KernelPair")
