"""The demand process: every request runs alone, from its arrival, at one token each step; no queue, no batch limit.

A request that arrives at ``t`` holds P + k tokens on [t + (k-1) tau, t + k tau) for k = 1..O and is gone at t + O tau,
where ``tau`` is the step time. What is left of a serving system is memory against time: with an unlimited pool the
memory that a workload asks for (an M/G/infinity queue, Campbell's theorem), with a limited one a loss system
(Erlang-B, Kaufman-Roberts). A refusal at arrival is ``oom_admission``, a refusal later ``oom_decode``.

Each request has its own clock, so there are no engine steps to simulate: one heap holds the instants at which a
request arrives, outgrows what it holds, or ends. Lengths in between follow from the time (see ``LiveTokens``).
"""

import heapq
from collections.abc import Callable, Iterator
from itertools import islice

from simulator.allocators.base import Allocator, Holding
from simulator.engine import EndedBecause, EngineRun
from simulator.serving.clock import on_clock
from simulator.serving.ledger import Counts, Ledger
from simulator.serving.live_tokens import LiveTokens
from simulator.serving.recorder import Integral, Recorder
from simulator.serving.sequence import Group, Outcome, Sequence
from simulator.traffic.requests import Requests
from simulator.units import ceil_div

#: events of one instant, in this order: what ends gives room to what grows, what grows goes before what comes
_END, _GROW, _ARRIVE = range(3)


class Live:
    """A request that runs: its samples, all of the same length at all times."""

    __slots__ = ("members", "request_id", "serial")

    def __init__(self, members: list[Sequence], serial: int) -> None:
        self.members = members
        self.request_id = members[0].request_id
        self.serial = serial


