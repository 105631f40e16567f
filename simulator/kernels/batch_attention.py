"""Decode attention of a batch in all layers: by sums over the batch, times what every length tells beyond them."""

from collections.abc import Sequence
from typing import Any

from simulator.kernels.batch_lengths import (
    DEALT_ANEW,
    INFINITY,
    MOST_STEPS,
    ONE_BURST,
    OVERTAKEN,
    Found,
    Mark,
    StepLengths,
)
from simulator.kernels.decode_attention import GroupAttention, attention_seconds
from simulator.kernels.step_load import Lengths, known_lengths

#: sequences, tokens, pages and windowed tokens of one step, as in ``StepLoad``
Sums = tuple[int, int, int, int]


class BatchAttention:
    """The attention launches of a decode step; each takes ``launch_s`` beside its work."""

    def __init__(self, groups: Sequence[GroupAttention], launch_s: float) -> None:
        self._groups = groups
        self._page_tokens: int = groups[0].page_tokens if groups else 1
        self._layers: int = sum(group.layers for group in groups)
        self._floor_s: float = self._layers * launch_s
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
        return self._found(sums, lengths()[0].tolist()).skew

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
            return [self._found(sums(at), row).skew for at, row in enumerate(lengths().tolist())]
        first, count = int(lengths.steps[0]), len(tokens)
        skews: list[float] = []
        while len(skews) < count:
            at = len(skews)
            mark = self._mark(lengths, first + at, sums(at))
            steps, held = min(mark.until - first - at, count - at), 1
            while held < steps and mark.fits(first + at + held, int(pages[at + held])):
                held += 1
            skews += [mark.skew] * held
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
        mark = lengths.mark(step, self, sums[2])
        if mark is None:
            found = self._found(sums, lengths.row(step))
            mark = lengths.remember(step, found, sums[1] // sums[0], sums[2], self._page_tokens)
        return mark

    def _found(self, sums: Sums, row: list[int]) -> Found:
        """Seconds with every length known over those by sums, and what tells for how long that holds."""
        by_sums_s = self.by_sums(*sums, known_lengths(row))
        slack_s = OVERTAKEN * (self._floor_s + by_sums_s) / self._layers
        known_s, steps = 0.0, MOST_STEPS
        for group in self._groups:
            group_s, group_steps = group.known(sums[0], row, slack_s, MOST_STEPS)
            known_s += group_s
            steps = min(steps, group_steps)
        total_s = self._floor_s + known_s
        share, slack_pages = abs(known_s - by_sums_s) / total_s, self._slack_pages(sums[2], known_s / total_s)
        return Found(known_s / by_sums_s, share, steps, slack_pages)

    def _slack_pages(self, pages: int, share: float) -> float:
        """By how many ``pages`` may differ from steady growth, if all bursts are ``share`` of the launch."""
        kernel = self._groups[0].kernel
        pages_of_core = kernel.plan.steps_per_group / kernel.device.cores
        bursts = max(1.0, pages * pages_of_core / kernel.plan.group_pages)
        return DEALT_ANEW / pages_of_core if share / bursts > ONE_BURST else INFINITY
