"""Running sequences: the tokens each computes in a step, and the memory those tokens need.

Decoding sequences compute one token each. Which of them outgrow their memory in a step is in the batch's calendar, so
only those are touched; where order matters beyond that (somebody is stalled, prompts are computed amid decodes, a rule
looks at every append) all are visited in the order of admission.
"""

from simulator.allocators.base import Allocator
from simulator.config import EngineConfig
from simulator.cost import StepLoad
from simulator.profiles import AdmissionRules
from simulator.serving.append_reserve import AppendReserve
from simulator.serving.batch import DecodeBatch
from simulator.serving.ledger import Ledger
from simulator.serving.pressure import Pressure
from simulator.serving.roster import Roster
from simulator.serving.sequence import DECODE, PREFILL, STALLED, Sequence
from simulator.units import ceil_div


class Growing(Roster):
    """A roster whose running sequences get on. ``walk`` visits every one of them in every step (slower, the reference
    that leaps are compared with)."""

    #: set by the scheduler
    pressure: Pressure
    append_reserve: AppendReserve
    rules: AdmissionRules

    def __init__(
        self,
        engine: EngineConfig,
        allocator: Allocator,
        *,
        batch: DecodeBatch,
        ledger: Ledger,
        max_model_len: int,
        walk: bool,
    ) -> None:
        super().__init__(engine, allocator, batch=batch, ledger=ledger)
        self.max_model_len = max_model_len
        self.load = StepLoad()
        # Look-ahead slots are a rule of paged engines; a contiguous reservation has its own slack.
        self._lookahead = engine.num_lookahead_tokens if allocator.max_pages else 0
        self._walk = walk
        self._windowed = batch.windowed

    # ---- a step of the running sequences

    def _continue_running(self, budget: int, now: int) -> int:
        """Give every running sequence its tokens of this step; returns what is left of the budget."""
        due = self.batch.calendar.at_most(self.batch.step + 1)
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
        due = self.batch.calendar.due(step)
        if due and self._sure_to_grow(due):
            self._grow_surely(due, step)
            return
        for sequence in due:
            if sequence.state is DECODE:
                self._grow_decoder(sequence, now)

    def grow_due_in_leap(self, step: int) -> int | None:
        """As ``grow_due`` while nothing can go wrong: how many sequences were served. ``None``: memory is so short
        that a decision may be needed; nothing was tried."""
        if self.append_reserve.near(self.batch.calendar.at_most(step)):
            return None
        due = self.batch.calendar.due(step)
        if not due:
            return 0
        if not self._sure_to_grow(due):
            return None
        self._grow_surely(due, step)
        return len(due)

    def grows_by_page(self) -> bool:
        """Whether decoding sequences take nothing but their next page, which changes no answer to those who wait."""
        if self._lookahead or self._windowed or self.append_reserve.in_force:
            return False
        return self.allocator.cycles_per_page is not None

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
            if sequence.state is DECODE:
                if not self.append_reserve.allows(sequence, now):
                    continue
                length = self.batch.length(sequence) + 1
                if length <= self.holding(sequence).capacity_tokens or self._grow_decoder(sequence, now):
                    decoding.append(sequence)
            elif sequence.state is STALLED:
                if self.pressure.retry_stalled(sequence):
                    decoding.append(sequence)
            elif sequence.state is PREFILL:
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

    # ---- prompts, in pieces

    def _chunk(self, tokens: int, budget: int) -> int:
        """Tokens of a prompt to compute in this step, 0 when it must wait for a step with more budget."""
        if not self.engine.enable_chunked_prefill:
            return tokens if tokens <= budget else 0
        threshold = self.engine.long_prefill_token_threshold
        if threshold and not (self.rules.alone_without_threshold and self._alone()):
            if self.engine.adaptive_long_prefill_threshold:
                threshold = max(threshold, self.engine.max_num_batched_tokens // max(1, self._live()))
            tokens = min(tokens, threshold)
        return self._whole_pages(tokens, budget) if tokens > budget else tokens

    def _whole_pages(self, tokens: int, budget: int) -> int:
        """What of a prompt's ``tokens`` to compute with a ``budget`` below them: vLLM 0.6 cuts at the end of a page if
        full pages are to be found again, unless a whole step has room for less than a page."""
        if self.rules.whole_page_chunks and self.allocator.caches_prefixes:
            cut = budget - budget % self.allocator.tile_tokens
            if cut or budget < self.engine.max_num_batched_tokens:
                return cut
        return budget

    def _alone(self) -> bool:
        return self._live() <= 1

    def _live(self) -> int:
        return len(self.running) + len(self.waiting) + len(self.swapped)

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


def _still_decoding(sequences: list[Sequence]) -> int:
    """How many of ``sequences`` decode in this step after all: one that lost its memory to a later one does not, and
    its token goes back to the budget (vLLM 0.33)."""
    return sum(sequence.state is DECODE for sequence in sequences)
