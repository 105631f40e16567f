"""Who is where: waiting, computing a prompt, decoding, stalled, swapped out; how sequences change places and end.

Every sequence is in at most one place. ``withdraw`` takes it out of wherever it is, ``end`` gives back what it holds
and tells the ledger; the counts that others read (tokens being computed, sequences waiting again) follow here and
nowhere else.
"""

from collections import deque

from simulator.allocators.base import Allocator, Holding
from simulator.config import EngineConfig
from simulator.serving.batch import DecodeBatch
from simulator.serving.beams import Beams
from simulator.serving.ledger import Ledger
from simulator.serving.sequence import DECODE, DONE, PAUSED, PREFILL, STALLED, SWAPPED, WAITING, Outcome, Sequence
from simulator.serving.waiting import waiting_queue


class Roster:
    """The live sequences of one engine and their places."""

    #: set by the scheduler
    beams: Beams

    def __init__(self, engine: EngineConfig, allocator: Allocator, *, batch: DecodeBatch, ledger: Ledger) -> None:
        self.engine = engine
        self.allocator = allocator
        self.batch = batch
        self.ledger = ledger
        self.waiting = waiting_queue(engine.scheduling_policy)
        self.swapped: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.stalled: list[Sequence] = []
        self.prefilling_tokens = 0
        self.idle_tokens = 0
        self.dead_tokens = 0
        self.requeued = 0
        self.pending_forks = 0
        self._serial = 0

    # ---- looking

    def live_holdings(self) -> list[Holding]:
        """What running sequences hold (swapped ones hold host memory)."""
        return [self.holding(sequence) for sequence in self.running]

    def residents(self) -> list[tuple[Sequence, int]]:
        """Sequences that hold device memory, each with the tokens it has there (those being computed included)."""
        batch = self.batch
        return [(s, batch.length(s) if s.state is DECODE else s.computed_tokens) for s in self.running]

    def holds_work(self) -> bool:
        """Whether any sequence is live."""
        return bool(self.running or self.waiting or self.swapped)

    @staticmethod
    def holding(sequence: Sequence) -> Holding:
        """What ``sequence`` holds; it must hold something."""
        assert sequence.holding is not None, f"{sequence} holds nothing"
        return sequence.holding

    # ---- coming

    def start(self, sequence: Sequence, holding: Holding, now: int) -> None:
        """``sequence`` has been given memory and begins (again) to compute its prompt."""
        sequence.holding = holding
        sequence.computed_tokens = holding.hit_tokens
        sequence.state = PREFILL
        sequence.blocked = False
        self._enter_running(sequence)
        self.pending_forks += sequence.forks
        if sequence.requeued:
            self.requeued -= 1
            sequence.requeued = False
            self.ledger.resumed(sequence)
        self.prefilling.append(sequence)
        self.prefilling_tokens += holding.hit_tokens
        self.ledger.started(sequence, holding.hit_tokens, now)

    def resume(self, sequence: Sequence) -> None:
        """A swapped sequence is back on the device and decodes in this step."""
        self.swapped.remove(sequence)
        self._enter_running(sequence)
        self.batch.join(sequence, sequence.computed_tokens)

    def _enter_running(self, sequence: Sequence) -> None:
        sequence.serial = self._serial
        self._serial += 1
        self.running.append(sequence)

    # ---- from prompt to decoding

    def finish_prefills(self, now: int) -> None:
        for sequence in list(self.prefilling):
            if sequence.computed_tokens < sequence.target_tokens:
                continue
            self.leave_prefill(sequence)
            for member in self._fork(sequence):
                member.generated_tokens += 1
                self.ledger.first_token(member, now)
                if member.generated_tokens == member.output_tokens:
                    self.end(member, Outcome.completed, now)
                else:
                    self.batch.join(member, member.computed_tokens)

    def leave_prefill(self, sequence: Sequence) -> None:
        """``sequence`` computes no prompt any more."""
        self.pending_forks -= sequence.forks
        self.prefilling.remove(sequence)
        self.prefilling_tokens -= sequence.computed_tokens
        sequence.state = PAUSED

    def _fork(self, leader: Sequence) -> list[Sequence]:
        """The samples of a request that share its prompt: ``leader`` and, if it has not been done yet, its forks."""
        if not leader.forks:
            return [leader]
        assert leader.group is not None
        members = [leader]
        at = self.running.index(leader)
        for child in leader.group.members[1:]:
            child.holding = self.allocator.fork(self.holding(leader), child, leader.computed_tokens)
            child.computed_tokens = leader.computed_tokens
            child.serial = leader.serial
            members.append(child)
        self.running[at + 1 : at + 1] = members[1:]
        leader.forks = 0
        self.beams.begin(leader.group)
        return members

    # ---- the end of a sequence

    def end(self, sequence: Sequence, outcome: Outcome, now: int) -> None:
        """``sequence`` is over: give back what it holds; a failure takes the other samples of its request along."""
        self._let_go(sequence, outcome)
        group = sequence.group
        if group is None:
            self.ledger.ended(sequence, outcome, now)
            return
        group.open_sequences -= 1
        if outcome is not Outcome.completed:
            for member in group.members:
                if member.state is not DONE:
                    self._retire(member)
            group.open_sequences = 0
        if group.open_sequences == 0:
            self.ledger.ended(sequence, outcome, now)

    def _let_go(self, sequence: Sequence, outcome: Outcome) -> None:
        """Give back what ``sequence`` holds, whatever the outcome (static batches keep it)."""
        del outcome
        self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        was_running = sequence.holding is not None and sequence.state is not SWAPPED
        self.withdraw(sequence)
        if sequence.holding is not None:
            self.allocator.release(sequence.holding)
            sequence.holding = None
        if was_running:
            self.running.remove(sequence)
        sequence.state = DONE

    def withdraw(self, sequence: Sequence) -> None:
        """Take ``sequence`` out of whatever it is doing; what it holds and its place in ``running`` stay."""
        state = sequence.state
        if state is DECODE:
            self.batch.leave(sequence)
        elif state is PREFILL:
            self.leave_prefill(sequence)
        elif state is STALLED:
            self.stalled.remove(sequence)
            self.idle_tokens -= sequence.computed_tokens
        elif state is SWAPPED:
            self.swapped.remove(sequence)
        elif state is WAITING and sequence in self.waiting:
            self.waiting.remove(sequence)
            self.requeued -= sequence.requeued
