"""CSV traces, told apart by their columns.

Azure LLM inference (wall-clock times), BurstGPT (seconds; a row with 0 response tokens is a failed request and is
skipped), plain CSV and Vidur's spelling of it (seconds), and files that hold lengths only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.errors import shown
from simulator.traffic.columns import SECONDS, TOKENS, TOKENS_OR_ZERO, WALL_CLOCK, Column, CsvRows, csv_runs
from simulator.traffic.requests import IntArray, Prefixes, offsets_of
from simulator.traffic.text_lines import complaint
from simulator.traffic.trace_rows import TraceRows


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """Column names of one kind of CSV trace."""

    name: str
    time: str | None
    prompt: str
    output: str
    clock: Column = SECONDS
    skips_failures: bool = False

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that identify the format."""
        return tuple(name for name in (self.time, self.prompt, self.output) if name)


FORMATS = (
    CsvFormat("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", clock=WALL_CLOCK),
    CsvFormat("BurstGPT", "Timestamp", "Request tokens", "Response tokens", skips_failures=True),
    CsvFormat("plain", "arrived_at", "prompt_tokens", "output_tokens"),
    CsvFormat("Vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    CsvFormat("lengths", None, "prompt_tokens", "output_tokens"),
    CsvFormat("Vidur lengths", None, "num_prefill_tokens", "num_decode_tokens"),
)


def csv_trace(path: Path, *, skip_empty_output: bool) -> Iterator[TraceRows]:
    """The requests of a CSV trace, run by run, in file order.

    Raises ``InputError`` naming file, line, column, what was found and what is allowed; times must not decrease.
    """
    groups: dict[str, int] = {}
    last_ns = 0
    for run in csv_runs(path):
        form = _format(run)
        rows, kept = _requests(run, form, skip_empty_output=skip_empty_output)
        if rows.time_ns is not None and len(rows.time_ns):
            _check_order(run, kept, rows.time_ns, last_ns, form)
            last_ns = int(rows.time_ns[-1])
        yield TraceRows(
            time_ns=rows.time_ns,
            prompt_tokens=rows.prompt_tokens,
            output_tokens=rows.output_tokens,
            prefix=_prefixes(kept, rows.prompt_tokens, groups),
            skipped=rows.skipped,
        )


def _format(run: CsvRows) -> CsvFormat:
    found = next((form for form in FORMATS if set(form.needed) <= set(run.header)), None)
    if found:
        return found
    nearest = max(FORMATS, key=lambda form: len(set(form.needed) & set(run.header)))
    missing = [name for name in nearest.needed if name not in run.header]
    if len(missing) < len(nearest.needed):
        raise complaint(run.path, 1, f"column {', '.join(missing)} is missing (found: {', '.join(run.header)})")
    kinds = tuple(f"{','.join(form.needed)} ({form.name})" for form in FORMATS)
    raise complaint(run.path, 1, f"columns {shown(','.join(run.header))} are no known trace", allowed=kinds)


def _requests(run: CsvRows, form: CsvFormat, *, skip_empty_output: bool) -> tuple[TraceRows, CsvRows]:
    skips = form.skips_failures or skip_empty_output
    output = run.read(form.output, TOKENS_OR_ZERO if skips else TOKENS)
    alive = output > 0
    kept = run
    if not alive.all():
        rows = np.flatnonzero(alive).tolist()
        kept = CsvRows(run.path, run.header, [run.rows[row] for row in rows], [run.lines[row] for row in rows])
    result = TraceRows(
        time_ns=kept.read(form.time, form.clock) if form.time else None,
        prompt_tokens=kept.read(form.prompt, TOKENS),
        output_tokens=output[alive],
        skipped=int(np.count_nonzero(~alive)),
    )
    return result, kept


def _check_order(run: CsvRows, kept: CsvRows, times_ns: IntArray, last_ns: int, form: CsvFormat) -> None:
    backwards = np.flatnonzero(np.diff(times_ns, prepend=last_ns) < 0)
    if len(backwards) and form.time:
        raise kept.error(int(backwards[0]), form.time, "a time not before the row above (sort the file by time)")


def _prefixes(run: CsvRows, prompt_tokens: IntArray, groups: dict[str, int]) -> Prefixes | None:
    """``prefix_id`` (any text; empty = none) and ``prefix_tokens``, both or neither; ids numbered as they appear."""
    present = [name for name in ("prefix_id", "prefix_tokens") if name in run.header]
    if not present:
        return None
    if len(present) == 1:
        raise complaint(run.path, 1, f"{present[0]} needs the other of prefix_id,prefix_tokens beside it")
    names = [text.strip() for text in run.texts("prefix_id")]
    shared = np.array([bool(name) for name in names], np.bool_)
    rows = np.flatnonzero(shared).tolist()
    sharing = CsvRows(run.path, run.header, [run.rows[row] for row in rows], [run.lines[row] for row in rows])
    ends = sharing.read("prefix_tokens", TOKENS)
    too_long = np.flatnonzero(ends > prompt_tokens[shared])
    if len(too_long):
        raise sharing.error(int(too_long[0]), "prefix_tokens", "at most the row's prompt tokens")
    ids = np.array([groups.setdefault(name, len(groups)) for name in names if name], np.int64)
    return Prefixes(offsets=offsets_of(shared), ids=ids, ends=ends)
