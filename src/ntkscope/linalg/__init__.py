"""Linear algebra that knows no networks: Grams, solvers, spectra, principal angles, matrix correlation."""

from ntkscope.core.checked import check_room
from ntkscope.linalg.features.correlation import Control, centred_pair, haar_control, weighted_correlation
from ntkscope.linalg.features.pca import PCA, pca
from ntkscope.linalg.grams.corrected import CorrectedGram
from ntkscope.linalg.grams.dense import DenseGram, as_gram
from ntkscope.linalg.grams.factored import FactoredGram
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.grams.linear_map import LinearMap
from ntkscope.linalg.grams.operator import OperatorGram
from ntkscope.linalg.grams.tiling import Grid, TileSource, TileValues
from ntkscope.linalg.random_matrices.marchenko_pastur import MarchenkoPastur, marchenko_pastur
from ntkscope.linalg.random_matrices.spike_test import SpikeTest, spike_test
from ntkscope.linalg.random_matrices.spiked import (
    participation,
    spike_overlaps,
    spike_strength,
    spike_threshold,
    spiked_value,
)
from ntkscope.linalg.random_matrices.tracy_widom import tracy_widom_cdf, tracy_widom_sf
from ntkscope.linalg.solvers.cholesky import CholeskySolution, cholesky_solve
from ntkscope.linalg.solvers.conjugate_gradient import ConjugateGradientSolution, conjugate_gradient
from ntkscope.linalg.solvers.least_squares import LeastSquaresSolution, least_squares
from ntkscope.linalg.solvers.lsmr import LSMRSolution, lsmr
from ntkscope.linalg.solvers.minimum_norm import MinimumNormSolution, minimum_norm_solve
from ntkscope.linalg.solvers.preconditioner import Preconditioner, block_jacobi, jacobi, nystrom
from ntkscope.linalg.solvers.system import NumericalWarning
from ntkscope.linalg.spectra.angles import principal_angles
from ntkscope.linalg.spectra.band import band_eigenvalues
from ntkscope.linalg.spectra.block_lanczos import EigenPairs, block_eigenpairs
from ntkscope.linalg.spectra.correlation import matrix_correlation
from ntkscope.linalg.spectra.density import SpectralDensity, quadrature, spectral_density, stochastic_trace
from ntkscope.linalg.spectra.health import PSDHealth, nearest_psd, psd_health
from ntkscope.linalg.spectra.lanczos import lanczos, top_eigenpairs
from ntkscope.linalg.spectra.power_law import TailFit, power_law_tail
from ntkscope.linalg.spectra.rank_estimate import RankEstimate, estimate_effective_rank
from ntkscope.linalg.spectra.spectrum import (
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
from ntkscope.linalg.spectra.tail_rivals import Vuong

__all__ = [
    "CholeskySolution",
    "ConditionNumber",
    "ConjugateGradientSolution",
    "Control",
    "CorrectedGram",
    "DenseGram",
    "EigenPairs",
    "FactoredGram",
    "Gram",
    "Grid",
    "LSMRSolution",
    "LeastSquaresSolution",
    "LinearMap",
    "MarchenkoPastur",
    "MinimumNormSolution",
    "NumericalWarning",
    "OperatorGram",
    "PCA",
    "PSDHealth",
    "Preconditioner",
    "RankEstimate",
    "SpectralDensity",
    "SpikeTest",
    "TailFit",
    "TileSource",
    "TileValues",
    "Vuong",
    "as_gram",
    "band_eigenvalues",
    "block_eigenpairs",
    "block_jacobi",
    "centred_pair",
    "cholesky_solve",
    "condition_number",
    "conjugate_gradient",
    "effective_rank",
    "eigenpairs",
    "entropy_rank",
    "estimate_effective_rank",
    "frobenius_norm",
    "haar_control",
    "jacobi",
    "lanczos",
    "least_squares",
    "lsmr",
    "marchenko_pastur",
    "matrix_correlation",
    "minimum_norm_solve",
    "nearest_psd",
    "nystrom",
    "participation",
    "pca",
    "power_law_tail",
    "principal_angles",
    "psd_health",
    "quadrature",
    "singular_values",
    "spectral_density",
    "spectral_norm",
    "spike_overlaps",
    "spike_strength",
    "spike_test",
    "spike_threshold",
    "spiked_value",
    "stable_rank",
    "stochastic_trace",
    "top_eigenpairs",
    "tracy_widom_cdf",
    "tracy_widom_sf",
    "weighted_correlation",
]

check_room(
    __name__,
    squares="frobenius_norm spectral_norm stable_rank lanczos block_eigenpairs psd_health quadrature stochastic_trace"
    " spectral_density estimate_effective_rank minimum_norm_solve participation weighted_correlation haar_control centred_pair",
    classes="Grid",
)
