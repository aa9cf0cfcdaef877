"""The workload of an X-ray: how many items of each kind, and how long the steps on them are expected to take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ntkscope.kernels.costs import Rates
from ntkscope.machines import kernel_seconds
from ntkscope.xray.task import CLASSIFICATION, Task

FIT_STEPS = 500  # a surrogate's fit takes about this many products with the kernel, by experience
INITIAL_TRAIN, INITIAL_TEST = 400, 200  # items on which the initial network is compared; enough for a distance
DECOMPOSED = 3000  # training items on which the ridge of a fit of logits is chosen; it is fitted on all


@dataclass(frozen=True)
class Workload:
    """How many training and test items are used, on how many of each the initial network is compared, and how many kernels
    get a surrogate. `classes`: how many outputs; `task`: what they are. `matrices`: shapes of the weights; `tracked`: bytes of
    a tracker's record, `training`: seconds of one run of the training, None without one. `given`: what sections may need and
    this X-ray has."""

    train: int
    test: int
    initial_train: int
    initial_test: int
    classes: int
    rates: Rates
    fits: int = 1
    task: Task = CLASSIFICATION
    matrices: tuple[tuple[int, int], ...] = ()
    tracked: int | None = None
    training: float | None = None
    given: tuple[str, ...] = ()

    def sized(self, train: int, test: int) -> Workload:
        """The same on so many items; the initial network, if there is one, on some of them."""
        compared = (min(train, max(INITIAL_TRAIN, self.classes)), min(test, max(INITIAL_TEST, self.classes)))
        first = compared if self.initial_train else (0, 0)
        return replace(self, train=train, test=test, initial_train=first[0], initial_test=first[1])

    def kernel(self, name: str) -> float:
        """Seconds the kernel `name` is expected to take, training and test rows."""
        return kernel_seconds(name, self.train, self.test, self.rates)

    def initial(self, name: str) -> float:
        """Seconds for the kernel `name` of the initial network on its subset."""
        if not self.initial_train:
            return 0.0
        return kernel_seconds(name, self.initial_train, self.initial_test, self.rates)

    def fit(self) -> float:
        """Seconds one surrogate's fit is expected to take."""
        return FIT_STEPS * 2 * self.train**2 * self.classes * self.rates.double

    def distillation(self) -> float:
        """Seconds one fit of the logits is expected to take: a block-tridiagonal form of some rows, a factor of all."""
        rows = min(self.train, DECOMPOSED)
        whole = self.train**3 / 3 if self.train > rows else 0.0
        return (5 * rows**3 + whole + 100 * rows**2 * self.classes) * self.rates.double

    def rating(self) -> float:
        """Seconds to rate one fit, intervals included, by experience."""
        return 0.2 + 4e-4 * self.test

    def once(self, rows: int) -> float:
        """Seconds for the exact kernel of so many training items with themselves alone."""
        n = min(rows, self.train)
        return self.rates.setup + self.rates.running(n) + self.rates.pair * n * (n + 1) / 2

    def page(self) -> float:
        """Seconds the page is expected to take, by experience."""
        return 0.3 + 6e-4 * (self.train + self.test)

    def decomposition(self, rows: int) -> float:
        """Seconds for the eigenvalues of a matrix with `rows` rows; about 4/3 n³ multiply-adds, at a slow rate."""
        return 3 * min(rows, self.train) ** 3 * self.rates.double
