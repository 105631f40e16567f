"""A comparison in a sentence or two, from its figures as plain data, in the language of the reader."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulator.units import format_percent as percent

Row = Mapping[str, Any]
Translate = Callable[[str], str]


def verdict(allocators: Sequence[Row], differences: Sequence[Row], words: Translate = str) -> str:
    """Who loses the fewest requests, and which differences are settled (``Comparison.to_dict``)."""
    best = min(allocators, key=lambda one: one["oom_rate"])
    if len(allocators) == 1:
        return words("{name} loses {rate} of the requests.").format(name=best["label"], rate=_rate(best))
    if all(one["oom_rate"] == 0 for one in allocators):
        return _nobody_loses(allocators, words)
    equal = [one for one in allocators if one["oom_rate"] == best["oom_rate"]]
    others = [one for one in allocators if one not in equal]
    if not others:
        return words("All lose the same share of the requests, {rate}.").format(rate=_rate(best))
    names = words(" and ").join(one["label"] for one in equal)
    one, several = "{names} loses the fewest requests, {rate}", "{names} lose the fewest requests, {rate}"
    lead = words(one if len(equal) == 1 else several).format(names=names, rate=_rate(best))
    against = words("; ").join(_against(best, other, differences, words) for other in others)
    text = lead + words(": ") + against + words(".")
    hidden = [one for one in allocators if one["preemption_rate"] > 0]
    return text + words(" ") + _preemptions(hidden, words) if hidden else text


def _rate(one: Row) -> str:
    low, high = one["oom_rate_ci"]
    return f"{percent(one['oom_rate'])} [{percent(low)}, {percent(high)}]"


def _against(best: Row, other: Row, differences: Sequence[Row], words: Translate) -> str:
    names = {best["label"], other["label"]}
    found = next(one for one in differences if {one["label"], one["than"]} == names)
    shown = {"name": other["label"], "rate": percent(other["oom_rate"])}
    if not found["settled"]:
        return words("no difference from {name} ({rate}) is shown by these replications").format(**shown)
    low, high = sorted(abs(100 * end) for end in found["ci"])
    points = f"{100 * abs(found['oom_rate_difference']):.2g}"
    text = words("{name} loses {rate}, which is {points} points more ({low} to {high})")
    return text.format(**shown, points=points, low=f"{low:.2g}", high=f"{high:.2g}")


def _nobody_loses(allocators: Sequence[Row], words: Translate) -> str:
    bound = max(one["oom_rate_ci"][1] for one in allocators)
    text = words("No allocator lost a request; the OOM rates are below {bound}.").format(bound=percent(bound))
    preempted = any(one["preemption_rate"] for one in allocators)
    return text + words(" ") + _preemptions(allocators, words) if preempted else text


def _preemptions(allocators: Sequence[Row], words: Translate) -> str:
    parts = words(", ").join(f"{one['label']} {one['preemption_rate']:.2g}" for one in allocators)
    return words("Preemptions a request, which the OOM rate does not show: {parts}.").format(parts=parts)
