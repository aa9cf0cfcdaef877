"""Linear algebra that knows no networks: Grams, solvers, spectra, principal angles, matrix correlation."""

from ntkscope.core.checked import check_room
from ntkscope.linalg.features import correlation
from ntkscope.linalg.features.pca import pca
from ntkscope.linalg.grams.dense import DenseGram, as_gram
from ntkscope.linalg.grams.factored import FactoredGram
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.grams.operator import OperatorGram
from ntkscope.linalg.grams.tiling import Grid, TileValues
from ntkscope.linalg.random_matrices import spiked, tracy_widom
from ntkscope.linalg.random_matrices.marchenko_pastur import marchenko_pastur
from ntkscope.linalg.random_matrices.spike_test import spike_test
from ntkscope.linalg.solvers.cholesky import cholesky_solve
from ntkscope.linalg.solvers.conjugate_gradient import conjugate_gradient
from ntkscope.linalg.solvers.least_squares import least_squares
from ntkscope.linalg.solvers.lsmr import lsmr
from ntkscope.linalg.solvers.minimum_norm import minimum_norm_solve
from ntkscope.linalg.solvers.preconditioner import block_jacobi, jacobi, nystrom
from ntkscope.linalg.solvers.system import NumericalWarning
from ntkscope.linalg.spectra.agreement import matrix_correlation, principal_angles
from ntkscope.linalg.spectra.density import spectral_density, stochastic_trace
from ntkscope.linalg.spectra.health import nearest_psd, psd_health
from ntkscope.linalg.spectra.lanczos import top_eigenpairs
from ntkscope.linalg.spectra.power_law import power_law_tail
from ntkscope.linalg.spectra.rank_estimate import estimate_effective_rank
from ntkscope.linalg.spectra.spectrum import (
    condition_number,
    effective_rank,
    eigenpairs,
    entropy_rank,
    frobenius_norm,
    singular_values,
    spectral_norm,
    stable_rank,
)

__all__ = [
    "DenseGram",
    "FactoredGram",
    "Gram",
    "Grid",
    "NumericalWarning",
    "OperatorGram",
    "TileValues",
    "as_gram",
    "block_jacobi",
    "cholesky_solve",
    "condition_number",
    "conjugate_gradient",
    "effective_rank",
    "correlation",
    "eigenpairs",
    "entropy_rank",
    "estimate_effective_rank",
    "frobenius_norm",
    "jacobi",
    "least_squares",
    "lsmr",
    "marchenko_pastur",
    "matrix_correlation",
    "minimum_norm_solve",
    "nearest_psd",
    "nystrom",
    "pca",
    "power_law_tail",
    "principal_angles",
    "psd_health",
    "singular_values",
    "spectral_density",
    "spectral_norm",
    "spike_test",
    "spiked",
    "stable_rank",
    "stochastic_trace",
    "top_eigenpairs",
    "tracy_widom",
]

check_room(
    __name__,
    squares="frobenius_norm spectral_norm stable_rank psd_health stochastic_trace"
    " spectral_density estimate_effective_rank minimum_norm_solve participation weighted_correlation haar_control centred_pair",
    classes="Grid",
)
