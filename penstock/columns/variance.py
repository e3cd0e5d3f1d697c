"""The variance of the values of many groups, by column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.arrays.arithmetic import doubles_of
from penstock.arrays.byte_arrays import Integers
from penstock.columns.folds import ColumnFold, Numbers, numbers_of


class VarianceFold(ColumnFold):
    """The sample variance, from the number, the mean and the sum of the squared distances to it. The parts of two sets
    of values are combined by the formula of Chan, Golub and LeVeque. With an infinity it is NaN."""

    fields = (("n", pa.int64()), ("mean", pa.float64()), ("m2", pa.float64()))
    result_type = pa.float64()

    def __init__(self) -> None:
        self._n = np.zeros(0, np.int64)
        self._mean = np.zeros(0, np.float64)
        self._m2 = np.zeros(0, np.float64)

    def grow(self, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        n, mean, m2 = map(numbers_of, stored)
        self._n = np.concatenate((self._n, n))
        self._mean = np.concatenate((self._mean, mean))
        self._m2 = np.concatenate((self._m2, m2))

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        numbers = numbers_of(doubles_of(values))
        touched, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
        with np.errstate(all="ignore"):
            pivot = numbers[first]  # sums of distances to a value are short where sums of the values are not
            shifted = numbers - pivot[inverse]
            n = np.bincount(inverse, minlength=len(touched))
            mean = np.bincount(inverse, shifted, len(touched)) / n
            m2 = np.bincount(inverse, (shifted - mean[inverse]) ** 2, len(touched))
            mean += pivot
        self._join(touched, n, mean, m2)

    def merge(self, groups: Integers, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        n, mean, m2 = map(numbers_of, stored)
        left = np.flatnonzero(n)
        while len(left):
            touched, first = np.unique(groups[left], return_index=True)
            rows = left[first]
            self._join(touched, n[rows], mean[rows], m2[rows])
            left = np.delete(left, first)

    def _join(self, groups: Integers, n: Numbers, mean: Numbers, m2: Numbers) -> None:
        """Combine the parts of other values with those of their groups, each of which comes once."""
        before, total = self._n[groups], self._n[groups] + n
        with np.errstate(all="ignore"):
            delta, is_new = mean - self._mean[groups], before == 0
            self._m2[groups] += m2 + np.where(is_new, 0, delta**2 * before * n / total)
            self._mean[groups] = np.where(is_new, mean, self._mean[groups] + delta * n / total)
        self._n[groups] = total

    def stored(self) -> Sequence[pa.Array]:
        return pa.array(self._n), pa.array(self._mean), pa.array(self._m2)

    def results(self) -> pa.Array:
        few = self._n < 2
        return pa.array(self._m2 / np.where(few, 1, self._n - 1), mask=few)
