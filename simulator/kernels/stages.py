"""A step's time as seven stages, each with its bytes and what bounds it.

The stages are those of a decode loop as engines describe it: host preparation, allocation, packing, attention,
KV write, logits and sampling, bookkeeping. *Packing* is the packed token buffer on its way through the linear
layers and their collectives. Launches are counted where the kernels belong: one attention and one cache-write
kernel a layer, the others in packing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.kernels.roofline import Work
from simulator.kernels.step_load import StepLoad
from simulator.kernels.tiles import TABLE_ENTRY_BYTES

if TYPE_CHECKING:
    from simulator.cost import StepCost

STAGES = ("host_prep", "allocation", "packing", "attention", "kv_write", "logits_sampling", "bookkeeping")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Seconds of one stage, ``launch_s`` of them launches; bytes moved; what its work is bound by."""

    name: str
    seconds: float
    launch_s: float
    moved_bytes: int
    flops: int
    bound: str


def breakdown(cost: "StepCost", load: StepLoad) -> tuple[StageCost, ...]:
    """The seven stages of a step under the cost model; their seconds sum to ``cost.seconds(load)``."""
    device = cost.device
    layers = cost.model.num_layers * device.launch_s
    entries = (load.new_pages + load.sequences + 1) * TABLE_ENTRY_BYTES
    host = Work(seconds=device.host_step_s, moved_bytes=entries, bound="host")
    book = Work(seconds=load.sequences * device.host_sequence_s, bound="host")
    packing = cost.token_work(load.tokens)
    write, logits = cost.kv_write.work(load.tokens), cost.head.work(load.sampled_sequences)
    work = (host, _allocation(cost, load), _sum(packing), _attention(cost, load), write, logits, book)
    launches = (0.0, 0.0, cost.launches_s - 2 * layers, layers, layers, 0.0, 0.0)
    return tuple(
        StageCost(
            name=name,
            seconds=piece.seconds + launch_s,
            launch_s=launch_s,
            moved_bytes=round(piece.moved_bytes),
            flops=round(piece.flops),
            bound="launch" if launch_s > piece.seconds else piece.bound,
        )
        for name, piece, launch_s in zip(STAGES, work, launches, strict=True)
    )


def _allocation(cost: "StepCost", load: StepLoad) -> Work:
    device = cost.device
    parts = {
        "cycles": load.allocator_cycles / device.clock_hz,
        "bandwidth": load.copied_bytes / device.hbm_sustained_bandwidth,
        "host link": load.swapped_bytes / device.host_bandwidth,
    }
    bound = max(parts, key=lambda name: parts[name]) if any(parts.values()) else "none"
    return Work(seconds=sum(parts.values()), moved_bytes=load.copied_bytes + load.swapped_bytes, bound=bound)


def _attention(cost: "StepCost", load: StepLoad) -> Work:
    skew = cost.skew(load)
    pieces = [
        *cost.prefill_work(load),
        *(
            group.work(
                load.decode_sequences,
                load.decode_context_tokens,
                load.decode_pages,
                load.decode_windowed_tokens,
                load.decode_lengths,
                skew,
            )
            for group in cost.groups
        ),
    ]
    return _sum(pieces)


def _sum(pieces: "list[Work] | tuple[Work, ...]") -> Work:
    """Pieces one after the other; bound as the longest of them."""
    longest = max(pieces, key=lambda piece: piece.seconds)
    return Work(
        seconds=sum(piece.seconds for piece in pieces),
        moved_bytes=sum(piece.moved_bytes for piece in pieces),
        flops=sum(piece.flops for piece in pieces),
        bound=longest.bound,
    )
