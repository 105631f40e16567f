"""A size as a JSON document and in words."""

from typing import Any

from simulator.planning.size import NEAR_CLIFF_RATIO, SizeAnswer, SizePoint
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
        "target": _target(answer),
        "confidence": answer.confidence,
        "smaller_max_pages_that_fails": answer.smaller,
        "hbm_headroom_pages": answer.hbm_limit_max_pages - found.max_pages if found else None,
        "page_rounding_ratio": answer.page_rounding_ratio,
        "demand": {"peak_pages": answer.demand_peak_pages, "first_guess_pages": answer.first_guess_pages},
        "warmup_s": answer.warmup_s,
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


def _target(answer: SizeAnswer) -> dict[str, Any]:
    found = answer.recommended
    figures = answer.bound or (found.target if found else None)
    return {
        "name": answer.target.name,
        "limit": answer.target.limit,
        "value": figures.value if figures else None,
        "ci": figures.interval if figures else None,
        "shown_by": None if found is None else "extrapolation" if answer.bound else "simulation",
        "replications": found.replications if found else None,
    }


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
        "ttft_p99_s": None if one.thrash else one.ttft_p99_s,
        "thrash": one.thrash,
        "replications": one.replications,
        "fits": one.max_pages <= answer.hbm_limit_max_pages,
    }


def verdict(answer: SizeAnswer) -> str:
    """The answer in a sentence."""
    found, engine = answer.recommended, answer.scenario.engine
    if found is None:
        return (
            f"No size up to {answer.smaller:,} pages is shown to keep the {answer.target}: either memory is not what "
            "is missing, or more requests or replications are needed to show it."
        )
    held = format_bytes(found.max_pages * answer.page_bytes)
    what = (
        f"{found.max_pages:,} pages of {answer.page_tokens} tokens ({held} a device), "
        f"safety factor {answer.safety_factor(found.max_pages):.3g} at max_num_seqs {engine.max_num_seqs}"
    )
    if answer.feasible:
        spare = answer.hbm_limit_max_pages - found.max_pages
        return f"{what}: {answer.target} with {answer.confidence:.4g} confidence; {spare:,} more pages would fit."
    return (
        f"{what} are needed for {answer.target}, but the memory budget leaves {answer.hbm_limit_max_pages:,}: "
        f"it cannot be met on {answer.scenario.loaded_device.count} device(s)."
    )


def notes(answer: SizeAnswer) -> list[str]:
    """What a reader should know before relying on the answer."""
    said = []
    on_oom = answer.scenario.engine.on_oom
    if answer.target.name == "oom" and on_oom != "fail":
        said.append(
            f"with on_oom {on_oom} a full pool loses no request, so the OOM rate counts only requests too large for an "
            "empty pool and swaps refused: --target preemption=0.01 or --target ttft_p95=2s says more"
        )
    ratio = answer.cliff_ratio
    if ratio is not None and ratio >= NEAR_CLIFF_RATIO:
        said.append(f"near the cliff: 5 % fewer pages make the p99 of TTFT {ratio:.2g} times as long")
    if any(one.thrash for one in answer.curve):
        largest = max(one.max_pages for one in answer.curve if one.thrash)
        said.append(f"up to {largest:,} pages the engine thrashes; no times are given there, none could be trusted")
    if answer.bound:
        said.append(
            "too rare to count: the size is where the line through two larger rates (logarithms) meets the target"
        )
    return said


def print_size(answer: SizeAnswer) -> None:
    """The verdict, the notes, the ways out, the curve."""
    text = "\n".join(
        [verdict(answer), *(f"  {way}" for way in _ways(answer)), *(f"note: {one}" for one in notes(answer))]
    )
    print_rows(text, [_row(answer, one) for one in answer.curve])


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
        "": "<- this" if chosen else "" if one.max_pages <= answer.hbm_limit_max_pages else "beyond the budget",
    }
