"""Lengths that follow from the time: sequences that gain one token each step, each on a clock of its own."""

from bisect import bisect_left, insort


class LiveTokens:
    """How many tokens the live sequences have just before an instant, in O(log live).

    A sequence that came at ``t = q tau + r`` with P tokens has P + ceil((s - t) / tau) of them just before
    ``s = Q tau + R``, that is P + Q - q, and one more if r < R: two sums and one look-up among the sorted ``r``.
    """

    __slots__ = ("_phases", "_step_ns", "_tokens_at_zero")

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._tokens_at_zero = 0
        self._phases: list[int] = []

    def __len__(self) -> int:
        return len(self._phases)

    def add(self, prompt_tokens: int, arrival_ns: int) -> None:
        """A sequence has come."""
        steps, phase = divmod(arrival_ns, self._step_ns)
        self._tokens_at_zero += prompt_tokens - steps
        insort(self._phases, phase)

    def remove(self, prompt_tokens: int, arrival_ns: int) -> None:
        """It is gone."""
        steps, phase = divmod(arrival_ns, self._step_ns)
        self._tokens_at_zero -= prompt_tokens - steps
        del self._phases[bisect_left(self._phases, phase)]

    def before(self, now: int) -> int:
        """Tokens of all live sequences in the nanosecond that ends at ``now``."""
        steps, phase = divmod(now, self._step_ns)
        return self._tokens_at_zero + len(self._phases) * steps + bisect_left(self._phases, phase)
