"""A size as a JSON document and in words."""

import math
from collections.abc import Sequence
from typing import Any

from simulator.planning.pool_interval import IntervalPoint
from simulator.planning.size import NEAR_CLIFF_RATIO, SizeAnswer, SizePoint
from simulator.planning.statistics import Estimate, exact_interval
from simulator.planning.target import Target
from simulator.showing.terminal import print_rows
from simulator.units import format_bytes, format_seconds
from simulator.units import format_percent as percent


def size_document(answer: SizeAnswer) -> dict[str, Any]:
    """The document of ``simulate size --format json``."""
    found, engine = answer.recommended, answer.scenario.engine
    return {
        "recommended": {
            "max_pages": found.max_pages if found else None,
            "safety_factor": answer.safety_factor(found.max_pages) if found else None,
            "page_size": answer.page_tokens,
            "max_num_seqs": engine.max_num_seqs,
            "devices": _devices(answer),
            "oom_rate": found.oom_rate.value if found else None,
            "oom_rate_ci": found.oom_rate.interval if found else None,
        },
        "feasible": answer.feasible,
        "hbm_limit_max_pages": answer.hbm_limit_max_pages,
        "allocator": answer.scenario.labels[answer.index],
        "target": _targets(answer)[0],
        "targets": _targets(answer),
        "confidence": answer.confidence,
        "smaller_max_pages_that_fails": answer.smaller,
        "hbm_headroom_pages": answer.hbm_limit_max_pages - found.max_pages if found else None,
        "page_rounding_ratio": answer.page_rounding_ratio,
        "demand": {"peak_pages": answer.demand_peak_pages, "first_guess_pages": answer.first_guess_pages},
        "warmup_s": answer.warmup_s,
        "pool_interval": _uncertain(answer),
        "cliff": _cliff(answer),
        "curve": [_point(answer, one) for one in answer.curve],
        "ways_out": [way.to_dict() for way in answer.ways],
        "verdict": verdict(answer),
        "notes": notes(answer),
    }


def _devices(answer: SizeAnswer) -> int | None:
    if answer.recommended is None:
        return None
    if answer.feasible:
        return answer.scenario.loaded_device.count
    return min((way.devices for way in answer.ways if way.fits), default=None)


def _targets(answer: SizeAnswer) -> list[dict[str, Any]]:
    found = answer.recommended
    seen = found.targets if found else (None,) * len(answer.goal.targets)
    return [
        {
            "name": target.name,
            "limit": target.limit,
            "value": number(figures.value) if figures else None,
            "ci": ends(figures) if figures else None,
            "shown_by": None if found is None else "extrapolation" if bound else "simulation",
            "replications": found.replications if found else None,
        }
        for target, bound, estimate in zip(answer.goal.targets, answer.bounds, seen, strict=True)
        for figures in [bound or estimate]
    ]


def ends(estimate: Estimate) -> list[float | None]:
    """An interval for JSON: ends that one replication cannot give are ``null``."""
    return [number(end) for end in estimate.interval]


def number(value: float) -> float | None:
    """``value`` for JSON: ``null`` where nothing could be measured."""
    return value if math.isfinite(value) else None


def _uncertain(answer: SizeAnswer) -> dict[str, Any] | None:
    found = answer.uncertain
    if found is None:
        return None
    return {
        "low_bytes": found.interval.low_bytes,
        "high_bytes": found.interval.high_bytes,
        "law": "uniform",
        **{name: _interval_point(answer, getattr(found, name)) for name in ("low", "middle", "high")},
        "expected": _figures(answer, oom_rate=found.expected_oom_rate, targets=found.expected_targets),
        "probability_enough": found.enough,
        "points": [_interval_point(answer, one) for one in found.points],
    }


def _interval_point(answer: SizeAnswer, one: IntervalPoint) -> dict[str, Any]:
    return {
        "max_pages": one.max_pages,
        "thrash": one.thrash,
        **_figures(answer, oom_rate=one.oom_rate, targets=one.targets),
    }


