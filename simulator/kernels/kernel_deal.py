"""How the pages of known contexts are dealt to the cores, and sums of anything over a core's share.

Pages of all tasks (one head of one sequence) lie one behind the other, sequence by sequence and head by head, and are
dealt to the cores in equal contiguous shares, as the first split of fused attention does (hicann/ops-transformer,
attention/common/op_host/split_core_v1.h). A quantity that every page has is summed over shares with prefix sums over
the sequences: heads of a sequence are alike, and so are its whole pages. Everything is an array with a row a launch,
so that many launches (the steps of a leap) are taken at once; no row depends on another.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Some pages of a deal: their tokens, their column in the page table and among the pages read of their task."""

    tokens: Array
    column: Array
    column_in_task: Array
    pages_of_task: Array


class Deal:
    """Shares of ``cores`` cores when every sequence reads ``contexts`` tokens (rows of launches), ``window`` at most.

    ``pages`` and ``tasks`` have a column a core; a core without work has none. ``whole_pages`` counts the pages that
    are not a sequence's last, ``tail_tokens`` are those of the last, ``head_tokens`` what a window leaves of the first.
    """

    def __init__(self, contexts: Array, *, page_tokens: int, heads: int, cores: int, window: int = 0) -> None:
        rows, self.sequences = contexts.shape
        self.page, self.heads = page_tokens, heads
        self.windowed = bool(window) and bool((contexts > window).any())
        start = np.maximum(contexts - window, 0) if self.windowed else np.zeros_like(contexts)
        self.first_page = start // page_tokens
        behind_page = -(-contexts // page_tokens)
        self.seq_pages = behind_page - self.first_page
        self.head_tokens = np.minimum(contexts, (self.first_page + 1) * page_tokens) - start
        self.tail_tokens = np.minimum(contexts - (behind_page - 1) * page_tokens, self.head_tokens)
        alone = self.seq_pages == 1
        self.tail_tokens = np.where(alone, self.head_tokens, contexts - (behind_page - 1) * page_tokens)
        ends = np.cumsum(self.seq_pages, axis=1) * heads
        dealt = ends[:, -1:]
        used = np.minimum(cores, dealt)
        edges = np.minimum(np.arange(cores + 1), used) * dealt // used
        self.edges = edges
        self._rows, self._ends = np.arange(rows)[:, None], ends
        self._seq, self._head, self._inside = self.places(edges)
        self._task = self._seq * heads + self._head
        self.pages = edges[:, 1:] - edges[:, :-1]
        self.tasks = self._task[:, 1:] + (self._inside[:, 1:] > 0) - self._task[:, :-1]
        self.whole_pages = self.pages - self._task[:, 1:] + self._task[:, :-1]

    def places(self, dealt: Array) -> tuple[Array, Array, Array]:
        """Where the pages with numbers ``dealt`` lie: sequence, head, and how many pages of that task lie before."""
        ends, rows = self._ends, self._rows
        apart = rows * (int(ends[:, -1].max()) + 1)
        found = np.searchsorted((ends + apart).ravel(), (dealt + apart).ravel(), side="right").reshape(dealt.shape)
        seq = found - rows * self.sequences
        into = dealt - _behind_nothing(ends)[rows, seq]
        pages = np.concatenate([self.seq_pages, np.ones_like(ends[:, :1])], axis=1)[rows, seq]
        head = into // pages
        return seq, head, into - head * pages

    def page_at(self, dealt: Array) -> Pages:
        """The pages with numbers ``dealt``."""
        seq, _, inside = self.places(dealt)
        pages, first = self.seq_pages[self._rows, seq], self.first_page[self._rows, seq]
        ends = np.where(inside == pages - 1, self.tail_tokens[self._rows, seq], self.page)
        tokens = np.where(inside == 0, self.head_tokens[self._rows, seq], ends)
        return Pages(tokens=tokens, column=first + inside, column_in_task=inside, pages_of_task=pages)

    def _at(self, of_sequences: Array, behind: Any = 0) -> Array:
        """Values of the edges' sequences; ``behind`` for an edge behind the last."""
        last = np.full_like(of_sequences[:, :1], behind)
        values: Array = np.concatenate([of_sequences, last], axis=1)[self._rows, self._seq]
        return values

    def over_tails(self, of_tails: Array) -> Array:
        """Each core's sum of a quantity of sequences' last pages; a third axis of ``of_tails`` is kept."""
        before = self._before(of_tails)
        found: Array = before[:, 1:] - before[:, :-1]
        return found

    def over_heads(self, of_heads: Array) -> Array:
        """Each core's sum of a quantity of the first pages of sequences that have more than one."""
        many = _like(self.seq_pages > 1, of_heads)
        of_heads = np.where(many, of_heads, 0)
        begun = self._before(of_heads) + np.where(_like(self._inside > 0, of_heads), self._at(of_heads), 0)
        found: Array = begun[:, 1:] - begun[:, :-1]
        return found

    def _before(self, of_tasks: Array) -> Array:
        """Sums of a quantity of tasks over those before each edge's task."""
        sums = _behind_nothing(np.cumsum(of_tasks, axis=1) * self.heads)
        before: Array = sums[self._rows, self._seq] + _like(self._head, of_tasks) * self._at(of_tasks)
        return before

    def lines(self, entries: int) -> Array:
        """Cache lines of page tables that each core reads from; one that it only reads a part of counts whole."""
        first = self.first_page
        before = self._before(np.ceil((first + self.seq_pages) / entries) - first // entries)
        at = self._at(first)
        place = at + self._inside
        begun = before + place // entries - at // entries
        touched = before + np.where(self._inside > 0, np.ceil(place / entries) - at // entries, 0)
        found: Array = touched[:, 1:] - begun[:, :-1]
        return found

    def last_tokens(self) -> Array:
        """Tokens of the last page of each core."""
        inside = self._inside[:, 1:]
        seq, head = self._seq[:, 1:], self._head[:, 1:]
        ended = np.maximum(np.where(head > 0, seq, seq - 1), 0)
        whole = np.where(inside == 1, self._at(self.head_tokens)[:, 1:], self.page)
        return np.where(inside > 0, whole, self.tail_tokens[self._rows, ended])

    def first_tokens(self) -> Array:
        """Tokens of the first page of each core."""
        inside, pages = self._inside[:, :-1], self._at(self.seq_pages, 1)[:, :-1]
        head, tail = self._at(self.head_tokens)[:, :-1], self._at(self.tail_tokens)[:, :-1]
        return np.where(inside == 0, head, np.where(inside == pages - 1, tail, self.page))


def _behind_nothing(sums: Array) -> Array:
    """A column of zeros before running sums."""
    return np.concatenate([np.zeros_like(sums[:, :1]), sums], axis=1)


def _like(of_pairs: Array, other: Array) -> Array:
    """``of_pairs`` with the third axis that ``other`` may have."""
    return of_pairs[:, :, None] if other.ndim > of_pairs.ndim else of_pairs
