"""Which sequences of a decode batch are still shorter than the sliding window, and when each grows out of it."""

from simulator.serving.sequence import Sequence


class Windows:
    """The sequences inside a window of ``tokens`` tokens; one that has grown to the window's length is not."""

    __slots__ = ("_crossings", "_members", "_offset_sum", "tokens")

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._members: set[Sequence] = set()
        self._offset_sum = 0
        self._crossings: dict[int, list[Sequence]] = {}

    def enter(self, sequence: Sequence) -> int:
        """``sequence``, shorter than the window, decodes from now on; the step in which it will have grown out."""
        self._members.add(sequence)
        self._offset_sum += sequence.offset
        step = self.tokens - sequence.offset
        self._crossings.setdefault(step, []).append(sequence)
        return step

    def leave(self, sequence: Sequence) -> None:
        """``sequence`` decodes no more."""
        if sequence in self._members:
            self._remove(sequence)

    def cross(self, step: int) -> None:
        """``step`` has been taken."""
        for sequence in self._crossings.pop(step, ()):
            if sequence in self._members and sequence.offset + step == self.tokens:
                self._remove(sequence)

    def tokens_read(self, step: int, sequences: int) -> int:
        """Sum of ``min(length, window)`` over a batch of ``sequences`` in ``step``."""
        inside = len(self._members)
        return self._offset_sum + inside * step + (sequences - inside) * self.tokens

    @property
    def inside(self) -> int:
        """Sequences that are shorter than the window."""
        return len(self._members)

    def _remove(self, sequence: Sequence) -> None:
        self._members.remove(sequence)
        self._offset_sum -= sequence.offset
