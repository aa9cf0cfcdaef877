"""The cases of all tables, and everything that breaks a law of one."""

from __future__ import annotations

from laws import data_and_models, explain, files, infinite, kernels, linalg, machines, measures, surrogates, training
from laws.laws import LAWS, scale
from laws.table import Case

TABLES = (linalg, measures, surrogates, infinite, explain, machines, kernels, training, data_and_models, files)
CASES: list[Case] = [case for table in TABLES for case in table.CASES]
SEED = 3

# fmt: off
SLOW = {  # half a second and more: `make guard`
    "data.load(digits)", "explain.layer_probe", "explain.mislabelled", "explain.shift",
    "infinite.Activation", "infinite.sphere", "kernels.Tangent",
    "kernels.ck", "kernels.em", "kernels.kernel", "kernels.proj-pntk", "kernels.proj-trntk", "kernels.ptk",
    "linalg.conjugate_gradient", "linalg.estimate_effective_rank", "linalg.lsmr", "linalg.power_law_tail",
    "machines.fit_machine", "machines.kernel_seconds", "machines.measure_rates",
    "machines.rate", "machines.retrain_last_layer", "machines.solve_last_layer", "measures.collapse.collapse",
    "measures.faithfulness.faithfulness",
    "measures.probes.sweep", "measures.regression.output_fidelity", "measures.spectra.classify",
    "measures.spectra.classify_eigenvalues", "models.alexnet", "models.mobilenetv2", "models.poison_cnn",
    "models.resnet18", "models.resnet20", "models.resnet34", "models.resnet56", "surrogates.KernelLogistic",
    "surrogates.KernelRidge", "surrogates.KernelRidgeClassifier", "surrogates.KernelRidgeLOO",
    "surrogates.KernelSVM", "surrogates.KernelSVR", "surrogates.MinimumNorm", "surrogates.MinimumNormClassifier",
    "surrogates.RecursiveFeatureClassifier", "surrogates.RecursiveFeatureMachine", "tangent.Jacobian",
    "tangent.activations", "tangent.feature_matrices", "training.adapt", "training.adaptation", "training.fit",
    "training.fit_ensemble", "training.search",
}
LONG = {  # 7 seconds and more: `make nightly`
    "kernels.entk", "kernels.pntk", "kernels.trntk", "kernels.trntk0",
    "surrogates.KernelGLM", "surrogates.KernelGLM by cross-validation",
}
# fmt: on


def all_broken(case: Case) -> list[str]:
    found = [f"{law}: {broken}" for law, holds in LAWS.items() for broken in holds(case, SEED)]
    return found + [f"scale: {broken}" for exponent in (-200, 200) for broken in scale(case, SEED, exponent)]
