"""Why nobody can go on: who holds what, who waits, and what would have helped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.serving.sequence import Sequence
from simulator.units import format_bytes

if TYPE_CHECKING:
    from simulator.scheduler import Scheduler

#: holders named one by one; the rest are only counted
_NAMED = 3


def describe(scheduler: Scheduler) -> str:
    """One paragraph about a run in which no output can be produced any more."""
    allocator, running = scheduler.allocator, scheduler.running
    held, capacity = format_bytes(allocator.allocated_bytes), format_bytes(allocator.capacity_bytes)
    parts = [
        f"no output can be produced: {len(running)} running sequences hold {held} of {capacity}",
        *_holders(scheduler),
        *_queues(scheduler),
    ]
    return "; ".join(parts) + ". " + "; ".join([*_closest(scheduler), _remedy(scheduler)])


def _holders(scheduler: Scheduler) -> list[str]:
    allocator = scheduler.allocator
    held = [(allocator.holding_bytes(scheduler.holding(s)), s) for s in scheduler.running]
    held.sort(key=lambda pair: (-pair[0], pair[1].request_id, pair[1].sample))
    parts = [
        f"request {s.request_id} holds {format_bytes(size)} ({s.computed_tokens} of {s.final_tokens} tokens)"
        for size, s in held[:_NAMED]
    ]
    unowned = allocator.allocated_bytes - sum(size for size, _ in held)
    if unowned > 0:
        parts.append(f"{format_bytes(unowned)} belong to no live sequence: a leak")
    return parts


def _queues(scheduler: Scheduler) -> list[str]:
    parts = []
    if scheduler.waiting:
        parts.append(f"{len(scheduler.waiting)} wait, request {scheduler.waiting[0].request_id} first")
    if scheduler.swapped:
        parts.append(f"{len(scheduler.swapped)} are in host memory, request {scheduler.swapped[0].request_id} first")
    return parts


def _closest(scheduler: Scheduler) -> list[str]:
    """What the sequence that needs least to finish still needs."""

    def missing(sequence: Sequence) -> tuple[int, int]:
        return sequence.final_tokens - sequence.computed_tokens, sequence.request_id

    if not scheduler.running:
        return []
    nearest = min(scheduler.running, key=missing)
    tokens, request_id = missing(nearest)
    room = format_bytes(tokens * scheduler.allocator.bytes_per_token)
    return [f"Room for {tokens} more tokens ({room}), kept for request {request_id}, would let it finish"]


def _remedy(scheduler: Scheduler) -> str:
    if scheduler.engine.on_oom == "wait":
        return (
            "a preempting `on_oom`, a smaller `max_num_seqs` or an admission `watermark` lets some finish before others"
        )
    return "a larger pool or a shorter `max_model_len` is needed"
