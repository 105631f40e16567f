"""The answer of ``simulate explain`` for people, from the same document that ``--format json`` prints."""

from collections.abc import Iterator, Mapping
from typing import Any

from simulator.showing.outlet import outlet
from simulator.showing.terminal import print_rows
from simulator.units import format_bytes, format_seconds
from simulator.units import format_percent as percent

Document = Mapping[str, Any]

_WASTE = (
    ("used_bytes", "used: KV of live tokens"),
    ("reserved_bytes", "reserved: held for tokens to come"),
    ("internal_bytes", "internal: held for tokens that never come"),
    ("external_bytes", "external: free, but of no use to this request"),
    ("unusable_bytes", "unusable: null page, tail of the pool"),
    ("leaked_bytes", "leaked: held by nobody who lives"),
)


def print_explanation(document: Document) -> None:
    """The event in words, then where the pool's bytes were, who held them, and what would have helped."""
    out = outlet()
    if document["event"] is None:
        out.line(_nothing(document))
        return
    for line in _story(document):
        out.line(line)
    out.line()
    waste = document["pool"]["waste"]
    print_rows("", [_waste_row(document, key, text) for key, text in _WASTE if key != "leaked_bytes" or waste[key]])
    out.line()
    print_rows("", list(_holder_rows(document)))
    out.line()
    print_rows("", list(_trial_rows(document["counterfactual"])))
    out.line(_margin(document))


def _nothing(document: Document) -> str:
    counts = document["requests"]
    text = f"No allocation failed under {document['allocator']}: {counts['completed']:,} of {counts['arrived']:,}"
    text += " requests completed"
    if counts["too_large"]:
        text += f"; {counts['too_large']:,} were refused at once as too large for an empty pool"
    return text + ". There is nothing to explain."


def _story(document: Document) -> Iterator[str]:
    event, request, pool = document["event"], document["request"], document["pool"]
    at = format_seconds(event["time_s"])
    where = f", instance {event['instance']}" if "instance" in event else ""
    yield (
        f"{document['allocator']}{where}, event {event['number']:,} of {document['events']:,}: at {at} request "
        f"{event['request_id']} ({request['prompt_tokens']:,} + {request['output_tokens']:,} tokens, class "
        f"{request['class']}) was refused {format_bytes(event['needed_bytes'])} "
        f"{'at admission' if event['during'] == 'admission' else 'while running'}: {_cause(event, pool)}."
    )
    outcome = request["outcome"]
    yield f"In the end: {outcome}" + (f", {request['preemptions']} preemptions" if request["preemptions"] else "") + "."


def _cause(event: Document, pool: Document) -> str:
    free, largest = format_bytes(event["free_bytes"]), format_bytes(event["largest_free_bytes"])
    of = f"of {format_bytes(pool['kv_capacity_bytes'])}"
    if event["cause"] == "capacity":
        return f"capacity, {free} {of} were free, {format_bytes(event['missing_bytes'])} too little"
    holes = pool["free"].get("holes")
    where = f" in {holes:,} holes" if holes else ""
    return f"fragmentation, {free} {of} were free{where}, but the largest piece that could be placed was {largest}"


def _waste_row(document: Document, key: str, text: str) -> dict[str, str]:
    pool = document["pool"]
    size = pool["waste"][key]
    return {"the pool at that moment": text, "bytes": format_bytes(size), "": percent(size / pool["kv_capacity_bytes"])}


def _holder_rows(document: Document) -> Iterator[dict[str, str]]:
    for holder in document["holders"]:
        name = f"{holder['request_id']}" + (f".{holder['sample']}" if holder["sample"] else "")
        yield {
            "who held it": f"request {name}",
            "state": holder["state"],
            "tokens": f"{holder['tokens']:,} of {holder['final_tokens']:,}",
            "bytes": format_bytes(holder["held_bytes"]),
            "where": _place(holder),
        }
    others = document["other_holders"]
    if others["sequences"]:
        count = f"{others['sequences']:,} others"
        size = format_bytes(others["held_bytes"])
        yield {"who held it": count, "state": "", "tokens": "", "bytes": size, "where": ""}


def _place(holder: Document) -> str:
    if holder["start_byte"] is not None:
        return f"bytes {holder['start_byte']:,} to {holder['end_byte'] - 1:,}"
    first = ", ".join(map(str, holder["first_pages"]))
    more = ", ..." if holder["pages"] > len(holder["first_pages"]) else ""
    shared = f" ({holder['shared_pages']:,} shared)" if holder["shared_pages"] else ""
    return f"{holder['pages']:,} pages{shared}: {first}{more}"


def _trial_rows(found: Document) -> Iterator[dict[str, str]]:
    for change, trials in (("allocator", found["allocators"]), ("page_size", found["page_sizes"])):
        for trial in trials:
            what = f"allocator {trial['label']}" if change == "allocator" else f"page_size {trial['page_size']}"
            refused, ended = trial["refused_s"], trial["ended_s"]
            yield {
                "the same arrivals with": what,
                "served": "yes" if trial["served"] else "no",
                "outcome": trial["outcome"],
                "refused at": "-" if refused is None else format_seconds(refused),
                "over at": "-" if ended is None else format_seconds(ended),
                "pool": format_bytes(trial["kv_capacity_bytes"]),
                "pages": f"{trial['max_pages']:,}" if trial["max_pages"] else "-",
            }


def _margin(document: Document) -> str:
    margin = document["counterfactual"]["margin"]
    if margin is None:
        return "No larger pool that was tried serves this request."
    pages = f"{margin['extra_pages']:,} more pages, " if margin["max_pages"] else ""
    total = f"{margin['max_pages']:,} pages, " if margin["max_pages"] else ""
    budget = "the device has it" if margin["within_budget"] else "more than the device leaves for KV"
    return (
        f"Served with {pages}{format_bytes(margin['extra_bytes'])} more: a pool of {total}"
        f"{format_bytes(margin['kv_capacity_bytes'])} (safety_factor {margin['safety_factor']:.3g}; {budget}). "
        f"{format_bytes(margin['not_enough_bytes'])} is not enough."
    )
