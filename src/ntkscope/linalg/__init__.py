"""Linear algebra that knows no networks: Grams, solvers, spectra, principal angles, matrix correlation."""

from ntkscope.linalg.angles import principal_angles
from ntkscope.linalg.cholesky import CholeskySolution, cholesky_solve
from ntkscope.linalg.conjugate_gradient import ConjugateGradientSolution, conjugate_gradient
from ntkscope.linalg.correlation import matrix_correlation
from ntkscope.linalg.dense import DenseGram, as_gram
from ntkscope.linalg.density import SpectralDensity, quadrature, spectral_density, stochastic_trace
from ntkscope.linalg.factored import FactoredGram
from ntkscope.linalg.gram import Gram
from ntkscope.linalg.lanczos import lanczos, top_eigenpairs
from ntkscope.linalg.minimum_norm import MinimumNormSolution, minimum_norm_solve
from ntkscope.linalg.operator import OperatorGram
from ntkscope.linalg.preconditioner import Preconditioner, block_jacobi, jacobi, nystrom
from ntkscope.linalg.spectrum import (
    ConditionNumber,
    condition_number,
    effective_rank,
    eigenpairs,
    entropy_rank,
    frobenius_norm,
    singular_values,
    spectral_norm,
    stable_rank,
)
from ntkscope.linalg.system import NumericalWarning

__all__ = [
    "CholeskySolution",
    "ConditionNumber",
    "ConjugateGradientSolution",
    "DenseGram",
    "FactoredGram",
    "Gram",
    "MinimumNormSolution",
    "NumericalWarning",
    "OperatorGram",
    "Preconditioner",
    "SpectralDensity",
    "as_gram",
    "block_jacobi",
    "cholesky_solve",
    "condition_number",
    "conjugate_gradient",
    "effective_rank",
    "eigenpairs",
    "entropy_rank",
    "frobenius_norm",
    "jacobi",
    "lanczos",
    "matrix_correlation",
    "minimum_norm_solve",
    "nystrom",
    "principal_angles",
    "quadrature",
    "singular_values",
    "spectral_density",
    "spectral_norm",
    "stable_rank",
    "stochastic_trace",
    "top_eigenpairs",
]
