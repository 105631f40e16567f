"""Several serving instances behind a router: one workload, one clock, an engine and an allocator each.

The router decides at the instant of an arrival, before any engine acts at that instant, and sees every instance as it
is then. Leaps stay exact because no instance leaps over an instant at which it may be asked or given something:

* taking turns needs no state, so an instance stops only for the arrivals that are its own;
* live requests change when a request comes or ends, and a leap ends there anyway: an instance stops for the next
  arrival, whoever gets it, only while it could admit it at once (or a queue time-out could end somebody);
* memory held changes inside leaps: with ``load: kv`` every instance stops for every arrival;
* in a closed loop the end of a request anywhere brings the next one, so no instance leaps beyond the instant at which
  another one acts.

Engines that act at the same instant do so in the order of the instances.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.engine import EndedBecause, Engine, EngineRun, new_clock
from simulator.serving.arrivals import NEVER_NS, arrivals_of
from simulator.serving.ledger import Counts, Ledger
from simulator.serving.router import RoundRobin, Router
from simulator.traffic.requests import IntArray, Requests

#: makes the engine of one instance from its place and the fleet that supplies it
MakeEngine = Callable[[int, "Fleet"], Engine]


@dataclass(frozen=True, slots=True)
class FleetRun:
    """What the instances leave behind, in their order. ``instance`` has the place that served each request, or -1."""

    runs: tuple[EngineRun, ...]
    instance: IntArray


class Fleet:
    """``instances`` engines made by ``make``, fed by ``router``. A ``Supply`` to each of them.

    ``timeouts``: a queued request may end by itself, so that the number of live ones changes inside leaps.
    """

    def __init__(
        self, requests: Requests, router: Router, make: MakeEngine, *, instances: int, timeouts: bool = False
    ) -> None:
        self.env = new_clock()
        self.ledger = Ledger(len(requests))
        self.instance = np.full(len(requests), -1, np.int64)
        self._arrivals = arrivals_of(requests)
        self._router = router
        self._closed = requests.closed is not None
        self._looks_inside = router.looks_at_kv or timeouts
        self._own_times: list[deque[int]] | None = None
        if isinstance(router, RoundRobin) and not self._closed:
            self._own_times = [deque(requests.arrival_ns[place::instances].tolist()) for place in range(instances)]
        self._interrupted = False
        self.engines = [make(place, self) for place in range(instances)]
        for engine in self.engines:
            engine.ledger.on_end = self._arrivals.ended

    def run(self) -> FleetRun:
        """Simulate to the end of every instance."""
        self._arrivals.start(self.env, self._deliver)
        loops = [engine.begin() for engine in self.engines]
        for engine, loop in zip(self.engines, loops, strict=True):
            loop.callbacks.append(self._stopped(engine))
        self.env.run(until=self.env.all_of(loops))
        runs = tuple(engine.finish() for engine in self.engines)
        self._continue_timelines(max(run.ended_ns for run in runs))
        live = sum(engine.live_requests for engine in self.engines)
        assert live == self.ledger.unfinished(), f"{live} requests are live, {self.ledger.unfinished()} have no outcome"
        return FleetRun(runs, self.instance)

    def leave(self, because: EndedBecause, detail: str) -> FleetRun:
        """The facts so far, for a fleet that cannot go on."""
        return FleetRun(tuple(engine.leave(because, detail) for engine in self.engines), self.instance)

    def _continue_timelines(self, until_ns: int) -> None:
        """Rows up to the end of the fleet for instances that stopped before, with their last state."""
        for engine in self.engines:
            scheduler, batch = engine.scheduler, engine.batch
            tokens = batch.context_tokens(batch.step) + scheduler.prefilling_tokens + scheduler.idle_tokens
            engine.recorder.queues = (len(scheduler.running), scheduler.requeued, len(scheduler.swapped))
            engine.recorder.sample(until_ns, tokens)

    # ---- arrivals

    def _deliver(self, request_id: int) -> None:
        place = self._router.choose(request_id, self.engines)
        if self._own_times is not None and place is not None:
            self._own_times[place].popleft()
        if place is None or not self.engines[place].is_open:
            self._arrivals.lost(1)
            self._if_over()
            return
        self.instance[request_id] = place
        self.engines[place].arrive(request_id)
        self._if_over()

    def _stopped(self, engine: Engine) -> Callable[[Any], None]:
        def callback(_: Any) -> None:
            self._arrivals.lost(engine.live_requests)
            self._if_over()

        return callback

    def _if_over(self) -> None:
        """Nothing will come any more: idle instances need not wait."""
        if self._interrupted or self._arrivals.is_over():
            for engine in self.engines:
                engine.wake()

    # ---- what an instance asks

    @property
    def counts(self) -> Counts:
        """The requests so far, of all instances."""
        each = [engine.ledger.counts for engine in self.engines]
        return Counts(sum(one.arrived for one in each), sum(one.ended for one in each), sum(one.lost for one in each))

    def is_over(self, place: int) -> bool:
        """Whether nothing will come to the instance any more."""
        if self._own_times is not None:
            return self._interrupted or not self._own_times[place]
        return self._interrupted or self._arrivals.is_over()

    def limit_ns(self, place: int, *, admission_open: bool) -> int:
        """No step of a leap of the instance may start at or after this."""
        if self._own_times is not None:
            own = self._own_times[place]
            return own[0] if own and admission_open else NEVER_NS
        limit = self._arrivals.next_ns() if admission_open or self._looks_inside or self._closed else NEVER_NS
        if self._closed:
            others = (one.wakes_ns for other, one in enumerate(self.engines) if other != place and one.is_open)
            limit = min(limit, *others, NEVER_NS)
        return limit

    def watched(self, watch: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """``watch`` for every instance: once it says no, no instance goes on beyond its next scheduling point."""

        def ask(engine: Any) -> bool:
            if not self._interrupted and not watch(engine):
                self._interrupted = True
                self._if_over()
            return not self._interrupted

        return ask
