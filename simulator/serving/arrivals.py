"""The arrivals of a run as processes on its clock: a stream at given times, or users who wait for their answers.

``deliver`` is called with each request as it comes. ``next_ns`` is what is known of the future: no request comes
before it, except in a closed loop, where the end of a request may bring the next one at once.
"""

import heapq
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Protocol

from simulator.serving.ledger import Counts, Ledger
from simulator.traffic.requests import ClosedLoop, Requests

#: an instant that never comes
NEVER_NS: Final = 1 << 62

Deliver = Callable[[int], None]
Process = Generator[Any, Any, None]


class Arrivals(Protocol):
    """What brings the requests of a workload."""

    #: requests that have not come yet
    left: int

    def start(self, clock: Any, deliver: Deliver) -> None:
        """Begin on ``clock`` (a SimPy environment); before anything else that is to see the first arrival."""

    def next_ns(self) -> int:
        """When the next request comes that is on its way, ``NEVER_NS`` if none is."""

    def ended(self, request_id: int, now: int) -> None:
        """The request is over: in a closed loop its user goes on."""

    def lost(self, requests: int) -> None:
        """So many requests will never end: their users send nothing any more."""

    def is_over(self) -> bool:
        """Whether no request will come any more."""


class OpenArrivals:
    """Requests at given times, come what may."""

    def __init__(self, requests: Requests) -> None:
        self._times: list[int] = requests.arrival_ns.tolist()
        self._next_ns = NEVER_NS
        self.left = len(self._times)

    def start(self, clock: Any, deliver: Deliver) -> None:
        clock.process(self._stream(clock, deliver))

    def _stream(self, clock: Any, deliver: Deliver) -> Process:
        for request_id, time in enumerate(self._times):
            if time > clock.now:
                self._next_ns = time
                yield clock.timeout(time - clock.now)
            self.left -= 1
            deliver(request_id)
        self._next_ns = NEVER_NS

    def next_ns(self) -> int:
        return self._next_ns

    def ended(self, request_id: int, now: int) -> None:
        del request_id, now

    def lost(self, requests: int) -> None:
        del requests

    def is_over(self) -> bool:
        return not self.left


class ClosedArrivals:
    """Users who take turns through the requests: each thinks, sends the next one and waits until it has ended."""

    def __init__(self, closed: ClosedLoop, requests: int) -> None:
        self._closed = closed
        self._thinking: list[int] = []
        self._waiting: dict[int, Any] = {}
        self._users = min(closed.users, requests)
        self.left = requests

    def start(self, clock: Any, deliver: Deliver) -> None:
        upcoming, think_ns = iter(range(self.left)), self._closed.think_ns.tolist()
        for _ in range(self._users):
            clock.process(self._user(clock, deliver, upcoming, think_ns))

    def _user(self, clock: Any, deliver: Deliver, upcoming: Iterator[int], think_ns: list[int]) -> Process:
        for request_id in upcoming:
            think = think_ns[request_id]
            if think:
                heapq.heappush(self._thinking, int(clock.now) + think)
                yield clock.timeout(think)
                heapq.heappop(self._thinking)
            done = self._waiting[request_id] = clock.event()
            self.left -= 1
            deliver(request_id)
            yield done

    def next_ns(self) -> int:
        return self._thinking[0] if self._thinking else NEVER_NS

    def ended(self, request_id: int, now: int) -> None:
        del now
        self._waiting.pop(request_id).succeed()

    def lost(self, requests: int) -> None:
        self._users -= requests

    def is_over(self) -> bool:
        return not self._users or not (self.left or self._thinking)


def arrivals_of(requests: Requests) -> Arrivals:
    """The arrivals that ``requests`` describe."""
    if requests.closed is None:
        return OpenArrivals(requests)
    return ClosedArrivals(requests.closed, len(requests))


class Supply(Protocol):
    """What brings an engine its requests: ``Alone``, or a fleet that it is instance ``place`` of."""

    @property
    def env(self) -> Any:
        """The clock, a SimPy environment."""

    @property
    def ledger(self) -> Ledger:
        """Facts about the requests; the instances of a fleet share its rows."""

    @property
    def counts(self) -> Counts:
        """The requests so far, of all instances."""

    def is_over(self, place: int) -> bool:
        """Whether nothing will come to the instance any more."""

    def limit_ns(self, place: int, *, admission_open: bool) -> int:
        """No step of a leap of the instance may start at or after this."""


class Alone:
    """The supply of an engine that is not part of a fleet: all arrivals are its own."""

    def __init__(self, requests: Requests, clock: Any) -> None:
        self.env = clock
        self.ledger = Ledger(len(requests))
        self.arrivals = arrivals_of(requests)
        self.ledger.on_end = self.arrivals.ended

    @property
    def counts(self) -> Counts:
        """The requests so far."""
        return self.ledger.counts

    def is_over(self, place: int) -> bool:
        """Whether nothing will come any more."""
        del place
        return self.arrivals.is_over()

    def limit_ns(self, place: int, *, admission_open: bool) -> int:
        """A leap stops for the next arrival if that could be admitted at once."""
        del place
        return self.arrivals.next_ns() if admission_open else NEVER_NS
