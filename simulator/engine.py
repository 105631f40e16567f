"""What happens, and when: SimPy processes for arrivals and for the decode loop.

The clock counts integer nanoseconds. One SimPy event is one arrival or one *scheduling point*: between two of them
the batch only decodes, and the steps in between are taken in one leap (see ``leap``). ``leap=False`` takes every step
as a scheduling point and visits every sequence in it; tests compare the two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import simpy
from simpy.events import EventPriority

from simulator.allocators.base import Allocator
from simulator.config import EngineConfig
from simulator.cost import StepTimes
from simulator.kernels.step_load import StepLoad
from simulator.scheduler import Scheduler
from simulator.serving.arrivals import NEVER_NS, Alone, Process, Supply
from simulator.serving.batch import DecodeBatch
from simulator.serving.clock import on_clock
from simulator.serving.leap import Leap
from simulator.serving.ledger import Counts, Ledger
from simulator.serving.members import Members
from simulator.serving.recorder import Recorder, first_interval_ns
from simulator.serving.schedulers import SCHEDULERS
from simulator.serving.sequence import DONE
from simulator.traffic.requests import Requests

EndedBecause = Literal["completed", "horizon", "livelock", "interrupted"]

#: SimPy priority of the decode loop: after every arrival of the same instant, whoever was scheduled first; the loops
#: of a fleet follow each other in the order of its instances
_AFTER_ARRIVALS: Final = 2
#: a run in which this many preemptions (and 8 for each live sequence) pass without one new output goes in circles
_CIRCLING_PREEMPTIONS: Final = 64


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What a run leaves behind: facts, memory over time, and how it ended (``detail`` says why, in words)."""

    ledger: Ledger
    recorder: Recorder
    ended_because: EndedBecause
    ended_ns: int
    detail: str = ""


def new_clock() -> simpy.Environment:
    """A clock at 0 for several engines."""
    return simpy.Environment(initial_time=0)


