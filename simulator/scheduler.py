"""Who runs next: queues, admission, chunked prefill. No clock of its own; it is told the time.

``Scheduler`` follows vLLM v1 (``vllm/v1/core/sched/scheduler.py``): no phases, every sequence has tokens to
compute, a step has a token budget. Running sequences come first, in the order of admission; then, unless somebody was
preempted in this step, waiting ones are admitted in order until a seat, the budget or memory is missing
(head-of-line blocking). What happens when memory is missing is ``pressure``'s business.

One step is ``load = schedule(now)`` at its start and ``finish_step(now)`` at its end.
"""

from collections import deque

from simulator.allocators.base import Allocator, Holding
from simulator.config import EngineConfig
from simulator.cost import StepLoad
from simulator.profiles import PROFILES
from simulator.serving import deadlock
from simulator.serving.admission import Admission
from simulator.serving.append_reserve import AppendReserve
from simulator.serving.batch import DecodeBatch
from simulator.serving.beams import Beams
from simulator.serving.ledger import Ledger
from simulator.serving.pressure import Pressure
from simulator.serving.sequence import Outcome, Sequence, State
from simulator.units import ceil_div, to_ns


class Scheduler:
    """Continuous batching. ``max_model_len`` bounds every sequence; ``walk`` visits every running sequence in every
    step instead of using the batch's calendar (slower, the reference that leaps are compared with)."""

    #: whether decoding sequences run in a step that also computes prompts
    mixes_prefill_and_decode = True
    #: whether running sequences take their memory before waiting ones are admitted in the same step
    grows_before_admission = True
    #: whether decode-only stretches may be taken in one leap
    can_leap = True

    def __init__(
        self,
        engine: EngineConfig,
        allocator: Allocator,
        *,
        batch: DecodeBatch,
        ledger: Ledger,
        max_model_len: int,
        walk: bool = False,
    ) -> None:
        self.engine = engine
        self.allocator = allocator
        self.batch = batch
        self.ledger = ledger
        self.max_model_len = max_model_len
        self.waiting: deque[Sequence] = deque()
        self.swapped: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.stalled: list[Sequence] = []
        self.blocked = False
        #: who has asked for memory in this step and was refused
        self.refused: Sequence | None = None
        self.chances_changed = False
        self.preempted_in_step = False
        self.prefilling_tokens = 0
        self.idle_tokens = 0
        self.dead_tokens = 0
        self.requeued = 0
        self._pending_forks = 0
        self.load = StepLoad()
        self.beams = Beams(self)
        self.pressure = Pressure(self, PROFILES[engine.profile].victim)
        self.append_reserve = AppendReserve(self)
        self.admission = Admission(self)
        self._rules = self.admission.rules
        # Look-ahead slots are a rule of paged engines; a contiguous reservation has its own slack.
        self._lookahead = engine.num_lookahead_tokens if allocator.max_pages else 0
        self._queue_timeout_ns = None if engine.queue_timeout is None else to_ns(engine.queue_timeout)
        self._walk = walk
        self._windowed = batch.windowed
        self._serial = 0

    # ---- arrivals

    def enqueue(self, sequence: Sequence, now: int) -> None:
        """A new sequence arrives. One that an empty pool could not hold ends here as ``too_large``."""
        self.append_reserve.seen(sequence)
        if self.admission.never_fits(sequence):
            self.end(sequence, Outcome.too_large, now)
        else:
            self.waiting.append(sequence)

    # ---- one step

    def only_decodes(self, load: StepLoad) -> bool:
        """Whether the step just scheduled leaves nothing to decide before the batch itself changes."""
        if self.chances_changed or (self.blocked and self.allocator.compacts_on_failure):
            return False  # asking again is answered differently, or moves pages on
        if self.append_reserve.near(0) or (self.blocked and self.admission.token_budget is not None):
            return False  # decoding by itself changes who may go on or come in
        return not (load.prefill_tokens or self.prefilling or self.stalled or self.preempted_in_step or self.beams)

    def chances(self) -> tuple[int, int]:
        """What the answer to a blocked request depends on, while nobody ends: memory held, and cached pages given up
        (a hit counts as a needed page, so even losing hits can unblock)."""
        return -self.allocator.allocated_bytes, self.allocator.totals.evictions

    def better(self, before: tuple[int, int]) -> bool:
        """Whether a blocked request may be answered differently than at ``before``."""
        held, evictions = self.chances()
        return held > before[0] or evictions != before[1]

    def schedule(self, now: int) -> StepLoad | None:
        """Place everything that runs in the step starting at ``now``; ``None`` when nothing can run."""
        self.load = StepLoad()
        self.preempted_in_step = False
        self.blocked = False
        self.refused = None
        budget = self._continue_running(self.engine.max_num_batched_tokens, now)
        if not self.preempted_in_step:
            budget = self._resume_swapped(budget, now)
            self._admit_waiting(budget, now)
        self._add_decodes(now)
        return self.load if self.load.decode_sequences or self.load.prefill_tokens else None

    def finish_step(self, now: int) -> None:
        """The step is over at ``now``: outputs exist, finished sequences leave, computed prompts start to decode."""
        if self.load.decode_sequences:
            for sequence in self.batch.advance(self.batch.step + 1):
                self.end(sequence, Outcome.completed, now)
            self.beams.choose()
        if self.prefilling:
            self._finish_prefills(now)

    def _add_decodes(self, now: int) -> None:
        batch, load, step = self.batch, self.load, self.batch.step + 1
        if batch.size and (self.mixes_prefill_and_decode or not load.prefill_tokens):
            load.decode_sequences = batch.size
            load.decode_context_tokens = batch.context_tokens(step)
            load.decode_pages = batch.pages(step)
            load.decode_windowed_tokens = batch.windowed_tokens(step)
            load.sampled_sequences += batch.size
        self._charge_work()

    def _charge_work(self) -> None:
        work, load = self.allocator.work, self.load
        if work.any() and load.tokens:
            load.new_pages += work.new_pages
            load.copied_bytes += work.copied_bytes
            load.allocator_cycles += work.search_cycles
            work.clear()

    # ---- running sequences

    def _continue_running(self, budget: int, now: int) -> int:
        """Give every running sequence its tokens of this step; returns what is left of the budget."""
        due = self.batch.due_at_most(self.batch.step + 1)
        if self._walk or self.stalled or self._prefill_amid_decodes() or self.append_reserve.near(due):
            return self._walk_running(budget, now)
        self.grow_due(self.batch.step + 1, now)
        budget -= self.batch.size
        if self.prefilling:
            budget -= self._continue_prefill(self.prefilling[0], budget, now)
        return budget

    def _prefill_amid_decodes(self) -> bool:
        prefilling = self.prefilling
        return len(prefilling) > 1 or (bool(prefilling) and self.running[-1] is not prefilling[0])

    def grow_due(self, step: int, now: int) -> None:
        """Serve the decoding sequences that outgrow their memory in ``step``, in the order of admission."""
        due = self.batch.take_due(step)
        if due and self._sure_to_grow(due):
            self._grow_surely(due, step)
            return
        for sequence in due:
            if sequence.state is State.DECODE:
                self._grow_decoder(sequence, now)

    def grow_due_in_leap(self, step: int) -> int | None:
        """As ``grow_due`` while nothing can go wrong: how many sequences were served. ``None``: memory is so short
        that a decision may be needed; nothing was tried."""
        if self.append_reserve.near(self.batch.due_at_most(step)):
            return None
        due = self.batch.take_due(step)
        if not due:
            return 0
        if not self._sure_to_grow(due):
            self.batch.put_back_due(step, due)
            return None
        self._grow_surely(due, step)
        return len(due)

    def _sure_to_grow(self, due: list[Sequence]) -> bool:
        return self.allocator.sure_to_grow(len(due), 1 + self._lookahead)

    def _grow_surely(self, due: list[Sequence], step: int) -> None:
        if self._lookahead or self._windowed:
            for sequence in due:
                length = sequence.offset + step
                wanted = self.with_lookahead(length)
                grown = self.allocator.grow(self.holding(sequence), wanted, wanted - length + 1)
                assert grown, f"{sequence} was sure to grow"
        else:
            self.allocator.grow_each([self.holding(sequence) for sequence in due])
        self.batch.refresh(due)

    def _grow_decoder(self, sequence: Sequence, now: int) -> bool:
        if not self._make_room(sequence, self.batch.length(sequence) + 1, 1, now):
            return False
        self.batch.refresh((sequence,))
        return True

    def _walk_running(self, budget: int, now: int) -> int:
        decoding: list[Sequence] = []
        for sequence in list(self.running):
            if sequence.state is State.DECODE:
                if not self.append_reserve.allows(sequence, now):
                    continue
                length = self.batch.length(sequence) + 1
                if length <= self.holding(sequence).capacity_tokens or self._grow_decoder(sequence, now):
                    decoding.append(sequence)
            elif sequence.state is State.STALLED:
                if self.pressure.retry_stalled(sequence):
                    decoding.append(sequence)
            elif sequence.state is State.PREFILL:
                budget -= self._continue_prefill(sequence, budget - _still_decoding(decoding), now)
        return budget - _still_decoding(decoding)

    def _continue_prefill(self, sequence: Sequence, budget: int, now: int) -> int:
        tokens = self._chunk(sequence.target_tokens - sequence.computed_tokens, budget)
        if not tokens or not self._make_room(sequence, sequence.computed_tokens + tokens, tokens, now):
            return 0
        sequence.blocked = False
        self._add_chunk(sequence, tokens)
        return tokens

    def _make_room(self, sequence: Sequence, tokens: int, new_tokens: int, now: int) -> bool:
        holding = self.holding(sequence)
        wanted = self.with_lookahead(tokens)
        new_tokens += wanted - tokens
        if self.allocator.grow(holding, wanted, new_tokens):
            return True
        self.pressure.note(sequence, now)
        while self.pressure.relieve(sequence, now):
            if self.allocator.grow(holding, wanted, new_tokens):
                return True
        return False

    def with_lookahead(self, tokens: int) -> int:
        """``tokens`` and the slots beyond them that the engine asks for."""
        return min(tokens + self._lookahead, self.max_model_len) if self._lookahead else tokens

    # ---- waiting sequences

    def _admit_waiting(self, budget: int, now: int) -> None:
        if self.swapped:
            self.blocked = True
            return
        while self.waiting and budget > 0:
            sequence = self.waiting[0]
            if self._expired(sequence, now):
                continue
            if len(self.running) + self._pending_forks + 1 + sequence.forks > self.engine.max_num_seqs:
                return
            tokens = self._admit(sequence, budget, now)
            if tokens is None:
                return
            budget -= tokens

    def _admit(self, sequence: Sequence, budget: int, now: int) -> int | None:
        """Start the head of the queue. Returns the tokens it computes now: ``None`` when it must wait (and all behind
        it), 0 when it is gone because it failed."""
        hits = self.allocator.hit_tokens(sequence, sequence.target_tokens)
        tokens = self._chunk(sequence.target_tokens - hits, budget)
        if tokens == 0:
            return None
        searched = self.allocator.work.search_cycles
        holding = self.allocator.admit(
            sequence,
            self.with_lookahead(hits + tokens),
            whole_tokens=sequence.target_tokens if self._rules.whole_prompt else 0,
            keep_free_bytes=self.admission.keep_free_beside(sequence),
        )
        if holding is None and sequence.blocked:
            # Looking again at an unchanged pool is not charged, so that it does not matter how often it happens.
            self.allocator.work.search_cycles = searched
        if holding is None:
            if self.pressure.refuse(sequence, now):
                return 0
            self.refused = sequence
            return None
        self.waiting.popleft()
        self._start(sequence, holding, now)
        self._add_chunk(sequence, tokens)
        return tokens

    def _start(self, sequence: Sequence, holding: Holding, now: int) -> None:
        sequence.holding = holding
        sequence.computed_tokens = holding.hit_tokens
        sequence.state = State.PREFILL
        sequence.blocked = False
        self._enter_running(sequence)
        self._pending_forks += sequence.forks
        if sequence.requeued:
            self.requeued -= 1
            sequence.requeued = False
        self.prefilling.append(sequence)
        self.prefilling_tokens += holding.hit_tokens
        self.ledger.started(sequence, holding.hit_tokens, now)

    def _chunk(self, tokens: int, budget: int) -> int:
        """Tokens of a prompt to compute in this step, 0 when it must wait for a step with more budget."""
        if not self.engine.enable_chunked_prefill:
            return tokens if tokens <= budget else 0
        threshold = self.engine.long_prefill_token_threshold
        if threshold and not (self._rules.alone_without_threshold and self._alone()):
            tokens = min(tokens, threshold)
        return self._whole_pages(tokens, budget) if tokens > budget else tokens

    def _whole_pages(self, tokens: int, budget: int) -> int:
        """What of a prompt's ``tokens`` to compute with a ``budget`` below them: vLLM 0.6 cuts at the end of a page if
        full pages are to be found again, unless a whole step has room for less than a page."""
        if self._rules.whole_page_chunks and self.allocator.caches_prefixes:
            cut = budget - budget % self.allocator.tile_tokens
            if cut or budget < self.engine.max_num_batched_tokens:
                return cut
        return budget

    def _alone(self) -> bool:
        return len(self.running) + len(self.waiting) + len(self.swapped) <= 1

    def _add_chunk(self, sequence: Sequence, tokens: int) -> None:
        before = sequence.computed_tokens
        load = self.load
        load.prefill_sequences += 1
        load.prefill_tokens += tokens
        load.prefill_pairs += tokens * before + tokens * (tokens + 1) // 2
        load.prefill_context_tokens += before + tokens
        load.prefill_pages += ceil_div(before + tokens, self.allocator.tile_tokens)
        sequence.computed_tokens = before + tokens
        self.prefilling_tokens += tokens
        if sequence.computed_tokens == sequence.target_tokens:
            load.sampled_sequences += 1
            load.forked_outputs += sequence.forks

    def _finish_prefills(self, now: int) -> None:
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
        self._pending_forks -= sequence.forks
        self.prefilling.remove(sequence)
        self.prefilling_tokens -= sequence.computed_tokens
        sequence.state = State.PAUSED

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

    def _expired(self, sequence: Sequence, now: int) -> bool:
        """Drop the head of the queue if it has waited too long (time spent running before a preemption not counted)."""
        limit = self._queue_timeout_ns
        if limit is None or sequence.generated_tokens or now < sequence.arrival_ns + limit:
            return False
        self.end(sequence, Outcome.timed_out, sequence.arrival_ns + limit)
        return True

    def deadline_ns(self) -> int | None:
        """When the head of the queue gives up, if it does."""
        if self._queue_timeout_ns is None or not self.waiting or self.waiting[0].generated_tokens:
            return None
        return self.waiting[0].arrival_ns + self._queue_timeout_ns

    def _resume_swapped(self, budget: int, now: int) -> int:
        return budget - self.pressure.resume_swapped(now) if self.swapped else budget

    def admission_open(self) -> bool:
        """Whether an arrival could be admitted at once (so a leap must stop for it)."""
        return not self.blocked and not self.waiting and len(self.running) < self.engine.max_num_seqs

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
                if member.state is not State.DONE:
                    self._retire(member)
            group.open_sequences = 0
        if group.open_sequences == 0:
            self.ledger.ended(sequence, outcome, now)

    def _let_go(self, sequence: Sequence, outcome: Outcome) -> None:
        """Give back what ``sequence`` holds, whatever the outcome (static batches keep it)."""
        del outcome
        self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        was_running = sequence.holding is not None and sequence.state is not State.SWAPPED
        self.withdraw(sequence)
        if sequence.holding is not None:
            self.allocator.release(sequence.holding)
            sequence.holding = None
        if was_running:
            self.running.remove(sequence)
        sequence.state = State.DONE

    def withdraw(self, sequence: Sequence) -> None:
        """Take ``sequence`` out of whatever it is doing; what it holds and its place in ``running`` stay."""
        state = sequence.state
        if state is State.DECODE:
            self.batch.leave(sequence)
        elif state is State.PREFILL:
            self.leave_prefill(sequence)
        elif state is State.STALLED:
            self.stalled.remove(sequence)
            self.idle_tokens -= sequence.computed_tokens
        elif state is State.SWAPPED:
            self.swapped.remove(sequence)
        elif state is State.WAITING and sequence in self.waiting:
            self.waiting.remove(sequence)
            self.requeued -= sequence.requeued

    # ---- looking

    def live_holdings(self) -> list[Holding]:
        """What running sequences hold (swapped ones hold host memory)."""
        return [self.holding(sequence) for sequence in self.running]

    def residents(self) -> list[tuple[Sequence, int]]:
        """Sequences that hold device memory, each with the tokens it has there (those being computed included)."""
        batch = self.batch
        return [(s, batch.length(s) if s.state is State.DECODE else s.computed_tokens) for s in self.running]

    def holds_work(self) -> bool:
        """Whether any sequence is live."""
        return bool(self.running or self.waiting or self.swapped)

    def describe_deadlock(self) -> str:
        """Who holds what while nobody can go on, and what would help."""
        return deadlock.describe(self)

    # ---- small things

    def resume(self, sequence: Sequence) -> None:
        """A swapped sequence is back on the device and decodes in this step."""
        self.swapped.remove(sequence)
        self._enter_running(sequence)
        self.batch.join(sequence, sequence.computed_tokens)

    def _enter_running(self, sequence: Sequence) -> None:
        sequence.serial = self._serial
        self._serial += 1
        self.running.append(sequence)

    @staticmethod
    def holding(sequence: Sequence) -> Holding:
        assert sequence.holding is not None, f"{sequence} holds nothing"
        return sequence.holding


def _still_decoding(sequences: list[Sequence]) -> int:
    """How many of ``sequences`` decode in this step after all: one that lost its memory to a later one does not, and
    its token goes back to the budget (vLLM 0.33)."""
    return sum(sequence.state is State.DECODE for sequence in sequences)
