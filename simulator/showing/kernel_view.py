"""What people see of ``simulate kernel``: two tables, the stages of a step, a picture."""

from simulator.kernels.kernel_table import KernelRow, PageChoice
from simulator.kernels.mechanism_table import MechanismCost
from simulator.kernels.stages import StageCost
from simulator.planning.kernel_answer import KernelAnswer
from simulator.showing.terminal import print_rows
from simulator.units import format_bytes, format_seconds
from simulator.units import format_percent as percent

UNMEASURED = "Page tables that scatter and tables in order cost the same here; no public measurement tells them apart."


def print_answer(answer: KernelAnswer, *, with_stages: bool = False, with_mechanisms: bool = False) -> None:
    """The recommended page size in words, the launch by page size, and what each page size serves."""
    print_rows(summary(answer), [_cost_row(row) for row in answer.rows])
    by_size = {row.page_size: row for row in answer.rows}
    title = f"\nA full decode step, batches as large as {answer.pool} and max_num_seqs allow; {answer.lengths}:"
    print_rows(title, [_choice_row(choice, by_size[choice.page_size], answer) for choice in answer.choices])
    if with_stages:
        best = [row.page_size for row in answer.rows].index(answer.best.page_size)
        title = f"\nA decode step of {answer.batch} x {answer.context:,} tokens, pages of {answer.best.page_size}:"
        print_rows(title, [_stage_row(stage) for stage in answer.stages[best]])
    if with_mechanisms:
        shape = f"{answer.batch} x {answer.context:,} tokens, pages of {answer.best.page_size}"
        title = f"\nWhat the choices of each mechanism take in a decode step of {shape}:"
        print_rows(title, [_mechanism_row(one) for one in answer.mechanisms])


def unaligned(answer: KernelAnswer) -> str:
    """A warning about page sizes whose bytes are no multiple of 128; empty when there is none."""
    odd = [f"{row.page_size} ({row.page_bytes} bytes)" for row in answer.rows if not row.aligned]
    slower = "their transfers get the device's unaligned_ratio of the bandwidth"
    return f"pages of {', '.join(odd)} are no multiple of 128 bytes; {slower}" if odd else ""


def summary(answer: KernelAnswer) -> str:
    """Two sentences: the page size to take and what the first table is about."""
    best = answer.best
    gain = f"{percent(best.internal_waste)} of its pages unused, {best.tokens_per_s:,.0f} tokens a second"
    return (
        f"Page size {best.page_size} serves {answer.model} on {answer.device} best ({gain}). {UNMEASURED}\n\n"
        f"One attention launch (one layer, {answer.batch} sequences of {answer.context:,} tokens):"
    )


def _cost_row(row: KernelRow) -> dict[str, str]:
    looks = row.lookup_seconds
    return {
        "page": f"{row.page_size}",
        "page bytes": format_bytes(row.page_bytes) + ("" if row.aligned else " (unaligned)"),
        "tile": format_bytes(row.tile_bytes),
        "fit": f"{row.tiles_fit}" if row.tiles_fit else f"{row.passes} passes",
        "KV read": format_bytes(row.kv_bytes),
        "table read": format_bytes(row.table_bytes),
        "look-ups": f"{row.lookups:,}",
        "transfers": f"{row.dma_transfers:,}",
        "cycles": f"{row.cycles:,}",
        "time": format_seconds(row.seconds),
        "HBM use": percent(row.bandwidth_utilization),
        "bound by": row.bound,
        "table: from HBM": format_seconds(looks["hbm"]),
        "cached": format_seconds(looks["dcache"]),
        "copied to L1": format_seconds(looks["l1"]),
    }


def _choice_row(choice: PageChoice, row: KernelRow, answer: KernelAnswer) -> dict[str, str]:
    return {
        "page": f"{choice.page_size}",
        "unused in last pages": percent(choice.internal_waste),
        "sequences": f"{choice.sequences:,}",
        "step": format_seconds(choice.step_seconds),
        "tokens/s": f"{choice.tokens_per_s:,.0f}",
        "accepted by": ", ".join(row.engines) or "none of the known kernels",
        "": "<- recommended" if choice is answer.best else "",
    }


def _stage_row(stage: StageCost) -> dict[str, str]:
    return {
        "stage": stage.name.replace("_", " "),
        "time": format_seconds(stage.seconds),
        "of it launches": format_seconds(stage.launch_s),
        "bytes": format_bytes(stage.moved_bytes),
        "operations": f"{stage.flops:.3g}",
        "bound by": stage.bound,
    }


def _mechanism_row(one: MechanismCost) -> dict[str, str]:
    return {
        "mechanism": one.mechanism,
        "choice": one.choice,
        "time": format_seconds(one.seconds),
        "bytes": format_bytes(one.moved_bytes),
        "": one.note,
    }
