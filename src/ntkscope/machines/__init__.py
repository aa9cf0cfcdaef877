"""Kernel machines: a kernel between training and test inputs, the surrogate fitted on it, their cost, and its faithfulness."""

from ntkscope.core.checked import check_room
from ntkscope.machines.computing import Computed, joined, kernel_pairs, parts
from ntkscope.machines.last_layer import LastLayer, retrain_last_layer, solve_last_layer
from ntkscope.machines.machine import KernelMachine, fit_machine
from ntkscope.machines.pair import KernelPair
from ntkscope.machines.rates import kernel_seconds, measure_rates
from ntkscope.machines.rating import Rating, other_measures, rate

__all__ = [
    "Computed",
    "KernelMachine",
    "KernelPair",
    "LastLayer",
    "Rating",
    "fit_machine",
    "joined",
    "kernel_pairs",
    "kernel_seconds",
    "measure_rates",
    "other_measures",
    "parts",
    "rate",
    "retrain_last_layer",
    "solve_last_layer",
]

check_room(__name__, classes="KernelPair")
