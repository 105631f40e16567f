"""What happens when memory is missing: fail, wait, recompute or swap.

``fail``
    the request ends there (a static engine that rejects or crashes).
``wait``
    a waiting request stays queued; a running one stalls with what it holds until there is room.
``preempt_recompute``
    the victim gives everything back and later computes its prompt and outputs again (vLLM v1).
``preempt_swap``
    the victim's pages move to host memory over the host link and come back before anybody new is admitted (vLLM v0).

Every failed allocation is one OOM event. A request that stays blocked is one event, however often it is retried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.profiles import Victim
from simulator.serving.sequence import DECODE, DONE, LINGERING, STALLED, SWAPPED, WAITING, Outcome, Sequence
from simulator.serving.waiting import urgency

if TYPE_CHECKING:
    from simulator.scheduler import Scheduler


class Pressure:
    """The scheduler's answer to a refused allocation."""

    def __init__(self, scheduler: Scheduler, victim: Victim) -> None:
        self.scheduler = scheduler
        self.policy = scheduler.engine.on_oom
        self._victim_rule = victim

    # ---- events

    def note(self, sequence: Sequence, now: int) -> None:
        """Record the refusal that just happened to a running sequence (once while it stays stalled)."""
        if not sequence.blocked:
            self._note_shortfall(sequence, now)

    def _note_shortfall(self, sequence: Sequence, now: int) -> None:
        shortfall = self.scheduler.allocator.shortfall
        assert shortfall is not None
        self.scheduler.ledger.oom(sequence, shortfall, now, during="decode")

    def refuse(self, sequence: Sequence, now: int) -> bool:
        """The head of the queue does not fit now: it ends (``fail``, returns ``True``) or blocks the queue."""
        scheduler = self.scheduler
        shortfall = scheduler.allocator.shortfall
        assert shortfall is not None
        if not sequence.blocked:
            scheduler.ledger.oom(sequence, shortfall, now, during="admission")
        if self.policy == "fail":
            scheduler.end(sequence, Outcome.oom_admission, now)
            return True
        sequence.blocked = True
        scheduler.blocked = True
        return False

    def relieve(self, sequence: Sequence, now: int) -> bool:
        """Try to free memory for the running ``sequence``; ``False`` when it does not run in this step after all."""
        if self.policy == "fail":
            self.scheduler.end(sequence, Outcome.oom_decode, now)
            return False
        if self.policy == "wait":
            self._stall(sequence)
            return False
        victim = self._victim()
        self.preempt(victim, now)
        return victim is not sequence and sequence.state is not SWAPPED and sequence.state is not DONE

    # ---- wait

    def _stall(self, sequence: Sequence) -> None:
        """``sequence`` keeps what it holds and sits this step out; a prompt simply computes nothing."""
        scheduler = self.scheduler
        if not sequence.blocked:
            scheduler.ledger.stalled(sequence)
            sequence.blocked = True
        if sequence.state is DECODE:
            scheduler.batch.leave(sequence)
            sequence.state = STALLED
            scheduler.stalled.append(sequence)
            scheduler.idle_tokens += sequence.computed_tokens

    def retry_stalled(self, sequence: Sequence) -> bool:
        """Give a stalled sequence its page if there is one now; whether it decodes again."""
        scheduler = self.scheduler
        assert sequence.holding is not None
        if not scheduler.allocator.grow(sequence.holding, sequence.computed_tokens + 1):
            return False
        sequence.blocked = False
        scheduler.withdraw(sequence)
        scheduler.batch.join(sequence, sequence.computed_tokens)
        return True

    # ---- preemption

    def _victim(self) -> Sequence:
        """Who gives way: the sequence admitted last, or (SGLang) the one with the fewest outputs, longest prompt; with
        priorities the least urgent, whatever the engine."""
        running = [sequence for sequence in self.scheduler.running if sequence.state is not LINGERING]
        if self.scheduler.engine.scheduling_policy == "priority":
            return max(running, key=urgency)
        if self._victim_rule == "last_admitted":
            return running[-1]
        batch = self.scheduler.batch
        return min(running, key=lambda s: (batch.outputs(s), -s.prompt_tokens, -s.serial, -s.seat))

    def preempt(self, victim: Sequence, now: int) -> None:
        """Take the memory of ``victim`` away. A swap takes all samples of its request; prompts are recomputed."""
        scheduler = self.scheduler
        scheduler.preempted_in_step = True
        if self.policy == "preempt_swap" and victim.state is DECODE:
            self._swap_out(victim, now)
        else:
            self._recompute_later(victim)
            if scheduler.admission.token_budget is not None:
                scheduler.admission.token_budget.retracted()

    def _recompute_later(self, victim: Sequence) -> None:
        scheduler = self.scheduler
        scheduler.withdraw(victim)
        assert victim.holding is not None
        scheduler.ledger.preempted(victim, victim.computed_tokens)
        scheduler.allocator.release(victim.holding)
        victim.holding = None
        scheduler.running.remove(victim)
        victim.target_tokens = victim.prompt_tokens + victim.generated_tokens
        victim.computed_tokens = 0
        victim.state = WAITING
        victim.blocked = False
        victim.requeued = True
        scheduler.requeued += 1
        scheduler.waiting.appendleft(victim)

    # ---- swap

    def _swap_out(self, victim: Sequence, now: int) -> None:
        scheduler = self.scheduler
        members = self._together(victim)
        moved_bytes = scheduler.allocator.swap_out([scheduler.holding(member) for member in members])
        if moved_bytes is None:
            scheduler.ledger.swap_refused(victim)
            scheduler.end(victim, Outcome.oom_decode, now)
            return
        scheduler.load.swapped_bytes += moved_bytes
        for member in reversed(members):
            scheduler.batch.leave(member)
            member.state = SWAPPED
            scheduler.running.remove(member)
            scheduler.swapped.appendleft(member)
        scheduler.ledger.swapped_out(victim, moved_bytes)

    @staticmethod
    def _together(victim: Sequence) -> list[Sequence]:
        if victim.group is None:
            return [victim]
        return [member for member in victim.group.members if member.state is DECODE]

    def resume_swapped(self, now: int) -> int:
        """Bring swapped sequences back, oldest first, while they fit; returns the tokens they compute in this step.

        The samples of a request come back together or not at all: if not even an empty pool has room for them, the
        request ends (vLLM 0.6 ignores it: ``AllocStatus.NEVER``).
        """
        scheduler = self.scheduler
        resumed = 0
        while scheduler.swapped:
            head = scheduler.swapped[0]
            members = [s for s in scheduler.swapped if s is head or (head.group and s.group is head.group)]
            if len(scheduler.running) + len(members) > scheduler.engine.max_num_seqs:
                break
            if self._swap_in(members):
                resumed += len(members)
            elif scheduler.running:
                break
            else:
                self._note_shortfall(head, now)
                scheduler.end(head, Outcome.oom_decode, now)
        return resumed

    def _swap_in(self, members: list[Sequence]) -> bool:
        scheduler = self.scheduler
        wanted = [(scheduler.holding(member), member.computed_tokens + 1) for member in members]
        moved_bytes = scheduler.allocator.swap_in(wanted, keep_free_bytes=scheduler.admission.keep_free_bytes())
        if moved_bytes is None:
            return False
        scheduler.load.swapped_bytes += moved_bytes
        scheduler.ledger.swapped_in(members[0], moved_bytes)
        for member in members:
            scheduler.resume(member)
        return True
