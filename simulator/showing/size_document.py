"""A size as a JSON document and in words."""

import math
from collections.abc import Sequence
from typing import Any

from simulator.planning.pool_interval import IntervalPoint
from simulator.planning.sensitivity import CHANGE, FELT
from simulator.planning.size import SizeAnswer
from simulator.planning.size_points import NEAR_CLIFF_RATIO, SizePoint
from simulator.planning.statistics import Estimate
from simulator.planning.target import PROPORTIONS, Target
from simulator.showing import size_words
from simulator.showing.terminal import print_rows
from simulator.units import format_percent as percent
from simulator.units import format_seconds


def size_document(answer: SizeAnswer) -> dict[str, Any]:
    """The document of ``simulate size --format json``."""
    found, engine = answer.recommended, answer.scenario.engine
    document = {
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
        "sure_pages": answer.limit_pages,
        "page_bytes": answer.page_bytes,
        "smaller_max_pages_that_fails": answer.smaller,
        "hbm_headroom_pages": answer.hbm_limit_max_pages - found.max_pages if found else None,
        "page_rounding_ratio": answer.page_rounding_ratio,
        "demand": {"peak_pages": answer.demand_peak_pages, "first_guess_pages": answer.first_guess_pages},
        "warmup_s": answer.warmup_s,
        "sensitivity": _sensitivity(answer),
        "pool_interval": _uncertain(answer),
        "cliff": _cliff(answer),
        "curve": [_point(answer, one) for one in answer.curve],
        "ways_out": [way.to_dict() for way in answer.ways],
        "on_oom": engine.on_oom,
        "scenario_devices": answer.scenario.loaded_device.fleet_count,
        "replicas": answer.scenario.loaded_device.replicas,
        "interrupted": answer.interrupted,
    }
    said = {"verdict": size_words.verdict(document), "notes": size_words.notes(document)}
    return document | said


def _devices(answer: SizeAnswer) -> int | None:
    if answer.recommended is None:
        return None
    if answer.feasible:
        return answer.scenario.loaded_device.fleet_count
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


def size_tables(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The Parquet tables of a size: the curve, and the pool's interval if it is not known exactly."""
    interval = document["pool_interval"] or {"points": []}
    return {
        "curve": [flat_point(one) for one in document["curve"]],
        "interval": [flat_point(one) for one in interval["points"]],
    }


def flat_point(point: dict[str, Any]) -> dict[str, Any]:
    """A point of a curve with its targets and intervals as columns of their own."""
    flat = {name: value for name, value in point.items() if name not in ("targets", "oom_rate_ci")}
    named = [{"name": "oom_rate", "ci": point["oom_rate_ci"]}] if "oom_rate_ci" in point else []
    for one in (*named, *point["targets"]):
        flat[one["name"]] = one.get("value", flat.get(one["name"]))
        flat[f"{one['name']}.low"], flat[f"{one['name']}.high"] = one["ci"]
    return flat


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
        **_figures(answer, oom_rate=one.oom_rate, targets=one.targets),
        "preemption_rate": one.preemption_rate,
        "ttft_p99_s": None if one.thrash else number(one.ttft_p99_s),
        "thrash": one.thrash,
        "replications": one.replications,
        "fits": one.max_pages <= answer.limit_pages,
    }


def _sensitivity(answer: SizeAnswer) -> dict[str, Any] | None:
    """Pages needed and there with a tenth more and less of each assumption, over those with nothing changed."""
    if not answer.effects:
        return None
    assumptions = [
        {
            "name": one.name,
            "confidence": one.confidence or None,
            "pages_needed_ratio": {"up": one.needed_up, "down": one.needed_down},
            "pages_available_ratio": {"up": one.room_up, "down": one.room_down},
        }
        for one in answer.effects
    ]
    return {
        "change": CHANGE,
        "felt": FELT,
        "shown_by": "demand curve, common random numbers",
        "assumptions": assumptions,
    }


def print_size(answer: SizeAnswer) -> None:
    """The verdict, the notes, the ways out, the curve, and what an uncertain pool means."""
    document = size_document(answer)
    said = [*(f"  {way}" for way in size_words.ways(document)), *(f"note: {one}" for one in document["notes"])]
    text = "\n".join([document["verdict"], *said, *size_words.sensitivity(document)])
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
    """A target's figure with its interval where it has one: a single replication gives none of a time."""
    if target.name in PROPORTIONS:
        return f"{percent(estimate.value)} [{percent(estimate.low)}, {percent(estimate.high)}]"
    if target.is_share:
        return f"{estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"
    if not math.isfinite(estimate.high):
        return format_seconds(estimate.value)
    low, high = max(0.0, estimate.low), estimate.high
    return f"{format_seconds(estimate.value)} [{format_seconds(low)}, {format_seconds(high)}]"


def _row(answer: SizeAnswer, one: SizePoint) -> dict[str, str]:
    chosen = answer.recommended is not None and one.max_pages == answer.recommended.max_pages
    asked = {
        _COLUMNS.get(target.name, target.name): "thrash"
        if one.thrash and not target.is_share
        else spelled(seen, target)
        for target, seen in zip(answer.goal.targets, one.targets, strict=True)
    }
    return {
        "max_pages": f"{one.max_pages:,}",
        "safety factor": f"{answer.safety_factor(one.max_pages):.3g}",
        "OOM rate": spelled(one.oom_rate, Target("oom", 1.0)),
        "preemptions a request": f"{one.preemption_rate:.3g}",
        "TTFT p99": "thrash" if one.thrash else format_seconds(one.ttft_p99_s),
        **asked,
        "runs": str(one.replications),
        "": "<- this" if chosen else _room(answer, one.max_pages),
    }


#: what the column of a target is called that is there anyway, or whose name says too little
_COLUMNS = {
    "oom": "OOM rate",
    "preemption": "preemptions a request",
    "ttft_p99": "TTFT p99",
    "timeout": "timed out",
    "wait": "waited for memory",
}


def _room(answer: SizeAnswer, pages: int) -> str:
    if pages > answer.hbm_limit_max_pages and answer.interval is None:
        return "beyond the budget"
    return "" if pages <= answer.limit_pages else "beyond the low end"
