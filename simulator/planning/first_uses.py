"""Ids as numbers 0, 1, 2, ... in the order of their first use."""

import numpy as np

from simulator.traffic.requests import IntArray


class FirstUses:
    """Numbers ids that come in pieces; an id keeps its number. Holds two integers for every different id."""

    def __init__(self) -> None:
        self._ids: IntArray = np.zeros(0, np.int64)  # sorted
        self._numbers: IntArray = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    def numbered(self, ids: IntArray) -> IntArray:
        """The numbers of ``ids``."""
        values, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        at = np.searchsorted(self._ids, values)
        known = at < len(self)
        known[known] = self._ids[at[known]] == values[known]
        new = np.flatnonzero(~known)
        numbers = np.empty(len(values), np.int64)
        numbers[known] = self._numbers[at[known]]
        numbers[new[np.argsort(first[new])]] = len(self) + np.arange(len(new))
        self._ids = np.insert(self._ids, at[new], values[new])
        self._numbers = np.insert(self._numbers, at[new], numbers[new])
        return numbers[inverse]
