"""The prefix hit rate of recent requests, as an engine's log shows it.

vLLM (``v1/metrics/stats.py``, ``CachingMetrics``) adds up look-ups by step and looks back on a number of requests: the
oldest steps are left out while more requests than that remain. Whole-run and recent rates differ whenever the cache has
to warm up first.
"""

from collections import deque


class HitWindow:
    """Look-ups of the last ``requests`` requests, in whole batches: the latest is always included, and the one that is
    still open."""

    def __init__(self, requests: int) -> None:
        self.limit = requests
        self.requests = 0
        self.query_tokens = 0
        self.hit_tokens = 0
        self._batches: deque[tuple[int, int, int]] = deque()
        self._open = [0, 0, 0]

    def count(self, query_tokens: int, hit_tokens: int) -> None:
        """One look-up in the batch that is open."""
        batch = self._open
        batch[0] += 1
        batch[1] += query_tokens
        batch[2] += hit_tokens
        self._add(1, query_tokens, hit_tokens)

    def repeat(self, query_tokens: int, hit_tokens: int, steps: int) -> None:
        """One look-up in each of ``steps`` more steps, in which nobody else has looked."""
        for _ in range(min(steps, self.limit + 1)):
            self.close_batch()
            self.count(query_tokens, hit_tokens)

    def close_batch(self) -> None:
        """The step is over: the oldest batches are left out while more than ``limit`` requests remain."""
        if not self._open[0]:
            return
        self._batches.append((self._open[0], self._open[1], self._open[2]))
        self._open = [0, 0, 0]
        while len(self._batches) > 1 and self.requests > self.limit:
            requests, query_tokens, hit_tokens = self._batches.popleft()
            self._add(-requests, -query_tokens, -hit_tokens)

    def observe(self, requests: int, query_tokens: int, hit_tokens: int) -> None:
        """A whole step of look-ups."""
        self.close_batch()
        self._open = [requests, query_tokens, hit_tokens]
        self._add(requests, query_tokens, hit_tokens)
        self.close_batch()

    def _add(self, requests: int, query_tokens: int, hit_tokens: int) -> None:
        self.requests += requests
        self.query_tokens += query_tokens
        self.hit_tokens += hit_tokens

    @property
    def hit_rate(self) -> float:
        """Tokens hit over tokens looked up; 0 when nobody has looked."""
        return self.hit_tokens / self.query_tokens if self.query_tokens else 0.0