def _figures(answer: SizeAnswer, *, oom_rate: Estimate, targets: Sequence[Estimate]) -> dict[str, Any]:
    others = [
        {"name": target.name, "value": number(one.value), "ci": ends(one)}
        for target, one in zip(answer.goal.targets, targets, strict=True)
    ]
    return {"oom_rate": oom_rate.value, "oom_rate_ci": oom_rate.interval, "targets": others}


def _cliff(answer: SizeAnswer) -> dict[str, Any]:
    ratio = answer.cliff_ratio
    return {"ttft_p99_ratio_5_percent_fewer_pages": ratio, "near": ratio is not None and ratio >= NEAR_CLIFF_RATIO}


def _point(answer: SizeAnswer, one: SizePoint) -> dict[str, Any]:
    return {
        "max_pages": one.max_pages,
        "safety_factor": answer.safety_factor(one.max_pages),
        "oom_rate": one.oom_rate.value,
        "oom_rate_ci": one.oom_rate.interval,
        "preemption_rate": one.preemption_rate,
        "ttft_p99_s": None if one.thrash else number(one.ttft_p99_s),
        "thrash": one.thrash,
        "replications": one.replications,
        "fits": one.max_pages <= answer.limit_pages,
    }


def verdict(answer: SizeAnswer) -> str:
    """The answer in a sentence."""
    found, engine = answer.recommended, answer.scenario.engine
    if found is None:
        return (
            f"No size up to {answer.smaller:,} pages is shown to keep the {answer.goal}: either memory is not what "
            "is missing, or more requests or replications are needed to show it."
        )
    held = format_bytes(found.max_pages * answer.page_bytes)
    what = (
        f"{found.max_pages:,} pages of {answer.page_tokens} tokens ({held} a device), "
        f"safety factor {answer.safety_factor(found.max_pages):.3g} at max_num_seqs {engine.max_num_seqs}"
    )
    if answer.feasible:
        spare = answer.limit_pages - found.max_pages
        where = "" if answer.uncertain is None else f" at the low end of the pool, {answer.uncertain.interval}"
        return f"{what}: {answer.goal} with {answer.confidence:.4g} confidence; {spare:,} more pages would fit{where}."
    limit = f"the memory budget leaves {answer.limit_pages:,}"
    if answer.uncertain is not None:
        limit = (
            f"the low end of the pool, {answer.uncertain.interval}, holds {answer.limit_pages:,} (the pool is enough "
            f"with probability {answer.uncertain.enough:.2g})"
        )
    return (
        f"{what} are needed for {answer.goal}, but {limit}: "
        f"it cannot be {'met' if answer.uncertain is None else 'relied on'} "
        f"on {answer.scenario.loaded_device.count} device(s)."
    )


def notes(answer: SizeAnswer) -> list[str]:
    """What a reader should know before relying on the answer."""
    said = []
    on_oom = answer.scenario.engine.on_oom
    if on_oom != "fail" and [target.name for target in answer.goal.targets] == ["oom"]:
        said.append(
            f"with on_oom {on_oom} a full pool loses no request, so the OOM rate counts only requests too large for an "
            "empty pool and swaps refused: --target preemption=0.01 or --target ttft_p95=2s says more"
        )
    found = answer.recommended
    if found is not None and found.oom_rate.value and "oom" not in [target.name for target in answer.goal.targets]:
        said.append(
            f"{percent(found.oom_rate.value)} of the requests run out of memory in the recommended size, and a time is "
            "that of the completed ones: --target oom=0.001 beside it asks for both"
        )
    ratio = answer.cliff_ratio
    if ratio is not None and ratio >= NEAR_CLIFF_RATIO:
        said.append(f"near the cliff: 5 % fewer pages make the p99 of TTFT {ratio:.2g} times as long")
    if any(one.thrash for one in answer.curve):
        largest = max(one.max_pages for one in answer.curve if one.thrash)
        said.append(
            f"up to {largest:,} pages the engine thrashes or stands still: no times are given there, none could be "
            "trusted, and no such size is recommended" + _unseen(answer)
        )
    if answer.uncertain is not None and answer.recommended is not None and not answer.feasible:
        low = answer.uncertain.interval.low_bytes
        said.append(
            f"what the low end carries as it is: --set device.kv_capacity_bytes={low} --solve engine.max_num_seqs=..., "
            "or any other key"
        )
    if any(answer.bounds):
        said.append(
            "too rare to count: the size is where the line through two larger rates (logarithms) meets the target"
        )
    return said


