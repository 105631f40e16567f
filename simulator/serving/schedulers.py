"""The other two ways to batch: prompts first (vLLM v0, MindIE, nano-vllm), and static padded batches.

``SCHEDULERS`` maps the scenario's ``engine.scheduler`` to a class.
"""

from simulator.allocators.base import Allocator
from simulator.config import EngineConfig
from simulator.kernels.step_load import StepLoad
from simulator.scheduler import Scheduler
from simulator.serving.batch import DecodeBatch
from simulator.serving.ledger import Ledger
from simulator.serving.sequence import DECODE, LINGERING, Outcome, Sequence


class PrefillFirstScheduler(Scheduler):
    """A step is all prompts or all decodes, and prompts go first.

    Prompts are computed whole, several a step while the token budget lasts. A prompt larger than the budget is
    computed in pieces only if ``enable_chunked_prefill`` and only as the first of its step (nano-vllm's rule).
    """

    mixes_prefill_and_decode = False
    grows_before_admission = False

    def schedule(self, now: int) -> StepLoad | None:
        self.load.clear()
        self.preempted_in_step = False
        self.chances_changed = False
        self.blocked = False
        self.refused = None
        budget = self.engine.max_num_batched_tokens
        for sequence in list(self.prefilling):
            budget -= self._continue_prefill(sequence, budget, now)
        if not self.preempted_in_step:
            self._admit_waiting(budget, now)
        if not self.load.prefill_tokens:
            before, seated, away = self.chances(), len(self.running), len(self.swapped)
            self._continue_running(self.engine.max_num_batched_tokens, now)
            if not self.preempted_in_step:
                self._resume_swapped(self.engine.max_num_batched_tokens, now)
            # nobody is admitted while somebody is swapped out
            back = away > 0 and not self.swapped
            self.chances_changed = self.better(before) or len(self.running) < seated or back
        self._add_decodes(now)
        return self.load if self.load.decode_sequences or self.load.prefill_tokens else None

    def _chunk(self, tokens: int, budget: int) -> int:
        if tokens <= budget:
            return tokens
        first_of_step = budget == self.engine.max_num_batched_tokens
        return budget if self.engine.enable_chunked_prefill and first_of_step else 0


class StaticScheduler(Scheduler):
    """Padded batches: admitted together, computed together, kept until the last one is done.

    Every sequence is computed as if it were as long as the longest of its batch, and what a finished sequence holds
    stays occupied until the whole batch ends: the padding waste of an engine without continuous batching.
    """

    can_leap = False

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
        self.lingering: list[Sequence] = []
        self._width = 0
        self._prompt_tokens = 0

    def _admit_waiting(self, budget: int, now: int) -> None:
        self._release_if_over()  # the last one of a batch may have been preempted
        if self.running:
            return
        super()._admit_waiting(1 << 62, now)
        self._width = len(self.running)
        self._prompt_tokens = max((sequence.target_tokens for sequence in self.running), default=0)

    def _chunk(self, tokens: int, budget: int) -> int:
        return tokens

    def _add_decodes(self, now: int) -> None:
        super()._add_decodes(now)
        load = self.load
        self.padded_prompt_tokens = 0
        self._width = max(self._width, len(self.running))  # a batch that was swapped out may be back
        if load.prefill_tokens:
            padded = self._width * self._prompt_tokens
            self.padded_prompt_tokens = padded - load.prefill_tokens
            self.ledger.padding_tokens += self.padded_prompt_tokens
            load.prefill_tokens = padded
            load.prefill_pairs = self._width * self._prompt_tokens * (self._prompt_tokens + 1) // 2
            load.prefill_context_tokens = padded
        if load.decode_sequences:
            longest = max(self.batch.length(s) for s in self.running if s.state is DECODE) + 1
            self.ledger.padding_tokens += self._width - load.decode_sequences
            load.decode_sequences = self._width
            load.decode_context_tokens = self._width * longest
            load.decode_lengths = None

    def end(self, sequence: Sequence, outcome: Outcome, now: int) -> None:
        super().end(sequence, outcome, now)
        self._release_if_over()

    def _release_if_over(self) -> None:
        if len(self.lingering) == len(self.running):
            for member in list(self.lingering):
                self._retire(member)

    def _let_go(self, sequence: Sequence, outcome: Outcome) -> None:
        if outcome is Outcome.completed and sequence.holding is not None:
            self.withdraw(sequence)
            sequence.state = LINGERING
            self.lingering.append(sequence)
            self.dead_tokens += sequence.computed_tokens
        else:
            self._retire(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        super().withdraw(sequence)
        if sequence.state is LINGERING:
            self.lingering.remove(sequence)
            self.dead_tokens -= sequence.computed_tokens


SCHEDULERS: dict[str, type[Scheduler]] = {
    "continuous": Scheduler,
    "prefill_first": PrefillFirstScheduler,
    "static": StaticScheduler,
}
