"""The page of the kernel's cost: which page size, what it costs, and what bounds it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from simulator.showing.answer_folder import AnswerData
from simulator.showing.page import Figures, Formula, Line, Page, Picture, Translate
from simulator.showing.pages import shared
from simulator.showing.plots.kernel import decode_step, kernel_costs, mechanism_costs, page_choice
from simulator.showing.report_tables import Table
from simulator.units import format_bytes, format_seconds
from simulator.units import format_percent as percent

Document = Mapping[str, Any]

ASSUMPTIONS = (
    "The time of a launch comes from its transfers, look-ups and operations on the busiest core, not from measurement "
    "of this model on this device.",
    "Page tables that scatter and tables in order cost the same here; no public measurement tells them apart.",
    "One launch is one layer; a decode step has one for each layer, and all its other kernels.",
)
_FORMULAS = (
    Formula("KV read", "batch x tokens x KV bytes of a token in one layer, whole pages", "pages[].kv_bytes"),
    Formula("look-ups", "page-table entries read, all heads and tasks", "pages[].lookups"),
    Formula(
        "time", "launch floor + the slowest of look-ups, transfers and compute on the busiest core", "pages[].seconds"
    ),
    Formula("HBM use", "KV bytes / (time without the launch floor x peak bandwidth)", "pages[].bandwidth_utilization"),
    Formula("bound by", "the slowest of these stages; host: the launch floor", "pages[].bound"),
    Formula("unused in last pages", "1 - tokens / (pages x page_size), over all sequences", "pages[].internal_waste"),
    Formula("sequences", "how many fit into the pool, at most max_num_seqs", "pages[].sequences"),
    Formula("tokens/s", "sequences / time of a full decode step", "pages[].tokens_per_s"),
)


def kernel_page(data: AnswerData, words: Translate) -> Page:
    """The page of ``simulate kernel``."""
    document = data.document
    pages, best = document["pages"], _best(document)
    return Page(
        kind="Cost of paged attention",
        title=f"{document['model']} | {document['device']}",
        description="",
        bases=(data.basis,),
        stands_on="{model} on {count} x {device}, {size} for KV on each device",
        answer=_answer(document, best, words),
        warnings=_warnings(pages, words),
        figures=[_choices(pages, words), _launch(document, pages, words)],
        pictures={
            "kernel_costs": Picture(
                partial(kernel_costs, document),
                "One launch: one layer of all sequences. The colour of a point says what bounds the launch.",
                lambda: [_launch_table(pages)],
            ),
            "page_choice": Picture(
                partial(page_choice, document),
                "Small pages cost look-ups and transfers, large ones leave more unused in the last page.",
                lambda: [_choice_table(pages)],
            ),
            "decode_step": Picture(
                partial(decode_step, document),
                "The seven stages of a decode step, one bar a page size.",
                lambda: [_stage_table(pages)],
            ),
            "mechanism_costs": Picture(
                partial(mechanism_costs, best),
                "What each choice of a mechanism takes in a decode step, with pages of the recommended size.",
                lambda: [_mechanism_table(best)],
            ),
            "hbm_budget": shared.budget_picture(data),
        },
        assumptions=ASSUMPTIONS,
    )


def _best(document: Document) -> Document:
    found: Document = next(one for one in document["pages"] if one["recommended"])
    return found


def _answer(document: Document, best: Document, words: Translate) -> list[str]:
    lead = words(
        "Page size {size} serves {model} on {device} best: {unused} of its pages unused, {speed} tokens a second."
    ).format(
        size=best["page_size"],
        model=document["model"],
        device=document["device"],
        unused=percent(best["internal_waste"]),
        speed=f"{best['tokens_per_s']:,.0f}",
    )
    launch = words("A launch with it takes {time}, bound by {bound}, and uses {share} of the HBM bandwidth.").format(
        time=format_seconds(best["seconds"]),
        bound=words(best["bound"]),
        share=percent(best["bandwidth_utilization"]),
    )
    return [lead, launch, _weighed(document, words)]


def _weighed(document: Document, words: Translate) -> str:
    requests, pool = document["lengths"]["requests"], document["pool"]
    if requests:
        lengths = words("{count} requests of the workload, half-way through").format(count=f"{requests:,}")
    else:
        longest = f"{document['lengths']['longest_tokens']:,}"
        lengths = words("lengths spread evenly up to {tokens} tokens").format(tokens=longest)
    room = "an assumed pool of {tokens} KV tokens, because the model leaves no room" if pool["assumed"] else _ROOM
    tokens = words(room).format(tokens=f"{pool['tokens']:,}")
    return words("Weighed over {lengths}, and {pool}.").format(lengths=lengths, pool=tokens)


_ROOM = "{tokens} KV tokens that the device has room for"


def _warnings(pages: Sequence[Document], words: Translate) -> list[str]:
    odd = [str(one["page_size"]) for one in pages if not one["aligned"]]
    text = (
        "Pages of {sizes} tokens are no multiple of 128 bytes; their transfers get the device's unaligned_ratio of the "
        "bandwidth."
    )
    return [words(text).format(sizes=words(", ").join(odd))] if odd else []


def _choices(pages: Sequence[Document], words: Translate) -> Figures:
    return Figures(
        title="Which page size",
        headings=_CHOICE,
        lines=tuple(
            Line(
                f"{one['page_size']}",
                (*_choice_cells(one)[:-1], _choice_cells(one)[-1] or words("none of the known kernels")),
                strong=one["recommended"],
            )
            for one in pages
        ),
        formulas=_FORMULAS,
        note=words(
            "A full decode step, with batches as large as the pool and max_num_seqs allow. Bold: recommended, the "
            "smallest within 1 % of the most tokens a second."
        ),
        upright=True,
    )


_CHOICE = ("page size", "unused in last pages", "sequences", "step", "tokens/s", "accepted by")


def _choice_cells(one: Document) -> tuple[str, ...]:
    return (
        percent(one["internal_waste"]),
        f"{one['sequences']:,}",
        format_seconds(one["step_seconds"]),
        f"{one['tokens_per_s']:,.0f}",
        ", ".join(one["engines"]),
    )


def _choice_table(pages: Sequence[Document]) -> Table:
    return shared.table(_CHOICE, [[str(one["page_size"]), *_choice_cells(one)] for one in pages])


_LAUNCH = (
    *("page size", "page bytes", "tile", "KV read", "look-ups", "transfers", "cycles", "time", "HBM use", "bound by"),
    *("table: from HBM", "cached", "copied to L1"),
)


def _launch_cells(one: Document, words: Translate = str) -> list[str]:
    looks = one["lookup_seconds"]
    return [
        format_bytes(one["page_bytes"]),
        format_bytes(one["tile_bytes"]),
        format_bytes(one["kv_bytes"]),
        f"{one['lookups']:,}",
        f"{one['dma_transfers']:,}",
        f"{one['cycles']:,}",
        format_seconds(one["seconds"]),
        percent(one["bandwidth_utilization"]),
        words(one["bound"]),
        *(format_seconds(looks[mode]) for mode in ("hbm", "dcache", "l1")),
    ]


def _launch(document: Document, pages: Sequence[Document], words: Translate) -> Figures:
    shape = words("{batch} sequences of {tokens} tokens, one layer. Table: time for page ids by where they are read.")
    return Figures(
        title="One attention launch",
        headings=_LAUNCH,
        lines=tuple(
            Line(f"{one['page_size']}", tuple(_launch_cells(one, words)), strong=one["recommended"]) for one in pages
        ),
        note=shape.format(batch=document["batch"], tokens=f"{document['context_tokens']:,}"),
        upright=True,
    )


def _launch_table(pages: Sequence[Document]) -> Table:
    return shared.table(_LAUNCH, [[str(one["page_size"]), *_launch_cells(one)] for one in pages])


def _stage_table(pages: Sequence[Document]) -> Table:
    names = [stage["name"] for stage in pages[0]["stages"]]
    rows = [[str(one["page_size"]), *(format_seconds(stage["seconds"]) for stage in one["stages"])] for one in pages]
    return shared.table(["page size", *(name.replace("_", " ") for name in names)], rows)


def _mechanism_table(best: Document) -> Table:
    rows = [
        [one["mechanism"], one["choice"], format_seconds(one["seconds"]), one["note"]] for one in best["mechanisms"]
    ]
    return shared.table(["mechanism", "choice", "time", ""], rows)
