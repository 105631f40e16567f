"""Who runs next: queues, admission, chunked prefill. No clock of its own; it is told the time.

``Scheduler`` follows vLLM v1 (``vllm/v1/core/sched/scheduler.py``): no phases, every sequence has tokens to
compute, a step has a token budget. Running sequences come first, in the order of admission; then, unless somebody was
preempted in this step, waiting ones are admitted in order until a seat, the budget or memory is missing
(head-of-line blocking). What happens when memory is missing is ``pressure``'s business.

One step is ``load = schedule(now)`` at its start and ``finish_step(now)`` at its end.
"""

from simulator.allocators.base import Allocator
from simulator.config import EngineConfig
from simulator.cost import StepLoad
from simulator.profiles import PROFILES
from simulator.serving import deadlock
from simulator.serving.admission import Admission
from simulator.serving.append_reserve import AppendReserve
from simulator.serving.batch import DecodeBatch
from simulator.serving.beams import Beams
from simulator.serving.growth import Growing
from simulator.serving.ledger import Ledger
from simulator.serving.pressure import Pressure
from simulator.serving.sequence import WAITING, Outcome, Sequence
from simulator.units import to_ns


class Scheduler(Growing):
    """Continuous batching. ``max_model_len`` bounds every sequence."""

    #: whether decoding sequences run in a step that also computes prompts
    mixes_prefill_and_decode = True
    #: whether running sequences take their memory before waiting ones are admitted in the same step
    grows_before_admission = True
    #: whether decode-only stretches may be taken in one leap
    can_leap = True
    #: tokens of the step's prompts that are padding (static batches)
    padded_prompt_tokens = 0

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
        super().__init__(engine, allocator, batch=batch, ledger=ledger, max_model_len=max_model_len, walk=walk)
        self.blocked = False
        #: who has asked for memory in this step and was refused
        self.refused: Sequence | None = None
        self.chances_changed = False
        self.preempted_in_step = False
        self.beams = Beams(self)
        self.pressure = Pressure(self, PROFILES[engine.profile].victim)
        self.append_reserve = AppendReserve(self)
        self.admission = Admission(self)
        self.rules = self.admission.rules
        self._by_urgency = engine.scheduling_policy == "priority"
        self._queue_timeout_ns = None if engine.queue_timeout is None else to_ns(engine.queue_timeout)

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
        """Place everything that runs in the step starting at ``now``; ``None`` when nothing can run. The answer holds
        until the next call."""
        self.load.clear()
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
            self.finish_prefills(now)

    def _add_decodes(self, now: int) -> None:
        batch, load, step = self.batch, self.load, self.batch.step + 1
        if batch.size and (self.mixes_prefill_and_decode or not load.prefill_tokens):
            load.decode_sequences = batch.size
            load.decode_context_tokens = batch.context_tokens(step)
            load.decode_pages = batch.pages(step)
            load.decode_windowed_tokens = batch.windowed_tokens(step)
            load.decode_lengths = batch.lengths(step)
            load.sampled_sequences += batch.size
        self._charge_work()

    def _charge_work(self) -> None:
        work, load = self.allocator.work, self.load
        if work.any() and load.tokens:
            load.new_pages += work.new_pages
            load.copied_bytes += work.copied_bytes
            load.allocator_cycles += work.search_cycles
            work.clear()

    # ---- waiting sequences

    def _admit_waiting(self, budget: int, now: int) -> None:
        if self.swapped:
            self.blocked = True
            return
        if self._by_urgency and self._queue_timeout_ns is not None:
            for sequence in list(self.waiting):
                # one that gives up takes the other samples of its request along
                if sequence.state is WAITING:
                    self._expired(sequence, now)
        while self.waiting and budget > 0:
            sequence = self.waiting[0]
            if self._expired(sequence, now):
                continue
            if len(self.running) + self.pending_forks + 1 + sequence.forks > self.engine.max_num_seqs:
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
            whole_tokens=sequence.target_tokens if self.rules.whole_prompt else 0,
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
        self.start(sequence, holding, now)
        self._add_chunk(sequence, tokens)
        return tokens

    def _expired(self, sequence: Sequence, now: int) -> bool:
        """Drop a waiting ``sequence`` that has waited too long (time spent running before a preemption not counted)."""
        limit = self._queue_timeout_ns
        if limit is None or sequence.generated_tokens or now < sequence.arrival_ns + limit:
            return False
        self.end(sequence, Outcome.timed_out, sequence.arrival_ns + limit)
        return True

    def deadline_ns(self) -> int | None:
        """When the next one in the queue gives up, if anybody does; without priorities the head is the first to."""
        if self._queue_timeout_ns is None or not self.waiting:
            return None
        who = self.waiting if self._by_urgency else (self.waiting[0],)
        since = min((sequence.arrival_ns for sequence in who if not sequence.generated_tokens), default=None)
        return None if since is None else since + self._queue_timeout_ns

    def _resume_swapped(self, budget: int, now: int) -> int:
        return budget - self.pressure.resume_swapped(now) if self.swapped else budget

    def admission_open(self) -> bool:
        """Whether an arrival could be admitted at once (so a leap must stop for it). With priorities it may go ahead of
        everybody who waits."""
        if self._by_urgency:
            return len(self.running) < self.engine.max_num_seqs
        return not self.blocked and not self.waiting and len(self.running) < self.engine.max_num_seqs

    def describe_deadlock(self) -> str:
        """Who holds what while nobody can go on, and what would help."""
        return deadlock.describe(self)

    # ---- small things
