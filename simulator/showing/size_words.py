"""What a size means, in sentences made from its document: for the terminal, JSON, and the page in any language."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulator.planning.size_points import NEAR_CLIFF_RATIO
from simulator.planning.statistics import exact_interval
from simulator.planning.target import SHARES
from simulator.units import format_bytes, format_seconds
from simulator.units import format_percent as percent

Document = Mapping[str, Any]
Translate = Callable[[str], str]


def target_words(target: Document, words: Translate = str) -> str:
    """One target: ``OOM rate below 0.001``."""
    name, limit = target["name"], target["limit"]
    shown = (words(SHARES[name]), f"{limit:g}") if name in SHARES else (name, format_seconds(limit))
    return words("{figure} below {limit}").format(figure=shown[0], limit=shown[1])


def goal_words(targets: Sequence[Document], words: Translate = str) -> str:
    """All targets together."""
    return words(" and ").join(target_words(one, words) for one in targets)


def verdict(document: Document, words: Translate = str) -> str:
    """The answer in a sentence."""
    found, goal = document["recommended"], goal_words(document["targets"], words)
    pages = found["max_pages"]
    if document["interrupted"] and pages is None:
        return words("Interrupted: {count} sizes were tried, and no smallest one is known yet for {goal}.").format(
            count=len(document["curve"]), goal=goal
        )
    if pages is None:
        text = (
            "No size up to {pages} pages is shown to keep the {goal}: either memory is not what is missing, or more "
            "requests or replications are needed to show it."
        )
        return words(text).format(pages=f"{document['smaller_max_pages_that_fails']:,}", goal=goal)
    text = "{pages} pages of {tokens} tokens ({held} a device), safety factor {factor} at max_num_seqs {seqs}"
    if document["replicas"] > 1:
        text = (
            "{pages} pages of {tokens} tokens ({held} a device) in each of {replicas} instances, safety factor "
            "{factor} at max_num_seqs {seqs}"
        )
    what = words(text).format(
        pages=f"{pages:,}",
        replicas=document["replicas"],
        tokens=found["page_size"],
        held=format_bytes(pages * document["page_bytes"]),
        factor=f"{found['safety_factor']:.3g}",
        seqs=found["max_num_seqs"],
    )
    sure = f"{document['sure_pages']:,}"
    shown = {"what": what, "goal": goal, "sure": sure, "devices": document["scenario_devices"]}
    if document["feasible"]:
        shown |= {"confidence": f"{document['confidence']:.4g}", "spare": f"{document['sure_pages'] - pages:,}"}
        return words(_feasible(document)).format(**shown, interval=_interval(document, words))
    chance = document["pool_interval"] and f"{document['pool_interval']['probability_enough']:.2g}"
    return words(_impossible(document)).format(**shown, chance=chance, interval=_interval(document, words))


def _feasible(document: Document) -> str:
    if document["pool_interval"] is None:
        return "{what}: {goal} with {confidence} confidence; {spare} more pages would fit."
    return (
        "{what}: {goal} with {confidence} confidence; {spare} more pages would fit at the low end of the pool, "
        "{interval}."
    )


def _impossible(document: Document) -> str:
    if document["pool_interval"] is None:
        return (
            "{what} are needed for {goal}, but the memory budget leaves {sure}: it cannot be met on {devices} "
            "device(s)."
        )
    return (
        "{what} are needed for {goal}, but the low end of the pool, {interval}, holds {sure} (the pool is enough with "
        "probability {chance}): it cannot be relied on on {devices} device(s)."
    )


def _interval(document: Document, words: Translate) -> str:
    found = document["pool_interval"]
    return "" if found is None else interval_words(found, words)


def interval_words(interval: Document, words: Translate = str) -> str:
    """The pool's bytes: ``20 GiB to 24 GiB``."""
    low, high = format_bytes(interval["low_bytes"]), format_bytes(interval["high_bytes"])
    return words("{low} to {high}").format(low=low, high=high)


def notes(document: Document, words: Translate = str) -> list[str]:
    """What a reader should know before relying on the answer."""
    found = [_hidden(document, words), _lost(document, words), _near_cliff(document, words), _thrash(document, words)]
    found += [_fleet(document, words), _low_end(document, words), _rare(document, words)]
    found += [_cut_short(document, words)]
    return [one for one in found if one]


def _hidden(document: Document, words: Translate) -> str:
    if document["on_oom"] == "fail" or [target["name"] for target in document["targets"]] != ["oom"]:
        return ""
    text = (
        "with on_oom {policy} a full pool loses no request, so the OOM rate counts only requests too large for an "
        "empty pool and swaps refused: --target {rate}=0.01 or --target ttft_p95=2s says more"
    )
    rate = "wait" if document["on_oom"] == "wait" else "preemption"
    return words(text).format(policy=document["on_oom"], rate=rate)