class Replay:
    """One workload's demand on one allocator. ``step_ns`` is the time a token takes.

    ``horizon_ns`` ends the run at that instant. ``watch`` is called now and then with this object (progress,
    interruption). ``verify`` asserts every allocator invariant after each instant at which memory changed hands.
    """

    def __init__(
        self,
        requests: Requests,
        *,
        step_ns: int,
        allocator: Allocator,
        max_model_len: int,
        horizon_ns: int | None = None,
        verify: bool = False,
        watch: "Callable[[Replay], bool] | None" = None,
    ) -> None:
        assert step_ns > 0
        self.requests = requests
        self.allocator = allocator
        self.ledger = Ledger(len(requests))
        self.recorder = Recorder(allocator)
        self.now_ns = 0
        self.place = 0
        self._step_ns = step_ns
        self._max_model_len = max_model_len
        self._horizon_ns = horizon_ns
        self._verify = verify
        self._watch = watch
        self._events: list[tuple[int, int, int]] = []
        self._live: dict[int, Live] = {}
        self._tokens = LiveTokens(step_ns)
        self._discount = Integral()
        self._serial = 0
        self._upcoming: Iterator[int] = iter(range(len(requests)))

    def run(self) -> EngineRun:
        """Replay to the end. Every request has an outcome afterwards, and nothing is held unless it is unfinished."""
        users = 1 if self.requests.closed is None else self.requests.closed.users
        for request_id in islice(self._upcoming, users):
            self._expect(request_id, 0)
        ended_because: EndedBecause = "completed"
        while (now := self._next_instant()) is not None:
            if self._horizon_ns is not None and now > self._horizon_ns:
                self._pass_time(self._horizon_ns)
                ended_because = "horizon"
                break
            if self._watch is not None and not self._watch(self):
                ended_because = "interrupted"
                break
            self._pass_time(on_clock(now))
            self._happen(now)
        self._close()
        return EngineRun(self.ledger, self.recorder, ended_because, self.now_ns)

    @property
    def counts(self) -> Counts:
        """The requests so far."""
        return self.ledger.counts

    def residents(self) -> list[tuple[Sequence, int]]:
        """Live sequences, each with the tokens it has just before now."""
        now, step_ns = self.now_ns, self._step_ns
        members = [member for live in self._live.values() for member in live.members]
        return [(member, member.prompt_tokens + ceil_div(now - member.arrival_ns, step_ns)) for member in members]

    # ---- time

    def _next_instant(self) -> int | None:
        """When the next event is; the end of a request that has failed before is none."""
        events = self._events
        while events and events[0][1] != _ARRIVE and events[0][2] not in self._live:
            heapq.heappop(events)
        return events[0][0] if events else None

    def _pass_time(self, now: int) -> None:
        """Nothing happens until ``now`` but that live sequences get longer."""
        recorder, bytes_per_token = self.recorder, self.allocator.bytes_per_token
        while recorder.next_row_ns < now:
            at = recorder.next_row_ns
            recorder.queues = (len(self._tokens), 0, 0)
            recorder.sample(at + 1, self._tokens.before(at + 1))
        if self._live:
            recorder.busy_ns += now - self.now_ns
        # Lengths only rise in between, so the peak of a stretch is at its end.
        used_bytes = self._tokens.before(now) * bytes_per_token - self.allocator.discount_bytes
        recorder.peak_used_bytes = max(recorder.peak_used_bytes, used_bytes)
        self.now_ns = now

    def _happen(self, now: int) -> None:
        """Everything that is due at ``now``; peaks count what is left when all of it is done."""
        while self._next_instant() == now:
            _, kind, number = heapq.heappop(self._events)
            if kind == _ARRIVE:
                self._arrive(number, now)
            elif kind == _GROW:
                self._grow(self._live[number], now)
            else:
                self._leave(self._live[number], Outcome.completed, now)
        self.allocator.maintain(now, self._holdings())
        self.allocator.work.clear()
        self.recorder.memory(now)
        self._discount.set(self.allocator.discount_bytes, now)
        self.recorder.peak_sequences = max(self.recorder.peak_sequences, len(self._tokens))
        if self._verify:
            self.allocator.check(self._holdings())

    def _close(self) -> None:
        """Count what was cut off, and check that nothing was lost on the way."""
        recorder, now = self.recorder, self.now_ns
        for live in self._live.values():
            self._count_life(live, now)
        recorder.close(now)
        self._discount.set(0, now)
        recorder.used_byte_ns -= self._discount.total
        recorder.steps = ceil_div(now, self._step_ns)
        ledger = self.ledger
        assert ledger.arrived - ledger.ended_count == len(self._live), "a request has no outcome or two"
        if not self._live:
            assert self.allocator.allocated_bytes == 0, f"{self.allocator.allocated_bytes} bytes are still held"
            assert self.allocator.discount_bytes == 0 and self.allocator.tail_bytes == 0, "sharing counts drifted"

    # ---- coming

    def _expect(self, request_id: int, now: int) -> None:
        """Schedule an arrival: at its own time, or its user's think time after ``now``."""
        closed = self.requests.closed
        at = self.requests.arrival_ns[request_id] if closed is None else now + closed.think_ns[request_id]
        heapq.heappush(self._events, (int(at), _ARRIVE, request_id))

    def _arrive(self, request_id: int, now: int) -> None:
        self.ledger.arrival(request_id, now)
        if self.requests.closed is None:
            self._expect_next(now)
        members = self._members(request_id, now)
        leader = members[0]
        if leader.final_tokens > self._max_model_len or not self.allocator.can_ever_hold(leader):
            self._ended(leader, Outcome.too_large, now)
        elif not self._admit(members):
            self._refuse(members, Outcome.oom_admission, now)
        else:
            self._start(members, now)

    def _expect_next(self, now: int) -> None:
        following = next(self._upcoming, None)
        if following is not None:
            self._expect(following, now)

    def _members(self, request_id: int, now: int) -> list[Sequence]:
        requests = self.requests
        prompt = int(requests.prompt_tokens[request_id])
        output = max(1, min(int(requests.output_tokens[request_id]), self._max_model_len - prompt))
        samples = max(1, int(requests.samples[request_id]), int(requests.beam_width[request_id]))
        prefix = None
        if requests.prefix is not None:
            start, end = requests.prefix.offsets[request_id : request_id + 2]
            prefix = requests.prefix.ids[start:end].tolist(), requests.prefix.ends[start:end].tolist()
        group = Group(samples) if samples > 1 else None
        members = []
        for sample in range(samples):
            member = Sequence(
                request_id,
                prompt_tokens=prompt,
                output_tokens=output,
                arrival_ns=now,
                sample=sample,
                prefix=prefix,
                group=group,
            )
            # In the k-th interval P + k tokens are held, the last output's included: one more than an engine stores.
            member.final_tokens = prompt + output
            members.append(member)
        return members

    def _admit(self, members: list[Sequence]) -> bool:
        """Room for the prompt and the first output of every sample; ``False`` with what was had still held."""
        first_tokens = members[0].prompt_tokens + 1
        if len(members) == 1 or not self.allocator.can_fork:
            for member in members:
                member.holding = self.allocator.admit(member, first_tokens)
                if member.holding is None:
                    return False
            return True
        leader = members[0]
        leader.holding = self.allocator.admit(leader, leader.prompt_tokens)
        if leader.holding is None:
            return False
        for member in members[1:]:
            member.holding = self.allocator.fork(leader.holding, member, leader.prompt_tokens)
        return all(self.allocator.grow(_holding(member), first_tokens) for member in members)

    def _start(self, members: list[Sequence], now: int) -> None:
        leader = members[0]
        live = Live(members, self._serial)
        self._live[self._serial] = live
        self._serial += 1
        hits = _holding(leader).hit_tokens
        self.ledger.started(leader, hits, now)
        self.recorder.prompt_tokens += leader.prompt_tokens - hits
        for member in members:
            self._tokens.add(member.prompt_tokens, now)
        heapq.heappush(self._events, (now + leader.output_tokens * self._step_ns, _END, live.serial))
        self._expect_growth(live, 0)

    # ---- growing and going

    def _expect_growth(self, live: Live, steps: int) -> None:
        """Schedule the call for the first length past ``capacity_tokens``, with ``steps`` outputs already made."""
        leader = live.members[0]
        capacity = min(_holding(member).capacity_tokens for member in live.members)
        due = max(capacity - leader.prompt_tokens, steps + 1)
        if due < leader.output_tokens:
            heapq.heappush(self._events, (leader.arrival_ns + due * self._step_ns, _GROW, live.serial))

    def _grow(self, live: Live, now: int) -> None:
        leader = live.members[0]
        steps = (now - leader.arrival_ns) // self._step_ns
        tokens = leader.prompt_tokens + steps + 1
        for member in live.members:
            member.computed_tokens = tokens - 1
            if not self.allocator.grow(_holding(member), tokens):
                self._leave(live, Outcome.oom_decode, now)
                return
        self._expect_growth(live, steps)

    def _leave(self, live: Live, outcome: Outcome, now: int) -> None:
        leader = live.members[0]
        del self._live[live.serial]
        self._count_life(live, now)
        for member in live.members:
            self._tokens.remove(member.prompt_tokens, member.arrival_ns)
            member.generated_tokens = (now - member.arrival_ns) // self._step_ns
            member.computed_tokens = member.prompt_tokens + member.generated_tokens
        if outcome is Outcome.completed:
            self._release(live.members)
            self._ended(leader, outcome, now)
        else:
            self._refuse(live.members, outcome, now)

    def _refuse(self, members: list[Sequence], outcome: Outcome, now: int) -> None:
        shortfall = self.allocator.shortfall
        assert shortfall is not None
        admission = outcome is Outcome.oom_admission
        self.ledger.oom(members[0], shortfall, now, during="admission" if admission else "decode")
        self._release(members)
        self._ended(members[0], outcome, now)

    def _release(self, members: list[Sequence]) -> None:
        for member in members:
            if member.holding is not None:
                self.allocator.release(member.holding)
                member.holding = None

    def _ended(self, sequence: Sequence, outcome: Outcome, now: int) -> None:
        self.ledger.ended(sequence, outcome, now)
        if self.requests.closed is not None:
            self._expect_next(now)

    def _count_life(self, live: Live, now: int) -> None:
        """Add what ``live`` was until ``now`` to the sums over time: exact, in closed form."""
        leader, recorder, step_ns = live.members[0], self.recorder, self._step_ns
        steps, rest_ns = divmod(now - leader.arrival_ns, step_ns)
        token_ns = step_ns * (steps * leader.prompt_tokens + steps * (steps + 1) // 2)
        token_ns += rest_ns * (leader.prompt_tokens + steps + 1)
        count = len(live.members)
        recorder.used_byte_ns += count * token_ns * self.allocator.bytes_per_token
        recorder.sequence_steps += count * (steps + bool(rest_ns))
        recorder.output_tokens += count * steps
        if steps:
            self.ledger.first_token(leader, leader.arrival_ns + step_ns)

    def _holdings(self) -> Iterator[Holding]:
        return (_holding(member) for live in self._live.values() for member in live.members)


def _holding(sequence: Sequence) -> Holding:
    assert sequence.holding is not None, f"{sequence} holds nothing"
    return sequence.holding
