"""Experiments: one published result per file, each with a smoke and a paper scale, verdicts on its claims and figures."""

from ntkscope.experiments import alignment_evolution as alignment_evolution
from ntkscope.experiments import alignment_reversing as alignment_reversing
from ntkscope.experiments import attribution_quality as attribution_quality
from ntkscope.experiments import binary_mnist as binary_mnist
from ntkscope.experiments import chain_monomial as chain_monomial
from ntkscope.experiments import cnn_spectra as cnn_spectra
from ntkscope.experiments import cntk as cntk
from ntkscope.experiments import conjugate_theory as conjugate_theory
from ntkscope.experiments import deep_prediction as deep_prediction
from ntkscope.experiments import early_time as early_time
from ntkscope.experiments import effective_rank as effective_rank
from ntkscope.experiments import faces as faces
from ntkscope.experiments import finetuning_spectra as finetuning_spectra
from ntkscope.experiments import finite_vs_infinite as finite_vs_infinite
from ntkscope.experiments import fold_or_copy as fold_or_copy
from ntkscope.experiments import function_regression as function_regression
from ntkscope.experiments import heavy_tailed_start as heavy_tailed_start
from ntkscope.experiments import hidden_polynomial as hidden_polynomial
from ntkscope.experiments import kernel_cost as kernel_cost
from ntkscope.experiments import layer_collapse as layer_collapse
from ntkscope.experiments import lazy_bounds as lazy_bounds
from ntkscope.experiments import learning_rate_transition as learning_rate_transition
from ntkscope.experiments import linear_width as linear_width
from ntkscope.experiments import linearized_alexnet as linearized_alexnet
from ntkscope.experiments import linearized_lenet as linearized_lenet
from ntkscope.experiments import logistic_regression as logistic_regression
from ntkscope.experiments import max_learning_rate as max_learning_rate
from ntkscope.experiments import multiple_index as multiple_index
from ntkscope.experiments import nfa_centerings as nfa_centerings
from ntkscope.experiments import nfa_evolution as nfa_evolution
from ntkscope.experiments import optimal_depth as optimal_depth
from ntkscope.experiments import orthant_symmetry as orthant_symmetry
from ntkscope.experiments import pca_probes as pca_probes
from ntkscope.experiments import poisoning as poisoning
from ntkscope.experiments import probe_vs_finetune as probe_vs_finetune
from ntkscope.experiments import sentiment_shift as sentiment_shift
from ntkscope.experiments import silent_alignment as silent_alignment
from ntkscope.experiments import simplicity_bias as simplicity_bias
from ntkscope.experiments import surrogate_definitions as surrogate_definitions
from ntkscope.experiments import surrogate_kernels as surrogate_kernels
from ntkscope.experiments import surrogate_resnet as surrogate_resnet
from ntkscope.experiments import surrogate_small as surrogate_small
from ntkscope.experiments import surrogate_text as surrogate_text
from ntkscope.experiments import tangent_or_last_layer as tangent_or_last_layer
from ntkscope.experiments import training_modes as training_modes
from ntkscope.experiments._published import Published
from ntkscope.experiments._runner import run
from ntkscope.experiments.registry import EXPERIMENTS, Experiment, experiment

__all__ = ["EXPERIMENTS", "Experiment", "Published", "experiment", "run"]