def _unseen(answer: SizeAnswer) -> str:
    """How sure it is that the recommended size does not."""
    found = answer.recommended
    if found is None:
        return ""
    bound = exact_interval(0, found.replications, answer.confidence)[1]
    runs = f"{found.replications} runs of {found.max_pages:,} pages"
    return f"; none of {runs} did, so at most {percent(bound)} of such runs would"


def print_size(answer: SizeAnswer) -> None:
    """The verdict, the notes, the ways out, the curve, and what an uncertain pool means."""
    text = "\n".join(
        [verdict(answer), *(f"  {way}" for way in _ways(answer)), *(f"note: {one}" for one in notes(answer))]
    )
    print_rows(text, [_row(answer, one) for one in answer.curve])
    if answer.uncertain is not None:
        print_rows(f"\nA pool of {answer.uncertain.interval}, any size as likely as any other:", _interval_rows(answer))


def _interval_rows(answer: SizeAnswer) -> list[dict[str, str]]:
    found = answer.uncertain
    assert found is not None
    rows = [
        _interval_row(answer, name, f"{one.max_pages:,}", one.oom_rate, () if one.thrash else one.targets)
        for name, one in (("low end", found.low), ("middle", found.middle), ("high end", found.high))
    ]
    trusted = () if any(one.thrash for one in found.points) else found.expected_targets
    return [*rows, _interval_row(answer, "expected", "", found.expected_oom_rate, trusted)]


def _interval_row(
    answer: SizeAnswer, name: str, pages: str, oom_rate: Estimate, targets: Sequence[Estimate]
) -> dict[str, str]:
    """One row; ``targets`` is empty where the engine thrashes."""
    others = [(place, one) for place, one in enumerate(answer.goal.targets) if one.name != "oom"]
    return {
        "pool": name,
        "max_pages": pages,
        "OOM rate": spelled(oom_rate, Target("oom", 1.0)),
        **{one.name: spelled(targets[place], one) if targets else "thrash" for place, one in others},
    }


def spelled(estimate: Estimate, target: Target) -> str:
    """A target's figure with its interval where it has one; times without."""
    if target.name in ("oom", "timeout"):
        return f"{percent(estimate.value)} [{percent(estimate.low)}, {percent(estimate.high)}]"
    if target.is_share:
        return f"{estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"
    return format_seconds(estimate.value)


def _ways(answer: SizeAnswer) -> list[str]:
    lines = []
    for way in answer.ways:
        settings = ", ".join(f"{key} {value}" for key, value in way.settings.items())
        fits = "holds it" if way.fits else "would not hold it either"
        lines.append(f"{settings}: {fits}, {way.hbm_limit_max_pages:,} pages")
    return lines


def _row(answer: SizeAnswer, one: SizePoint) -> dict[str, str]:
    chosen = answer.recommended is not None and one.max_pages == answer.recommended.max_pages
    rate = one.oom_rate
    return {
        "max_pages": f"{one.max_pages:,}",
        "safety factor": f"{answer.safety_factor(one.max_pages):.3g}",
        "OOM rate": f"{percent(rate.value)} [{percent(rate.low)}, {percent(rate.high)}]",
        "preemptions a request": f"{one.preemption_rate:.3g}",
        "TTFT p99": "thrash" if one.thrash else format_seconds(one.ttft_p99_s),
        "runs": str(one.replications),
        "": "<- this" if chosen else _room(answer, one.max_pages),
    }


def _room(answer: SizeAnswer, pages: int) -> str:
    if pages > answer.hbm_limit_max_pages and answer.uncertain is None:
        return "beyond the budget"
    return "" if pages <= answer.limit_pages else "beyond the low end"
