"""How much of what requests look up in the cache is there."""

from simulator.allocators.base import Demand, Totals
from simulator.allocators.hit_window import HitWindow


class LookUps:
    """Counts look-ups up to the first admission of a request; those of a request that resumes are counted apart."""

    def __init__(self, recent_requests: int) -> None:
        self.recent = HitWindow(recent_requests)
        self._admitted = bytearray()

    def count(self, totals: Totals, demand: Demand, known_tokens: int, hit_tokens: int, *, more_steps: int = 0) -> None:
        """``demand`` has looked up ``known_tokens`` tokens and hit some, in this step or once in each of
        ``more_steps``."""
        admitted, request_id, times = self._admitted, demand.request_id, more_steps or 1
        if request_id < len(admitted) and admitted[request_id]:
            totals.resumed_look_ups += times
            return
        totals.look_ups += times
        totals.prefix_query_tokens += times * known_tokens
        totals.prefix_hit_tokens += times * hit_tokens
        if more_steps:
            self.recent.repeat(known_tokens, hit_tokens, more_steps)
        else:
            self.recent.count(known_tokens, hit_tokens)
        self._tell_recent(totals)

    def admit(self, demand: Demand) -> None:
        """``demand`` was admitted."""
        admitted, request_id = self._admitted, demand.request_id
        if request_id >= len(admitted):
            admitted.extend(bytes(request_id + 1024 - len(admitted)))
        admitted[request_id] = 1

    def end_step(self, totals: Totals) -> None:
        """A step is over."""
        self.recent.close_batch()
        self._tell_recent(totals)

    def _tell_recent(self, totals: Totals) -> None:
        totals.recent_query_tokens = self.recent.query_tokens
        totals.recent_hit_tokens = self.recent.hit_tokens
