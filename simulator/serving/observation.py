"""Looking over an allocator's shoulder: ``--verify``, and mistakes planted on purpose (``faults:``).

A planted mistake must be noticed: the run goes on under observation as far as it can, and the summary tells what was
planted, what the checks found, and when the first request ran out of memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.allocators.base import Allocator, Holding
from simulator.config import FaultConfig
from simulator.errors import InputError, Problem

if TYPE_CHECKING:
    from simulator.allocators.faults import FaultyAllocator
    from simulator.allocators.verify import VerifyingAllocator

#: operations between two readings of every page table; what an operation touches is always read
CHECK_EVERY = 256
#: pages of a pool that can be looked at one by one in a few seconds and a GiB of memory
MOST_VERIFIED_PAGES = 1 << 23
#: findings quoted in the summary
_QUOTED = 10


@dataclass(frozen=True, slots=True)
class Observation:
    """``allocator`` is what the engine talks to: the bare one, or the one ``watching`` it."""

    allocator: Allocator
    faults: "tuple[FaultyAllocator, ...]" = ()
    watching: "VerifyingAllocator | None" = None

    @property
    def faulty(self) -> bool:
        """Whether mistakes are planted, so that memory may be missing at the end."""
        return bool(self.faults)

    @property
    def planted(self) -> bool:
        """Whether a mistake has been made by now."""
        return any(fault.injected for fault in self.faults)

    def look_once_more(self, holdings: list[Holding]) -> None:
        """Read everything at the end of a run: what has leaked since the last complete check shows now."""
        if self.watching is not None:
            self.watching.check(holdings)


def findings(observations: Sequence[Observation], detail: str) -> dict[str, Any]:
    """What was planted in a run and what was noticed; ``detail`` is the message that ended it early, if one did."""
    watching = [one.watching for one in observations if one.watching is not None]
    messages = [violation.message for allocator in watching for violation in allocator.violations]
    messages += [detail] if detail and detail not in messages else []
    faults = [fault for one in observations for fault in one.faults]
    planted = [mistake for fault in faults for mistake in fault.injected]
    return {
        "planted": len(planted),
        "never_planted": [
            {"kind": fault.fault, "every": fault.every, "releases": fault.releases}
            for fault in faults
            if not fault.injected
        ],
        "planted_requests": [mistake.request_id for mistake in planted[:_QUOTED]],
        "noticed": len(messages),
        "messages": messages[:_QUOTED],
    }


def breakdown(error: Exception) -> str:
    """In words, what became of an allocator after a planted mistake: a check that failed, or a failure in its code."""
    return str(error) if isinstance(error, AssertionError) else f"it broke down with {type(error).__name__}: {error}"


def verified(observations: Sequence[Observation]) -> dict[str, int]:
    """How much was watched: calls that move memory, and page tables read back entry by entry."""
    watching = [one.watching for one in observations if one.watching is not None]
    return {
        "operations": sum(allocator.operations for allocator in watching),
        "tables_read": sum(allocator.tables_read for allocator in watching),
    }


def observe_allocator(allocator: Allocator, faults: Sequence[FaultConfig], *, verify: bool) -> Observation:
    """``allocator`` with ``faults`` planted, watched if there are any or ``verify`` asks for it."""
    if (verify or faults) and allocator.max_pages > MOST_VERIFIED_PAGES:
        message = "every page of a pool is looked at to verify it"
        limit = f"{allocator.kind} has {allocator.max_pages:,} of at most {MOST_VERIFIED_PAGES:,}"
        raise InputError([Problem(key="allocators", message=f"{message}, and {limit}: lower max_pages")])
    if not verify and not faults:
        return Observation(allocator)
    from simulator.allocators.faults import FaultyAllocator
    from simulator.allocators.verify import VerifyingAllocator

    planted: list[FaultyAllocator] = []
    try:
        for fault in faults:
            planted.append(FaultyAllocator(planted[-1] if planted else allocator, fault.kind, every=fault.every))
    except ValueError as error:
        raise InputError([Problem(key="faults", message=f"{allocator.kind}: {error}")]) from None
    watched = planted[-1] if planted else allocator
    watching = VerifyingAllocator(watched, every=CHECK_EVERY, stop=not planted)
    return Observation(watching, tuple(planted), watching)