class Engine:
    """One serving instance over one workload with one allocator.

    ``horizon_ns`` ends the run at the first scheduling point not before it. ``watch`` is called now and then with the
    engine itself (progress, interruption). ``verify`` asserts every allocator invariant at each scheduling point;
    ``leaky`` expects planted mistakes, so that memory may be missing at the end. ``cost_for_runs`` gives the step costs
    for a mean number of adjacent pages, which a compacting allocator changes as it goes. With a ``supply`` the engine
    is instance ``place`` of a fleet: it is fed by ``arrive``, and run between ``begin`` and ``finish``.
    """

    def __init__(
        self,
        requests: Requests,
        *,
        engine: EngineConfig,
        allocator: Allocator,
        cost: StepTimes,
        max_model_len: int,
        window_tokens: int | None = None,
        horizon_ns: int | None = None,
        leap: bool = True,
        verify: bool = False,
        leaky: bool = False,
        cost_for_runs: Callable[[float], StepTimes] | None = None,
        watch: "Callable[[Engine], bool] | None" = None,
        supply: Supply | None = None,
        place: int = 0,
    ) -> None:
        self.requests = requests
        self.allocator = allocator
        self.cost = cost
        self.max_model_len = max_model_len
        self.horizon_ns = horizon_ns
        self._supply = Alone(requests, new_clock()) if supply is None else supply
        self.place = place
        self._priority = EventPriority(_AFTER_ARRIVALS + place)
        self.env = self._supply.env
        self.ledger = self._supply.ledger if supply is None else Ledger.beside(supply.ledger)
        self.recorder = Recorder(allocator, interval_ns=first_interval_ns(self._known_ns()))
        self.batch = DecodeBatch(allocator.tile_tokens if allocator.max_pages else 0, window_tokens)
        self.scheduler: Scheduler = SCHEDULERS[engine.scheduler](
            engine,
            allocator,
            batch=self.batch,
            ledger=self.ledger,
            max_model_len=max_model_len,
            walk=not leap,
        )
        self._members = Members(requests, max_model_len=max_model_len, can_fork=allocator.can_fork)
        self.now_ns = 0
        #: when the decode loop goes on, as far as is known now
        self.wakes_ns = 0
        self._leaps = leap and self.scheduler.can_leap
        self._leap = Leap(self.scheduler, cost, self.recorder)
        self._verify = verify
        self._leaky = leaky
        self._cost_for_runs = cost_for_runs
        self._watch = watch
        self._idle: simpy.Event | None = None
        self._ended_because: EndedBecause = "completed"
        self._detail = ""

    def run(self) -> EngineRun:
        """Simulate to the end. Every request has an outcome afterwards, and nothing is held unless it is unfinished."""
        assert isinstance(self._supply, Alone), "instances of a fleet are run together"
        self._supply.arrivals.start(self.env, self.arrive)
        self.env.run(until=self.begin())
        return self.finish()

    def begin(self) -> simpy.Process:
        """Start the decode loop; the process ends when the engine stops."""
        process: simpy.Process = self.env.process(self._decode_loop())
        self._process = process
        return process

    def finish(self) -> EngineRun:
        """Close the books after the decode loop has ended."""
        self.recorder.close(self.now_ns)
        self._assert_conservation()
        return self.leave(self._ended_because, self._detail)

    def leave(self, because: EndedBecause, detail: str) -> EngineRun:
        """The facts so far, for a run that is over or that cannot go on."""
        return EngineRun(self.ledger, self.recorder, because, self.now_ns, detail)

    # ---- what a router and whoever watches see

    @property
    def is_open(self) -> bool:
        """Whether the engine has not stopped."""
        return bool(self._process.is_alive)

    @property
    def live_requests(self) -> int:
        """Requests that have come and not ended."""
        return self.ledger.arrived - self.ledger.ended_count

    @property
    def held_bytes(self) -> int:
        """KV bytes that sequences hold."""
        return self.allocator.allocated_bytes

    @property
    def counts(self) -> Counts:
        """The requests so far, here or on all instances of the fleet."""
        return self._supply.counts

    # ---- arrivals

    def arrive(self, request_id: int) -> None:
        """The request comes now."""
        now = on_clock(self._clock())
        self.ledger.arrival(request_id, now)
        for sequence in self._members.of(request_id, now):
            if sequence.state is not DONE:
                self.scheduler.enqueue(sequence, now)
        self.wake()

    def wake(self) -> None:
        """Look again, if the engine is idle: something has come, or nothing will."""
        if self._idle is not None and not self._idle.triggered:
            self._idle.succeed()

    # ---- the decode loop

    def _decode_loop(self) -> Process:
        closed = self.requests.closed is not None
        while True:
            now = self.now_ns = self._clock()
            if self._must_stop(now):
                return
            ended_before, standing = self.ledger.ended_count, self._standing()
            load = self._schedule(now)
            if load is None:
                if self._standing() != standing:
                    continue  # ask again before giving up: memory may have been given back
                if self._supply.is_over(self.place):
                    if self.scheduler.holds_work():
                        self._stop("livelock", self.scheduler.describe_deadlock())
                    return
                if self._hopeless():
                    return
                yield from self._idle_until_arrival(now)
                continue
            until = self._run_steps(load, now, may_leap=ended_before == self.ledger.ended_count or not closed)
            yield self._sleep(until - now)
            self.now_ns = until
            self.scheduler.finish_step(until)
            if closed:
                yield self._sleep(0)  # lets users whose request has just ended send their next one

    def _schedule(self, now: int) -> StepLoad | None:
        scheduler, recorder = self.scheduler, self.recorder
        # Tidying up, if it is time, is charged to the step about to run.
        self.allocator.maintain(now, map(scheduler.holding, scheduler.running))
        load = scheduler.schedule(now)
        recorder.blocked = scheduler.blocked
        recorder.memory(now)
        if load is not None and load.prefill_tokens and self._cost_for_runs is not None:
            # Only where prompts run: such steps are never inside a leap, so a leap meets one cost model.
            assert self.allocator.mean_run_pages is not None
            self.cost = self._leap.cost = self._cost_for_runs(self.allocator.mean_run_pages)
        recorder.dead.set(scheduler.dead_tokens * self.allocator.bytes_per_token, now)
        if self._verify:
            self.allocator.check(scheduler.live_holdings())
        return load

    def _run_steps(self, load: StepLoad, now: int, *, may_leap: bool) -> int:
        """Take the scheduled step and, if it only decodes, as many more as nothing can interrupt; the end time.

        ``may_leap`` is false when a user of a closed loop is about to send a request that nobody knows of yet.
        """
        until = on_clock(now + self.cost.step_ns(load))
        tokens = self._live_tokens(load)
        self.recorder.hold(until - now, tokens)
        self._count(load, until - now)
        self._sample_timeline(until, tokens)
        if load.decode_sequences:
            self.ledger.progress()
            if may_leap and self._leaps and self.scheduler.only_decodes(load):
                until = self._leap.run(until, self._leap_limit_ns(until))
        return until

    def _leap_limit_ns(self, now: int) -> int:
        """A leap takes no step that starts at or after this instant."""
        limit = self._supply.limit_ns(self.place, admission_open=self.scheduler.admission_open())
        if self.horizon_ns is not None:
            limit = min(limit, self.horizon_ns)
        deadline = self.scheduler.deadline_ns()
        return limit if deadline is None else min(limit, deadline)

    def _live_tokens(self, load: StepLoad) -> int:
        scheduler = self.scheduler
        step = self.batch.step + (1 if load.decode_sequences else 0)
        return self.batch.context_tokens(step) + scheduler.prefilling_tokens + scheduler.idle_tokens

    def _count(self, load: StepLoad, duration_ns: int) -> None:
        self.recorder.count_step(
            sequences=load.sequences,
            outputs=load.sampled_sequences + load.forked_outputs,
            prompt_tokens=load.prefill_tokens - self.scheduler.padded_prompt_tokens,
            duration_ns=duration_ns,
        )

    def _sample_timeline(self, until: int, tokens: int) -> None:
        if until > self.recorder.next_row_ns:
            scheduler = self.scheduler
            self.recorder.queues = (len(scheduler.running), scheduler.requeued, len(scheduler.swapped))
            self.recorder.sample(until, tokens)

    def _known_ns(self) -> int:
        """How long the run will last at least, unless it comes to a standstill: arrivals of users are not known."""
        last_ns = self.requests.last_arrival_ns
        return last_ns if self.horizon_ns is None else min(last_ns, self.horizon_ns)

    # ---- waiting and stopping

    def _clock(self) -> int:
        """SimPy's clock; only integers are ever added to it."""
        return int(self.env.now)

    def _sleep(self, delay: int) -> simpy.Event:
        """An event ``delay`` nanoseconds ahead that comes after every arrival of that instant."""
        event = simpy.Event(self.env)
        event._ok = True
        event._value = None
        self.env.schedule(event, priority=self._priority, delay=delay)
        self.wakes_ns = self._clock() + delay
        return event

    def _idle_until_arrival(self, now: int) -> Process:
        self._idle = self.env.event()
        self.wakes_ns = NEVER_NS
        yield self._idle if self.horizon_ns is None else self._idle | self._sleep(max(0, self.horizon_ns - now))
        self._idle = None
        yield self._sleep(0)
        self._sample_timeline(self._clock(), self.scheduler.idle_tokens)

    def _must_stop(self, now: int) -> bool:
        if self.horizon_ns is not None and now >= self.horizon_ns:
            self._stop("horizon", "")
            return True
        scheduler = self.scheduler
        live = len(scheduler.running) + len(scheduler.waiting) + len(scheduler.swapped)
        limit = _CIRCLING_PREEMPTIONS + 8 * live
        if self.ledger.idle_preemptions > limit:
            self._stop("livelock", self.scheduler.describe_deadlock())
            return True
        if self._watch is not None and not self._watch(self):
            self._stop("interrupted", "")
            return True
        return False

    def _standing(self) -> tuple[int, int, int, int, tuple[int, int]]:
        """What an empty step may change so that the next one is answered differently."""
        ledger = self.ledger
        moves = self.allocator.totals.moves
        return ledger.ended_count, ledger.preemption_count, ledger.stalls, moves, self.scheduler.chances()

    def _hopeless(self) -> bool:
        """Nothing runs although sequences are live: no arrival can help those that hold all the memory."""
        if not self.scheduler.running and not self.scheduler.waiting and not self.scheduler.swapped:
            return False
        self._stop("livelock", self.scheduler.describe_deadlock())
        return True

    def _stop(self, because: EndedBecause, detail: str) -> None:
        self._ended_because, self._detail = because, detail

    def _assert_conservation(self) -> None:
        """Every arrival has one outcome, and with nobody live nothing is held (always on, O(1) and O(requests))."""
        ledger = self.ledger
        live = self.live_requests
        if isinstance(self._supply, Alone):  # rows of a fleet are counted once for all
            assert live == ledger.unfinished(), f"{live} requests are live, {ledger.unfinished()} have no outcome"
        if live == 0 and not self._leaky:
            assert self.allocator.allocated_bytes == 0, f"{self.allocator.allocated_bytes} bytes are still held"
            assert self.allocator.discount_bytes == 0 and self.allocator.tail_bytes == 0, "sharing counts drifted"
        if self._verify:
            self.allocator.check(self.scheduler.live_holdings())
