"""Who is first at one instant: arrivals in their order, then the instances of a fleet in theirs, however events came.

A second, tiny implementation (a list of events in a heap, one request at a time an instance) foretells who serves whom
and until when, in worlds where nearly everything happens at the same instants; and the fleet itself has to leave the
same bytes when the order in which its engines' events are inserted is shuffled.
"""

import heapq
import itertools
import random
from typing import Any
from unittest import mock

import numpy as np
import pytest
import simpy
from engine_worlds import FixedCost, World, requests_of, worlds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simpy.events import EventPriority
from test_fleet import AFFINE, EMPTIEST, ROUTERS, SHORTEST, STEP_NS, TURNS, busy, facts

from simulator.config import EngineConfig, RouterConfig
from simulator.traffic.requests import ClosedLoop

Row = tuple[int, int]
"""Instance and end of a request, in steps."""


class TinyFleet:
    """Instances that serve one request at a time, a step a token. Times are steps; ``choose`` gives the place."""

    def __init__(self, lengths: list[int], instances: int, *, turns: bool) -> None:
        self.lengths = lengths
        self.turns = itertools.cycle(range(instances)) if turns else None
        self.queues: list[list[int]] = [[] for _ in range(instances)]
        self.sent = [0] * instances
        self.found: dict[int, Row] = {}
        #: time, then 0 for an arrival and 1 + place for an end, then who was announced first
        self.events: list[tuple[int, int, int, int]] = []
        self.announced = itertools.count()

    def announce(self, time: int, rank: int, request: int) -> None:
        heapq.heappush(self.events, (time, rank, next(self.announced), request))

    def arrive(self, request: int, now: int) -> None:
        least = min(range(len(self.queues)), key=lambda place: (len(self.queues[place]), self.sent[place], place))
        place = least if self.turns is None else next(self.turns)
        self.sent[place] += 1
        self.queues[place].append(request)
        if len(self.queues[place]) == 1:
            self.announce(now + self.lengths[request], 1 + place, request)

    def end(self, request: int, place: int, now: int) -> None:
        self.found[request] = (place, now)
        self.queues[place].remove(request)
        if self.queues[place]:
            following = self.queues[place][0]
            self.announce(now + self.lengths[following], 1 + place, following)

    def open(self, times: list[int]) -> dict[int, Row]:
        """Requests that come at ``times``."""
        for request, time in enumerate(times):
            self.announce(time, 0, request)
        while self.events:
            now, rank, _, request = heapq.heappop(self.events)
            if rank:
                self.end(request, rank - 1, now)
            else:
                self.arrive(request, now)
        return self.found

    def closed(self, thinks: list[int], users: int) -> dict[int, Row]:
        """Users who send the next request ``thinks`` steps after their last one has ended."""
        upcoming = iter(range(len(thinks)))
        for request in itertools.islice(upcoming, users):
            self.announce(thinks[request], 0, request)
        while self.events:
            now, rank, _, request = heapq.heappop(self.events)
            if not rank:
                self.arrive(request, now)
                continue
            self.end(request, rank - 1, now)
            following = next(upcoming, None)
            if following is not None:
                self.announce(now + thinks[following], 0, following)
        return self.found


