"""A run of trace requests as columns, whatever format they came in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.traffic.requests import BoolArray, IntArray, Prefixes, offsets_of


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TraceRows:
    """Requests of a trace. ``time_ns`` counts from the file's own origin; None when the file has lengths only.

    ``skipped`` is the number of rows left out because they produced nothing.
    """

    time_ns: IntArray | None
    prompt_tokens: IntArray
    output_tokens: IntArray
    prefix: Prefixes | None = None
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def keep(self, mask: BoolArray) -> "TraceRows":
        """The requests where ``mask`` is true."""
        if mask.all():
            return self
        return TraceRows(
            time_ns=None if self.time_ns is None else self.time_ns[mask],
            prompt_tokens=self.prompt_tokens[mask],
            output_tokens=self.output_tokens[mask],
            prefix=None if self.prefix is None else self.prefix.keep(mask),
            skipped=self.skipped,
        )


def joined(runs: Sequence[TraceRows]) -> TraceRows:
    """The runs one after the other; at least one, all from the same file."""
    if len(runs) == 1:
        return runs[0]
    times = [run.time_ns for run in runs if run.time_ns is not None]
    prefixes = [run.prefix for run in runs if run.prefix is not None]
    return TraceRows(
        time_ns=np.concatenate(times) if times else None,
        prompt_tokens=np.concatenate([run.prompt_tokens for run in runs]),
        output_tokens=np.concatenate([run.output_tokens for run in runs]),
        prefix=_joined_prefixes(prefixes) if prefixes else None,
        skipped=sum(run.skipped for run in runs),
    )


def _joined_prefixes(parts: Sequence[Prefixes]) -> Prefixes:
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    return Prefixes(
        offsets=offsets_of(counts),
        ids=np.concatenate([part.ids for part in parts]),
        ends=np.concatenate([part.ends for part in parts]),
    )
