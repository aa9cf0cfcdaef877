"""The suite every kind of Gram inherits: say how one is made from features, and these tests hold it to the contract.

    class TestDense(GramContract):
        def make(self, left, right=None, **labels):
            return DenseGram(left @ (left if right is None else right).T, symmetric=right is None, **labels)

`left` and `right` are features whose product the Gram must equal; without `right` it is symmetric. A kind of Gram whose
two sides carry no `k(x, x)` of their own passes `row_diagonal` and `column_diagonal` on from `labels`.
"""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import DenseGram, Gram

SHAPES = [(7, 7), (5, 9), (9, 5), (1, 1), (1, 4), (4, 1)]


def features(n: int, p: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


STEPS = ("choose", "choose both", "transpose", "normalize", "scale", "float32", "float64", "name")


def choices(size: int) -> st.SearchStrategy[slice | list[int]]:
    """What may choose rows of a side: slices, and numbers in any order, repeated ones too."""
    starts = st.integers(0, max(0, size - 1))
    parts = st.builds(slice, starts, st.integers(1, size + 2), st.integers(1, 3))
    return parts if size == 0 else parts | st.lists(st.integers(0, size - 1), min_size=1, max_size=6)


def step(grams: list[Gram], kind: str, data: st.DataObject) -> list[Gram]:
    """The same step of a chain for each of several Grams of one shape."""
    n, m = grams[0].shape
    if kind == "choose":
        rows, columns = data.draw(choices(n)), data.draw(choices(m))
        return [gram[rows, columns] for gram in grams]
    if kind == "choose both" and grams[0].symmetric:
        rows = data.draw(choices(n))
        return [gram[rows, rows] for gram in grams]
    if kind == "normalize":
        return [gram.normalized() for gram in grams]
    if kind == "scale":
        scales = [torch.linspace(0.5, 1.5, size, dtype=torch.float64) for size in (n, m)]
        return [gram.scaled(scales[0], None if gram.symmetric else scales[1]) for gram in grams]
    if kind in ("float32", "float64"):
        return [gram.to(getattr(torch, kind)) for gram in grams]
    if kind == "name":
        return [gram.with_labels(name=gram.name + "'") for gram in grams]
    return [gram.T for gram in grams]


class GramContract:
    """Inherit it and write `make`."""

    picklable: ClassVar[bool] = True

    def make(self, left: Tensor, right: Tensor | None = None, **labels: Any) -> Gram:
        raise NotImplementedError

    def cross(
        self, n: int, m: int, p: int = 3, dtype: torch.dtype = torch.float64, **labels: Any
    ) -> tuple[Gram, Tensor]:
        """A cross Gram with both diagonals, and the matrix it must equal."""
        left, right = features(n, p, dtype=dtype), features(m, p, seed=1, dtype=dtype)
        diagonals = {"row_diagonal": left.square().sum(1), "column_diagonal": right.square().sum(1)}
        return self.make(left, right, **(diagonals | labels)), left @ right.T

    def square(self, n: int, p: int = 3, dtype: torch.dtype = torch.float64, **labels: Any) -> tuple[Gram, Tensor]:
        """A symmetric Gram, and the matrix it must equal."""
        left = features(n, p, dtype=dtype)
        return self.make(left, **labels), left @ left.T

    # -- the matrix -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("shape", SHAPES)
    def test_is_the_matrix(self, shape: tuple[int, int]) -> None:
        gram, expected = self.cross(*shape)
        assert gram.shape == shape
        assert not gram.symmetric
        assert_close(gram.dense(), expected)
        assert_close(torch.from_numpy(gram.numpy()), expected)
        assert_close(torch.from_numpy(np.asarray(gram)), expected)
        assert np.asarray(gram, dtype=np.float32).dtype == np.float32

    @pytest.mark.parametrize("n", [1, 2, 8])
    def test_symmetric_means_symmetric(self, n: int) -> None:
        gram, expected = self.square(n)
        dense = gram.dense()
        assert gram.symmetric
        assert gram.T is gram
        assert torch.equal(dense, dense.T)
        assert_close(dense, expected)
        assert_close(gram.diagonal(), expected.diagonal())
        assert torch.equal(gram.diagonal(), dense.diagonal())

    @pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
    def test_empty(self, shape: tuple[int, int]) -> None:
        gram, expected = self.cross(*shape)
        assert_close(gram.dense(), expected)
        assert_close(gram @ torch.ones(shape[1], 2, dtype=torch.float64), torch.zeros(shape[0], 2, dtype=torch.float64))
        assert sum(tile.numel() for _, _, tile in gram.tiles(2)) == 0

    def test_empty_symmetric(self) -> None:
        gram, _ = self.square(0)
        assert gram.diagonal().shape == gram.eigvalsh().shape == (0,)
        assert gram.normalized().shape == (0, 0)

    # -- products ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("shape", SHAPES)
    def test_products(self, shape: tuple[int, int]) -> None:
        gram, expected = self.cross(*shape)
        v, w = features(shape[1], 4, seed=2), features(shape[0], 4, seed=3)
        assert_close(gram @ v, expected @ v)
        assert_close(gram @ v[:, 0], expected @ v[:, 0])
        assert_close(w.T @ gram, w.T @ expected)
        assert_close(w[:, 0] @ gram, w[:, 0] @ expected)
        assert_close(gram.T @ w, expected.T @ w)
        assert_close(gram.T.dense(), expected.T)
        assert_close(gram.T.T.dense(), expected)

    def test_products_return_the_kind_they_were_given(self) -> None:
        gram, expected = self.cross(6, 5)
        v = features(5, 2, seed=2).numpy()
        for product in (gram @ v, gram @ v[::-1][::-1], gram @ np.broadcast_to(v[:, :1], v.shape)[:, :1]):
            assert isinstance(product, np.ndarray)
        np.testing.assert_allclose(gram @ v, expected.numpy() @ v, rtol=1e-12)
        np.testing.assert_allclose(np.ones(6) @ gram, expected.numpy().sum(0), rtol=1e-12)
        assert_close(gram @ torch.ones(5, dtype=torch.int64), expected.sum(1))

    def test_products_take_the_wider_dtype(self) -> None:
        gram, expected = self.cross(6, 5, dtype=torch.float32)
        assert (gram @ torch.ones(5)).dtype == torch.float32
        wide = gram @ torch.ones(5, dtype=torch.float64)
        assert wide.dtype == torch.float64
        assert_close(wide, expected.double().sum(1), rtol=1e-5, atol=1e-5)  # entries are float32

    def test_wrong_vectors_are_refused(self) -> None:
        gram, _ = self.cross(6, 5)
        for v in (torch.ones(6), torch.ones(6, 5), torch.ones(5, 1, 1), torch.tensor(1.0), np.ones(4)):
            with pytest.raises(UsageError, match=r"expected \(5,\) or"):
                gram @ v
        with pytest.raises(UsageError, match="real"):
            gram @ torch.ones(5, dtype=torch.complex128)
        with pytest.raises(TypeError):
            gram @ [1.0] * 5  # type: ignore[type-var]

    # -- pieces -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [None, 1, 2, 4, 100])
    def test_tiles_cover_exactly_once(self, size: int | None) -> None:
        for gram, expected in (self.cross(7, 9), self.square(8)):
            seen, values = torch.zeros(gram.shape), torch.full(gram.shape, torch.nan, dtype=torch.float64)
            for rows, columns, tile in gram.tiles(size):
                assert size is None or max(tile.shape) <= size
                seen[rows, columns] += 1
                values[rows, columns] = tile
            assert bool((seen == 1).all())
            assert_close(values, expected)

    def test_tiles_of_no_size_are_refused(self) -> None:
        with pytest.raises(UsageError, match="at least 1"):
            self.cross(3, 3)[0].tiles(0)

    def test_sub_matrices(self) -> None:
        gram, expected = self.cross(7, 9)
        mask = torch.tensor([True, False, True, True, False, False, True])
        assert_close(gram[2:5, ::2].dense(), expected[2:5, ::2])
        assert_close(gram[[3, 0, -1], 4:].dense(), expected[[3, 0, -1], 4:])
        assert_close(gram[mask].dense(), expected[mask])
        assert_close(gram[np.ix_([1, 2], [8, 0])].dense(), expected[[1, 2]][:, [8, 0]])
        assert_close(gram[::-1, [1, 1]].dense(), expected.flip(0)[:, [1, 1]])
        assert_close(gram[[6, 1], [0, 5]] @ torch.ones(2).double(), expected[[6, 1]][:, [0, 5]].sum(1))
        assert_close(gram[[6, 1], [0, 5]].T.dense(), expected[[6, 1]][:, [0, 5]].T)
        assert gram[[]].shape == (0, 9)

    def test_sub_matrices_know_whether_they_are_symmetric(self) -> None:
        gram, expected = self.square(6)
        part = gram[[4, 1, 2], [4, 1, 2]]
        assert part.symmetric
        assert_close(part.diagonal(), expected.diagonal()[[4, 1, 2]])
        assert not gram[[0, 1], [1, 0]].symmetric
        assert not gram[:3].symmetric

    @pytest.mark.parametrize("index", [3, (1, 2), "a", (slice(None),) * 3, None])
    def test_what_cannot_choose_is_refused(self, index: Any) -> None:
        with pytest.raises(UsageError, match="cannot choose rows of a Gram"):
            self.cross(7, 7)[0][index]

    @pytest.mark.parametrize(
        ("index", "text"),
        [
            ([7], "got row 7 "),
            ([-8], "got row -8 "),
            ([0.5], "rows chosen by torch.float64"),
            ([True, False], r"bool.*\(2,\)"),
        ],
    )
    def test_wrong_choices_are_refused(self, index: Any, text: str) -> None:
        with pytest.raises(UsageError, match=text):
            self.cross(7, 7)[0][index]

    def test_is_not_iterated_by_accident(self) -> None:
        with pytest.raises(TypeError):
            list(self.square(3)[0])  # type: ignore[call-overload]

    # -- normalisation ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_normalized(self, dtype: torch.dtype) -> None:
        gram, expected = self.square(9, dtype=dtype)
        scale = expected.diagonal().rsqrt()
        cosine = gram.normalized()
        assert_close(
            cosine.dense(), expected * scale[:, None] * scale, rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-14
        )
        assert torch.equal(cosine.diagonal(), torch.ones(9, dtype=dtype))
        assert torch.equal(cosine.dense().diagonal(), torch.ones(9, dtype=dtype))
        for rows, columns, tile in cosine.tiles(2):
            if rows == columns:
                assert torch.equal(tile.diagonal(), torch.ones(len(tile), dtype=dtype))
        assert cosine.symmetric
        assert cosine.meta["normalized"] is True
        assert_close(cosine.normalized().dense(), cosine.dense())

    def test_normalized_cross(self) -> None:
        gram, expected = self.cross(4, 6)
        left, right = features(4, 3), features(6, 3, seed=1)
        cosine = gram.normalized()
        assert_close(cosine.dense(), expected / left.norm(dim=1)[:, None] / right.norm(dim=1))
        assert_close(cosine @ torch.ones(6).double(), cosine.dense().sum(1))
        assert_close(cosine.T.dense(), cosine.dense().T)
        assert torch.equal(cosine.row_diagonal, torch.ones(4).double())

    def test_normalized_sub_matrix_is_a_sub_matrix_of_the_normalized(self) -> None:
        whole, _ = self.square(6)
        whole.diagonal()
        known = self.make(features(6, 3), row_diagonal=whole.diagonal())
        assert_close(known[:2, 2:].normalized().dense(), whole.normalized().dense()[:2, 2:])

    def test_zero_rows_are_named(self) -> None:
        left = features(5, 3)
        left[[1, 3]] = 0
        with pytest.raises(NumericalError, match=r"\[1, 3\]"):
            self.make(left).normalized()

    # -- views ------------------------------------------------------------------------------------------------------

    @settings(
        max_examples=20,
        deadline=None,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
    )
    @given(
        n=st.integers(1, 8),
        m=st.integers(1, 8),
        symmetric=st.booleans(),
        seed=st.integers(0, 2**20),
        steps=st.lists(st.sampled_from(STEPS), max_size=5),
        data=st.data(),
    )
    def test_any_chain_of_views_is_that_chain_on_the_dense_matrix(
        self, n: int, m: int, symmetric: bool, seed: int, steps: list[str], data: st.DataObject
    ) -> None:
        left, right = features(n, 3, seed=seed), None if symmetric else features(m, 3, seed=seed + 1)
        other = left if right is None else right
        labels = {"row_diagonal": left.square().sum(1)}
        if right is not None:
            labels["column_diagonal"] = right.square().sum(1)
        values = left @ other.T
        values = (values + values.T) / 2 if symmetric else values
        gram: Gram = self.make(left, right, **labels)
        dense: Gram = DenseGram(values, symmetric=symmetric, **labels)
        for kind in steps:
            gram, dense = step([gram, dense], kind, data)
        assert (gram.shape, gram.symmetric, gram.dtype) == (dense.shape, dense.symmetric, dense.dtype)
        assert gram.name == "'" * steps.count("name")
        # entries near 1 after a few products, each off by a rounding unit
        close = {"rtol": 1e-4, "atol": 1e-4} if "float32" in steps else {"rtol": 1e-10, "atol": 1e-12}
        formed = gram.dense()
        assert_close(formed, dense.dense(), **close)
        for size in (None, 2):
            pieces = torch.full(gram.shape, torch.nan, dtype=gram.dtype)
            for rows, columns, tile in gram.tiles(size):
                pieces[rows, columns] = tile
            assert_close(pieces, formed, **close)
        v, w = (features(size, 2, seed=seed + 2).to(gram.dtype) for size in gram.shape)
        assert_close(gram @ w, dense @ w, **close)
        assert_close(v.T @ gram, v.T @ dense, **close)
        for side in ("row_diagonal", "column_diagonal"):
            assert_close(getattr(gram, side), getattr(dense, side), **close)
        if gram.symmetric:
            assert torch.equal(formed, formed.T)
            assert torch.equal(formed.diagonal(), gram.diagonal())
            changing = [kind for kind in steps if kind in ("normalize", "scale")]
            if changing and changing[-1] == "normalize":
                assert torch.equal(gram.diagonal(), torch.ones(len(gram), dtype=gram.dtype))

    def test_scaled(self) -> None:
        gram, expected = self.cross(4, 6)
        rows, columns = torch.arange(1.0, 5.0), torch.arange(1.0, 7.0)
        assert_close(gram.scaled(rows, columns).dense(), rows.double()[:, None] * expected * columns.double())
        square, matrix = self.square(4)
        twice = square.scaled(rows)
        assert twice.symmetric
        assert_close(twice.dense(), rows.double()[:, None] * matrix * rows.double())
        assert_close(twice.diagonal(), matrix.diagonal() * rows.double().square())
        assert not square.scaled(rows, rows + 1).symmetric
        with pytest.raises(UsageError, match=r"lengths \(4, 4\)"):
            gram.scaled(rows)

    # -- spectrum ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("n", "p"), [(1, 1), (6, 3), (6, 20), (90, 5), (90, 200)])
    def test_eigenvalues(self, n: int, p: int) -> None:
        gram, expected = self.square(n, p)
        values = torch.linalg.eigvalsh(expected)
        tolerance = 1e-12 * float(values[-1])  # rounding of a product of norm λ_max
        assert_close(gram.eigvalsh(), values, rtol=0, atol=tolerance)
        assert_close(gram.eigvalsh(1), values[-1:], rtol=0, atol=tolerance)
        assert_close(gram.eigvalsh(min(n, 4)), values[-4:], rtol=0, atol=tolerance)

    def test_eigenvalues_are_float64(self) -> None:
        gram, _ = self.square(6, dtype=torch.float32)
        assert gram.eigvalsh().dtype == gram.eigvalsh(2).dtype == torch.float64

    def test_wrong_spectra_are_refused(self) -> None:
        gram, _ = self.square(6)
        for k in (0, 7, -1):
            with pytest.raises(UsageError, match="from 1 to 6"):
                gram.eigvalsh(k)
        with pytest.raises(UsageError, match="symmetric"):
            self.cross(4, 4)[0].eigvalsh()
        with pytest.raises(UsageError, match="row_diagonal"):
            self.cross(4, 4)[0].diagonal()

    # -- labels -----------------------------------------------------------------------------------------------------

    def test_blocks(self) -> None:
        gram, expected = self.cross(6, 8, outputs=2, rows="sample*2 + output")
        blocks = gram.blocks()
        assert blocks.shape == (3, 4, 2, 2)
        for i, j, a, b in np.ndindex(3, 4, 2, 2):
            assert_close(blocks[i, j, a, b], expected[i * 2 + a, j * 2 + b])

    def test_outputs_survive_the_choice_of_whole_samples_only(self) -> None:
        gram, _ = self.cross(6, 8, outputs=2, rows="sample*2 + output")
        assert gram[[4, 5, 0, 1], 2:6].outputs == 2
        assert gram[[4, 5, 0, 1], 2:6].rows == "sample*2 + output"
        for part in (gram[[1, 0]], gram[[1, 2]], gram[[0]], gram[:, 1:3]):
            assert part.outputs == 1
            assert "chosen" in part.rows

    def test_labels_are_carried_and_shown(self) -> None:
        coverage = object()
        labels: dict[str, Any] = {"name": "trntk", "coverage": coverage, "meta": {"seed": 3}}
        for gram in (self.square(4, **labels)[0], self.cross(4, 6, **labels)[0]):
            for other in (gram, gram.T, gram.normalized(), gram[:2, :2], gram.to(torch.float32)):
                assert other.name == "trntk"
                assert other.coverage is coverage
                assert other.meta["seed"] == 3
                assert "'trntk'" in repr(other)
            text = repr(gram)
            assert type(gram).__name__ in text
            assert f"{gram.shape[0]} × {gram.shape[1]}" in text
            assert "samples" in text
            assert "float64" in text

    def test_nothing_of_it_can_be_assigned(self) -> None:
        for gram in (self.square(4, meta={"seed": 3})[0], self.cross(4, 6, meta={"seed": 3})[0][:2].T):
            before = repr(gram)
            for name in ("name", "meta", "coverage", "symmetric", "shape", "dtype", "labels", "_view", "anything"):
                with pytest.raises(AttributeError, match="never changes"):
                    setattr(gram, name, None)
            with pytest.raises(AttributeError, match="never changes"):
                del gram.labels
            with pytest.raises(TypeError):
                gram.meta["seed"] = 4
            with pytest.raises(AttributeError):
                gram.labels.name = "other"  # type: ignore[misc]
            assert (repr(gram), gram.meta["seed"]) == (before, 3)

    def test_labels_do_not_follow_the_mapping_they_came_from(self) -> None:
        meta = {"seed": 3}
        gram, _ = self.square(4, meta=meta)
        meta["seed"] = 4
        assert gram.meta["seed"] == 3

    def test_with_labels(self) -> None:
        for gram, expected in (
            self.square(4, name="a", meta={"seed": 3}),
            self.cross(4, 6, name="a", meta={"seed": 3}),
        ):
            diagonal = gram.row_diagonal
            coverage = object()
            other = gram.with_labels(name="b", meta={**gram.meta, "note": 1}, coverage=coverage, outputs=2, rows="two")
            assert type(other) is type(gram)
            assert (other.name, other.outputs, other.rows, other.coverage) == ("b", 2, "two", coverage)
            assert dict(other.meta) == {"seed": 3, "note": 1}
            assert (gram.name, gram.outputs, dict(gram.meta)) == ("a", 1, {"seed": 3})
            assert_close(other.dense(), expected)
            assert_close(other.row_diagonal, diagonal, rtol=0, atol=0)
            with pytest.raises(UsageError, match="symmetric for with_labels"):
                gram.with_labels(symmetric=False)
            with pytest.raises(UsageError, match="divisor"):
                gram.with_labels(outputs=3)

    def test_to(self) -> None:
        gram, expected = self.cross(4, 6)
        single = gram.to(torch.float32)
        assert single.dtype == single.dense().dtype == torch.float32
        assert single.device == torch.device("cpu")
        assert_close(single.dense(), expected.float())
        assert single.row_diagonal is not None
        assert single.row_diagonal.dtype == torch.float32
        assert gram.to() is gram

    def test_pickles(self) -> None:
        if not self.picklable:
            pytest.skip("holds functions")
        gram, expected = self.square(4, name="x")
        again = pickle.loads(pickle.dumps(gram))  # noqa: S301 - our own bytes
        assert_close(again.dense(), expected)
        assert repr(again) == repr(gram)

    def test_wrong_labels_are_refused(self) -> None:
        left, right = features(4, 3), features(6, 3)
        with pytest.raises(UsageError, match="divisor"):
            self.make(left, right, outputs=3)
        with pytest.raises(UsageError, match="row_diagonal"):
            self.make(left, right, row_diagonal=torch.ones(3))
        with pytest.raises(UsageError, match="column_diagonal"):
            self.make(left, right, column_diagonal=torch.ones(4))