def served(lengths: list[int], router: RouterConfig, instances: int, **arrivals: Any) -> dict[int, Row]:
    """The same of the fleet: prompts of one token, so that a request of ``n`` outputs takes ``n`` steps."""
    times = arrivals.get("times", [0] * len(lengths))
    users = arrivals.get("users")
    think_ns = np.array(arrivals.get("thinks", []), np.int64) * STEP_NS
    requests = requests_of(
        [(time * STEP_NS, 1, length) for time, length in zip(times, lengths, strict=True)],
        closed=None if users is None else ClosedLoop(users=users, think_ns=think_ns),
    )
    world = World(requests, EngineConfig(max_num_seqs=1, max_num_batched_tokens=64), "paged", 40)
    run, _ = world.fleet(router, instances, cost=FixedCost(STEP_NS))
    ends = [finished // STEP_NS for finished in run.runs[0].ledger.finished_ns]
    return dict(enumerate(zip(run.instance.tolist(), ends, strict=True)))


LENGTHS = st.lists(st.integers(1, 4), min_size=6, max_size=30)


@settings(max_examples=150, deadline=None)
@given(lengths=LENGTHS, turns=st.booleans(), instances=st.integers(2, 4), data=st.data())
def test_ties_of_arrivals_and_ends_are_decided_as_in_a_second_implementation(
    lengths: list[int], turns: bool, instances: int, data: st.DataObject
) -> None:
    gaps = data.draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    times = list(itertools.accumulate(gaps))
    expected = TinyFleet(lengths, instances, turns=turns).open(times)
    assert served(lengths, TURNS if turns else SHORTEST, instances, times=times) == expected


@settings(max_examples=150, deadline=None)
@given(lengths=LENGTHS, turns=st.booleans(), instances=st.integers(2, 4), users=st.integers(2, 6), data=st.data())
def test_ties_of_users_who_wait_for_answers_are_decided_as_in_a_second_implementation(
    lengths: list[int], turns: bool, instances: int, users: int, data: st.DataObject
) -> None:
    thinks = data.draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    expected = TinyFleet(lengths, instances, turns=turns).closed(thinks, users)
    assert served(lengths, TURNS if turns else SHORTEST, instances, thinks=thinks, users=users) == expected


def test_of_two_instances_that_end_at_one_instant_the_first_gets_the_next_request() -> None:
    """Three users, two instances: at step 2 both end; the user whose answer came from instance 0 is routed while
    instance 1 is still busy, so the request goes where it came from."""
    found = served([2, 2, 3, 3], SHORTEST, 2, thinks=[0, 0, 0, 0], users=2)
    assert found == {0: (0, 2), 1: (1, 2), 2: (0, 5), 3: (1, 5)}


# ---- the order in which events are inserted


class Shuffled(simpy.Environment):
    """A clock that forgets in which order the events of engines, due at one instant with one priority, came in."""

    def __init__(self, seed: int) -> None:
        super().__init__(initial_time=0)
        self._random = random.Random(seed)

    def schedule(self, event: Any, priority: int = EventPriority(1), delay: float = 0) -> None:
        rank = next(self._eid)
        if priority > 1:
            rank = self._random.randrange(1 << 40)
        heapq.heappush(self._queue, (self._now + delay, EventPriority(priority), rank, event))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    world=st.one_of(busy(), worlds()),
    router=ROUTERS,
    instances=st.integers(2, 4),
    seed=st.integers(0, 1 << 20),
    leap=st.booleans(),
)
def test_the_order_in_which_engines_ask_to_be_woken_changes_no_byte(
    world: World, router: RouterConfig, instances: int, seed: int, leap: bool
) -> None:
    plain = facts(*world.fleet(router, instances, leap=leap, cost=FixedCost(STEP_NS)))
    with mock.patch("simulator.fleet.new_clock", return_value=Shuffled(seed)):
        shuffled = facts(*world.fleet(router, instances, leap=leap, cost=FixedCost(STEP_NS)))
    for name, value in plain.items():
        assert shuffled[name] == value, name


@pytest.mark.parametrize("router", [SHORTEST, EMPTIEST, AFFINE], ids=lambda one: one.policy)
def test_the_shuffled_clock_would_show_engines_without_an_order(router: RouterConfig) -> None:
    """With one priority for all engines the same clocks do change who serves whom: the test above can fail."""
    closed = ClosedLoop(users=5, think_ns=np.zeros(40, np.int64))
    requests = requests_of([(0, 1, 1 + place % 3) for place in range(40)], closed=closed)
    world = World(requests, EngineConfig(max_num_seqs=1, max_num_batched_tokens=64), "paged", 40)
    seen = set()
    for seed in range(5):
        with (
            mock.patch("simulator.fleet.new_clock", return_value=Shuffled(seed)),
            mock.patch("simulator.engine.EventPriority", return_value=EventPriority(2)),
        ):
            run, _ = world.fleet(router, 3, cost=FixedCost(STEP_NS))
        seen.add(tuple(run.instance.tolist()))
    assert len(seen) > 1
