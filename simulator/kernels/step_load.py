"""What one engine step has to do, as sums over its batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# The tokens of every decoding sequence in the order in which their pages are dealt to the cores: an array of one row,
# or of one for each of many steps. A function, as it is asked only where sums do not tell how long attention takes.
Lengths = Callable[[], Any]


def known_lengths(tokens: Sequence[int]) -> Lengths:
    """The lengths of one step, from a list of them."""

    def row() -> Any:
        import numpy as np

        return np.array([tokens], np.int64)

    return row


@dataclass(slots=True, kw_only=True)
class StepLoad:
    """The work of one step.

    Decode: ``decode_sequences`` each read their KV, the new token included: ``decode_context_tokens`` in all, in
    ``decode_pages`` pages; ``decode_windowed_tokens`` is the sum of min(context, window), 0 without windowed layers;
    ``decode_lengths`` tells the sequences apart, ``None`` when all are as long.
    Prefill: ``prefill_tokens`` new prompt tokens of ``prefill_sequences`` chunks; ``prefill_pairs`` sums
    new * before + new * (new + 1) / 2, ``prefill_context_tokens`` sums before + new, in ``prefill_pages`` pages.
    ``sampled_sequences`` rows of logits are computed; ``forked_outputs`` outputs more are drawn from rows that several
    samples share. Memory: ``new_pages`` taken, ``copied_bytes`` read and written
    in HBM (copy-on-write, moves), ``swapped_bytes`` over the host link, ``allocator_cycles`` of bookkeeping.
    """

    decode_sequences: int = 0
    decode_context_tokens: int = 0
    decode_pages: int = 0
    decode_windowed_tokens: int = 0
    decode_lengths: Lengths | None = None
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    prefill_context_tokens: int = 0
    prefill_sequences: int = 0
    prefill_pages: int = 0
    sampled_sequences: int = 0
    forked_outputs: int = 0
    new_pages: int = 0
    copied_bytes: int = 0
    swapped_bytes: int = 0
    allocator_cycles: int = 0

    def clear(self) -> None:
        """Nothing to do, again. Making a new one takes longer."""
        self.decode_sequences = self.decode_context_tokens = self.decode_pages = self.decode_windowed_tokens = 0
        self.decode_lengths = None
        self.prefill_tokens = self.prefill_pairs = self.prefill_context_tokens = 0
        self.prefill_sequences = self.prefill_pages = self.sampled_sequences = self.forked_outputs = 0
        self.new_pages = self.copied_bytes = self.swapped_bytes = self.allocator_cycles = 0

    @property
    def tokens(self) -> int:
        """New tokens of the step: rows of every matrix product."""
        return self.decode_sequences + self.prefill_tokens

    @property
    def sequences(self) -> int:
        """Sequences the host prepares and updates."""
        return self.decode_sequences + self.prefill_sequences
