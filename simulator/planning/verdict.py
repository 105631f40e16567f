"""A comparison in a sentence or two."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.units import format_percent as percent

if TYPE_CHECKING:
    from simulator.planning.compare import Difference, Standing


def verdict(standings: Sequence["Standing"], differences: Sequence["Difference"]) -> str:
    """Who loses the fewest requests, and which differences are settled."""
    best = min(standings, key=lambda one: one.oom_rate.value)
    if len(standings) == 1:
        return f"{best.label} loses {_rate(best)} of the requests."
    if all(one.oom_rate.value == 0 for one in standings):
        return _nobody_loses(standings)
    equal = [one for one in standings if one.oom_rate.value == best.oom_rate.value]
    names = " and ".join(one.label for one in equal)
    text = f"{names} {'loses' if len(equal) == 1 else 'lose'} the fewest requests, {_rate(best)}"
    others = [one for one in standings if one not in equal]
    if not others:
        return f"All lose the same share of the requests, {_rate(best)}."
    text += "; ".join(_against(best, one, differences) for one in others).join((": ", "."))
    hidden = [one for one in standings if one.preemption_rate > 0]
    if hidden:
        text += " " + _preemptions(hidden)
    return text


def _rate(one: "Standing") -> str:
    return f"{percent(one.oom_rate.value)} [{percent(one.oom_rate.low)}, {percent(one.oom_rate.high)}]"


def _against(best: "Standing", other: "Standing", differences: Sequence["Difference"]) -> str:
    names = {best.label, other.label}
    found = next(one for one in differences if {one.label, one.than} == names)
    ends = sorted((abs(100 * found.difference.low), abs(100 * found.difference.high)))
    if found.settled:
        return (
            f"{other.label} loses {percent(other.oom_rate.value)}, which is {100 * abs(found.difference.value):.2g} "
            f"points more ({ends[0]:.2g} to {ends[1]:.2g})"
        )
    return f"no difference from {other.label} ({percent(other.oom_rate.value)}) is shown by these replications"


def _nobody_loses(standings: Sequence["Standing"]) -> str:
    bound = max(one.oom_rate.high for one in standings)
    text = f"No allocator lost a request; the OOM rates are below {percent(bound)}."
    return f"{text} {_preemptions(standings)}" if any(one.preemption_rate for one in standings) else text


def _preemptions(standings: Sequence["Standing"]) -> str:
    parts = ", ".join(f"{one.label} {one.preemption_rate:.2g}" for one in standings)
    return f"Preemptions a request, which the OOM rate does not show: {parts}."
