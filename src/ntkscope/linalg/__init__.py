"""Linear algebra that knows no networks: Grams, solvers, spectra, principal angles, matrix correlation."""

from ntkscope.linalg.dense import DenseGram, as_gram
from ntkscope.linalg.factored import FactoredGram
from ntkscope.linalg.gram import Gram
from ntkscope.linalg.lanczos import top_eigenpairs
from ntkscope.linalg.operator import OperatorGram

__all__ = [
    "DenseGram",
    "FactoredGram",
    "Gram",
    "OperatorGram",
    "as_gram",
    "top_eigenpairs",
]
