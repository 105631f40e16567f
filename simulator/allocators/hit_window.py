"""The prefix hit rate of recent requests, as an engine's log shows it.

vLLM (``v1/metrics/stats.py``, ``CachingMetrics``) adds up look-ups by step and looks back on a number of requests: the
oldest steps are left out while more requests than that remain. Whole-run and recent rates differ whenever the cache has
to warm up first.
"""

from collections import deque


class HitWindow:
    """Look-ups of the last ``requests`` requests, in whole batches, the latest batch always included."""

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

    def repeat(self, query_tokens: int, hit_tokens: int, steps: int) -> None:
        """One look-up in each of ``steps`` more steps, in which nobody else has looked."""
        for _ in range(min(steps, self.limit + 1)):
            self.close_batch()
            self.count(query_tokens, hit_tokens)

    def close_batch(self) -> None:
        """The step is over."""
        if self._open[0]:
            self.observe(*self._open)
            self._open = [0, 0, 0]

    def observe(self, requests: int, query_tokens: int, hit_tokens: int) -> None:
        """A whole batch of look-ups."""
        self._batches.append((requests, query_tokens, hit_tokens))
        self.requests += requests
        self.query_tokens += query_tokens
        self.hit_tokens += hit_tokens
        while len(self._batches) > 1 and self.requests > self.limit:
            old_requests, old_queries, old_hits = self._batches.popleft()
            self.requests -= old_requests
            self.query_tokens -= old_queries
            self.hit_tokens -= old_hits

    @property
    def hit_rate(self) -> float:
        """Tokens hit over tokens looked up; 0 when nobody has looked."""
        return self.hit_tokens / self.query_tokens if self.query_tokens else 0.0