def _lost(document: Document, words: Translate) -> str:
    lost = document["recommended"]["oom_rate"]
    if not lost or "oom" in [target["name"] for target in document["targets"]]:
        return ""
    text = (
        "{share} of the requests run out of memory in the recommended size, and a time is that of the completed ones: "
        "--target oom=0.001 beside it asks for both"
    )
    return words(text).format(share=percent(lost))


def _near_cliff(document: Document, words: Translate) -> str:
    ratio = document["cliff"]["ttft_p99_ratio_5_percent_fewer_pages"]
    if ratio is None or ratio < NEAR_CLIFF_RATIO:
        return ""
    text = "near the cliff: 5 % fewer pages make the p99 of TTFT {ratio} times as long"
    return words(text).format(ratio=f"{ratio:.2g}")


def _thrash(document: Document, words: Translate) -> str:
    thrashing = [one["max_pages"] for one in document["curve"] if one["thrash"]]
    if not thrashing:
        return ""
    text = (
        "up to {pages} pages the engine thrashes or stands still: no times are given there, none could be trusted, and "
        "no such size is recommended"
    )
    return words(text).format(pages=f"{max(thrashing):,}") + _unseen(document, words)


def _fleet(document: Document, words: Translate) -> str:
    if document["feasible"] or document["recommended"]["max_pages"] is None or document["replicas"] == 1:
        return ""
    return words("how many instances would do as they are: --solve device.replicas=A:B")


def _unseen(document: Document, words: Translate) -> str:
    """How sure it is that the recommended size does not."""
    pages = document["recommended"]["max_pages"]
    if pages is None:
        return ""
    runs = document["targets"][0]["replications"]
    bound = percent(exact_interval(0, runs, document["confidence"])[1])
    text = "; none of {runs} runs of {pages} pages did, so at most {bound} of such runs would"
    return words(text).format(runs=runs, pages=f"{pages:,}", bound=bound)


def _low_end(document: Document, words: Translate) -> str:
    interval = document["pool_interval"]
    if interval is None or document["recommended"]["max_pages"] is None or document["feasible"]:
        return ""
    text = (
        "what the low end carries as it is: --set device.kv_capacity_bytes={bytes} --solve engine.max_num_seqs=..., or "
        "any other key"
    )
    return words(text).format(bytes=interval["low_bytes"])


def _rare(document: Document, words: Translate) -> str:
    if not any(one["shown_by"] == "extrapolation" for one in document["targets"]):
        return ""
    return words("too rare to count: the size is where the line through two larger rates (logarithms) meets the target")


def _cut_short(document: Document, words: Translate) -> str:
    if not document["interrupted"] or document["recommended"]["max_pages"] is None:
        return ""
    return words("interrupted: the size was found and verified, but not all that is told about it")


def ways(document: Document, words: Translate = str) -> list[str]:
    """Changes that would make room."""
    lines = []
    for way in document["ways_out"]:
        settings = ", ".join(f"{key} {value}" for key, value in way["settings"].items())
        text = "{settings}: holds it, {pages} pages" if way["fits"] else _NO_WAY
        lines.append(words(text).format(settings=settings, pages=f"{way['hbm_limit_max_pages']:,}"))
    return lines


_NO_WAY = "{settings}: would not hold it either, {pages} pages"


def sensitivity(document: Document, words: Translate = str) -> list[str]:
    """Which assumptions the answer depends on most, in one sentence; nothing when that was not asked."""
    found = document["sensitivity"]
    if found is None:
        return []
    felt = [one for one in found["assumptions"] if change_felt(one) >= found["felt"]]
    text = words("most sensitive to (each {change} more / less, all else equal): {felt}; hardly to {rest}")
    if not felt:
        text = words("each assumption {change} more or less changes the answer by less than {least}: {rest}")
    return [
        text.format(
            change=percent(found["change"]),
            least=percent(found["felt"]),
            felt=", ".join(_effect(one, words) for one in felt),
            rest=", ".join(one["name"] for one in found["assumptions"] if one not in felt) or words("nothing else"),
        )
    ]


def change_felt(one: Document) -> float:
    """How much the pages needed change against those there, as a share."""
    needed, room = one["pages_needed_ratio"], one["pages_available_ratio"]
    return float(max(abs(needed[way] / room[way] - 1.0) for way in ("up", "down")))


def _effect(one: Document, words: Translate) -> str:
    """``prompt tokens (pages needed +39 % / -30 %)``."""
    needed, room = one["pages_needed_ratio"], one["pages_available_ratio"]
    what, ratios = ("pages needed", needed) if room["up"] == room["down"] == 1.0 else ("pages available", room)
    sure = f", {words(one['confidence'])}" if one["confidence"] else ""
    change = " / ".join(f"{100 * (ratios[way] - 1.0):+.2g} %" for way in ("up", "down"))
    return f"{one['name']} ({words(what)} {change}{sure})"
