"""Who may come in: what could never run, and how much memory admission leaves free for those that run already.

Engines differ here (see ``profiles``): a watermark, room for each live request, SGLang's token budget, vLLM 0.6's rule
that a decode needs a free page in reserve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.allocators.base import Demand, Life
from simulator.profiles import PROFILES, admission_rules
from simulator.serving.sequence import Sequence
from simulator.serving.token_budget import TokenBudget
from simulator.units import ceil_div

if TYPE_CHECKING:
    from simulator.scheduler import Scheduler


class Admission:
    """The admission rules of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.rules = admission_rules(scheduler.engine)
        allocator = scheduler.allocator
        units = allocator.max_pages or allocator.capacity_bytes // allocator.bytes_per_token
        self._unit_bytes = allocator.capacity_bytes // units if units else 0
        self._watermark_bytes = int(self.rules.watermark_ratio * units) * self._unit_bytes
        self._reserves_prompts = PROFILES[scheduler.engine.profile].reserves_prompts and allocator.max_pages > 0
        promises = PROFILES[scheduler.engine.profile].token_budget and allocator.max_pages
        self.token_budget = TokenBudget(scheduler) if promises else None

    # ---- never

    def never_fits(self, sequence: Sequence) -> bool:
        """Whether not even an engine and a pool all to itself could serve ``sequence``."""
        scheduler, engine = self._scheduler, self._scheduler.engine
        too_long = sequence.final_tokens > scheduler.max_model_len or (
            not engine.enable_chunked_prefill and sequence.prompt_tokens > engine.max_num_batched_tokens
        )
        if too_long or 1 + sequence.forks > engine.max_num_seqs:
            return True
        return not scheduler.allocator.can_ever_hold(self._whole_life(sequence)) or self._breaks_watermark(sequence)

    def _whole_life(self, sequence: Sequence) -> Demand:
        """All that ``sequence`` may ask for: look-ahead slots; after a recompute, a prompt that repeats its outputs."""
        scheduler = self._scheduler
        recomputes = scheduler.engine.on_oom == "preempt_recompute" and scheduler.allocator.max_pages
        return Life(
            sequence.request_id,
            prompt_tokens=sequence.final_tokens if recomputes else sequence.prompt_tokens,
            output_tokens=sequence.output_tokens,
            final_tokens=scheduler.with_lookahead(sequence.final_tokens),
        )

    def _breaks_watermark(self, sequence: Sequence) -> bool:
        """Whether admission must refuse the prompt even in an empty pool (vLLM 0.6: ``AllocStatus.NEVER``)."""
        allocator = self._scheduler.allocator
        if not (self.rules.watermark_when_idle and self._watermark_bytes and allocator.max_pages):
            return False
        pages = ceil_div(self._scheduler.with_lookahead(sequence.prompt_tokens), allocator.tile_tokens)
        return pages * self._unit_bytes + self._watermark_bytes > allocator.capacity_bytes

    # ---- not now

    def keep_free_bytes(self) -> int:
        """Memory to leave free for others; nothing is reserved for them while nobody runs."""
        running = len(self._scheduler.running)
        if not running:
            return 0
        reserved = ceil_div(self.rules.reserved_tokens_per_request, self._scheduler.allocator.tile_tokens)
        kept = self._watermark_bytes + reserved * running * self._unit_bytes
        return kept + self._promised_bytes() if self._reserves_prompts else kept

    def _promised_bytes(self) -> int:
        """Memory that prompts under way have still to take (vLLM 0.33: ``reserved_blocks``)."""
        scheduler, promised = self._scheduler, 0
        tile_tokens = scheduler.allocator.tile_tokens
        for sequence in scheduler.prefilling:
            wanted = scheduler.with_lookahead(sequence.target_tokens)
            promised += ceil_div(max(0, wanted - scheduler.holding(sequence).held_tokens), tile_tokens)
        return promised * tile_tokens * scheduler.allocator.bytes_per_token

    def keep_free_beside(self, candidate: Sequence) -> int:
        """Memory that must be left free beside the prompt of ``candidate``."""
        budget = self.token_budget
        if budget is None:
            return self.keep_free_bytes()
        if not self._scheduler.running:
            budget.reset()
            return 0
        pages = ceil_div(budget.tokens_kept(candidate), self._scheduler.allocator.tile_tokens)
        return self.keep_free_bytes() + pages * self._unit_bytes
