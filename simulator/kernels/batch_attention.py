"""Decode attention of a batch in all layers: by sums over the batch, times what every length tells beyond them."""

from collections.abc import Sequence
from typing import Any

from simulator.kernels.batch_lengths import Mark, StepLengths
from simulator.kernels.decode_attention import GroupAttention, attention_seconds
from simulator.kernels.step_load import Lengths, known_lengths

#: sequences, tokens, pages and windowed tokens of one step, as in ``StepLoad``
Sums = tuple[int, int, int, int]


class BatchAttention:
    """The attention launches of a decode step; each takes ``launch_s`` beside its work."""

    def __init__(self, groups: Sequence[GroupAttention], launch_s: float) -> None:
        self._groups = groups
        self._floor_s: float = sum(group.layers for group in groups) * launch_s
        self.by_sums = attention_seconds(groups)
        self.needs_lengths: bool = any(group.kernel.needs_lengths for group in groups)
        self._has_skew: bool = not all(group.kernel.needs_lengths for group in groups)

    def seconds(self, sequences: int, tokens: int, pages: int, windowed_tokens: int, lengths: Lengths | None) -> float:
        """Seconds of one step."""
        by_sums_s = self.by_sums(sequences, tokens, pages, windowed_tokens, lengths)
        if lengths is None or sequences < 2 or not self._has_skew:
            return by_sums_s
        return by_sums_s * self.skew((sequences, tokens, pages, windowed_tokens), lengths)

    def skew(self, sums: Sums, lengths: Lengths | None) -> float:
        """What ``seconds`` multiplies the seconds by sums with."""
        if lengths is None or sums[0] < 2 or not self._has_skew:
            return 1.0
        if isinstance(lengths, StepLengths):
            return self._mark(lengths, lengths.steps, sums).skew
        return self._ratio(sums, lengths()[0].tolist())[0]

    def skews(self, sequences: int, columns: tuple[Any, Any, Any], lengths: Lengths | None) -> list[float] | None:
        """The same for steps one after the other, of as many sequences; ``None`` where it is 1 for all.

        ``columns`` are arrays of tokens, pages and windowed tokens.
        """
        if lengths is None or sequences < 2 or not self._has_skew:
            return None
        tokens, pages, windowed = columns

        def sums(at: int) -> Sums:
            return sequences, int(tokens[at]), int(pages[at]), int(windowed[at])

        if not isinstance(lengths, StepLengths):
            return [self._ratio(sums(at), row)[0] for at, row in enumerate(lengths().tolist())]
        first, count = int(lengths.steps[0]), len(tokens)
        skews: list[float] = []
        while len(skews) < count:
            at = len(skews)
            mark = self._mark(lengths, first + at, sums(at))
            skews += [mark.skew] * min(mark.until - first - at, count - at)
        return skews

    def seconds_array(
        self, sequences: int, tokens: Any, pages: Any, windowed_tokens: Any, lengths: Lengths | None
    ) -> Any:
        """``seconds`` of many steps by sums alone, as an array; times ``skews`` it is bit for bit ``seconds``."""
        import numpy as np

        found = np.zeros(np.shape(tokens))
        for group in self._groups:
            found = found + group.seconds_array(sequences, tokens, pages, windowed_tokens, lengths)
        return found

    def _mark(self, lengths: StepLengths, step: int, sums: Sums) -> Mark:
        mark = lengths.mark(step, self)
        if mark is None:
            skew, share = self._ratio(sums, lengths.row(step))
            mark = lengths.remember(step, skew, share, sums[1] // sums[0])
        return mark

    def _ratio(self, sums: Sums, row: list[int]) -> tuple[float, float]:
        """Seconds with every length known over those by sums, and what part of the launch their difference is."""
        lengths = known_lengths(row)
        by_sums_s = self.by_sums(*sums, lengths)
        known_s = 0.0
        for group in self._groups:
            known_s += group.known_seconds(sums[0], row)
        return known_s / by_sums_s, abs(known_s - by_sums_s) / (self._floor_s + known_s)
