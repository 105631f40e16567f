"""A trace as a stream of references to prefix blocks, the food of cache simulations.

Blocks are numbered 0, 1, 2, ... by their first use. A chunk holds about a million references, so a trace need not
fit in memory; what grows are two numbers for every different block.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simulator.planning.first_uses import FirstUses
from simulator.traffic.requests import IntArray, offsets_of
from simulator.traffic.text_lines import complaint
from simulator.traffic.trace_rows import TraceRows, joined
from simulator.traffic.traces import read_trace

CHUNK_REFERENCES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Chunk:
    """References in the order of the file, whole requests only.

    ``blocks[i]`` is the block of reference ``i``, ``request[i]`` the number of its request within the chunk.
    ``known_blocks`` counts the different blocks up to the end of the chunk. ``whole`` says that this is all there is.
    """

    blocks: IntArray
    request: IntArray
    known_blocks: int
    whole: bool


@dataclass(slots=True)
class BlockStream:
    """Iterate over ``chunks``; the counts are complete when the iteration has ended."""

    path: Path
    block_tokens: int = 512
    requests: int = 0
    references: int = 0
    full_blocks: int = 0
    _blocks: FirstUses = field(default_factory=FirstUses)

    @property
    def unique_blocks(self) -> int:
        """Different blocks seen so far."""
        return len(self._blocks)

    def chunks(self) -> Iterator[Chunk]:
        """The trace, chunk by chunk. Raises ``InputError`` naming file and line, or that there are no block ids."""
        waiting: list[TraceRows] = []
        size, yielded = 0, False
        for rows in read_trace(self.path, block_tokens=self.block_tokens, skip_empty_output=True):
            if not len(rows):
                continue
            waiting.append(rows)
            size += self._counted(rows)
            if size >= CHUNK_REFERENCES:
                yield self._chunk(joined(waiting), whole=False)
                waiting, size, yielded = [], 0, True
        if waiting:
            yield self._chunk(joined(waiting), whole=not yielded)
        elif not yielded:
            raise complaint(self.path, None, "holds no request")

    def _counted(self, rows: TraceRows) -> int:
        if rows.prefix is None:
            raise complaint(self.path, None, "has no hash_ids or prefix_id: nothing says which prompts share a prefix")
        self.requests += len(rows)
        self.full_blocks += int((rows.prompt_tokens // self.block_tokens).sum())
        return len(rows.prefix.ids)

    def _chunk(self, rows: TraceRows, *, whole: bool) -> Chunk:
        counts, ids = self._references_of(rows)
        self.references += len(ids)
        blocks = self._blocks.numbered(ids)
        request = np.repeat(np.arange(len(counts)), counts)
        return Chunk(blocks=blocks, request=request, known_blocks=len(self._blocks), whole=whole)

    def _references_of(self, rows: TraceRows) -> tuple[IntArray, IntArray]:
        """How many blocks each request has, and their ids."""
        assert rows.prefix is not None
        counts = np.diff(rows.prefix.offsets)
        if np.array_equal(counts, -(-rows.prompt_tokens // self.block_tokens)):
            return counts, rows.prefix.ids
        return self._cut(rows)

    def _cut(self, rows: TraceRows) -> tuple[IntArray, IntArray]:
        """Blocks of prompts whose file names a prefix of any length: its full blocks are shared, the others are not."""
        assert rows.prefix is not None
        counts = -(-rows.prompt_tokens // self.block_tokens)
        group, shared = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        owner = np.diff(rows.prefix.offsets) > 0
        group[owner], shared[owner] = rows.prefix.ids, rows.prefix.ends // self.block_tokens
        request = np.repeat(np.arange(len(rows)), counts)
        nth = np.arange(len(request)) - np.repeat(offsets_of(counts)[:-1], counts)
        private = self.references + np.arange(len(request))
        ids = np.where(nth < shared[request], 2 * ((group[request] << 24) + nth), 2 * private + 1)
        return counts, ids
