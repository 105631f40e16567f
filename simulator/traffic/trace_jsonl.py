"""Mooncake JSONL traces: one JSON object a line, with the hash ids of the prompt's blocks."""

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import shown
from simulator.traffic.jsonl_plain import PlainLines, plain_lines
from simulator.traffic.requests import MAX_TIME_S, MAX_TOKENS, IntArray, Prefixes, offsets_of
from simulator.traffic.text_lines import complaint, text_blocks
from simulator.traffic.trace_rows import TraceRows
from simulator.units import ceil_div

_NS_PER_MS = 1_000_000
_RUN_REQUESTS = 16_384
_RUN_IDS = 1 << 20


def jsonl_trace(path: Path, *, block_tokens: int, skip_empty_output: bool) -> Iterator[TraceRows]:
    """The requests of a JSONL trace, run by run, in file order.

    Each line has ``timestamp`` (ms, not decreasing), ``input_length``, ``output_length`` (tokens) and, on every line
    or on none, ``hash_ids``: one id for each ``block_tokens`` of the prompt, the last one possibly partial. Raises
    ``InputError`` naming file, line, key, what was found and what is allowed.
    """
    reader = _Reader(path, block_tokens, skip_empty_output)
    for first, block in text_blocks(path):
        if not reader.add_plain(block):
            for line, text in enumerate(block.split("\n"), first):
                if text.strip():
                    reader.add(line, text)
        if len(reader.times) >= _RUN_REQUESTS or len(reader.ids) >= _RUN_IDS:
            yield reader.take()
    yield reader.take()


class _Reader:
    """Collects lines in compact arrays until a run is full."""

    def __init__(self, path: Path, block_tokens: int, skip_empty_output: bool) -> None:
        self.path, self.block_tokens, self.skip_empty_output = path, block_tokens, skip_empty_output
        self.last_ns = 0
        self.has_ids: bool | None = None
        self._clear()

    def _clear(self) -> None:
        self.times, self.prompts, self.outputs = array("q"), array("q"), array("q")
        self.counts, self.ids = array("q"), array("q")
        self.skipped = 0

    def add(self, line: int, text: str) -> None:
        """Reads one line. Raises ``InputError``."""
        row = self._object(line, text)
        time_ns = self._time(line, row)
        prompt = self._tokens(line, row, "input_length", least=1)
        output = self._tokens(line, row, "output_length", least=0 if self.skip_empty_output else 1)
        ids = self._hash_ids(line, row, prompt)
        if not output:
            self.skipped += 1
            return
        self.times.append(time_ns)
        self.prompts.append(prompt)
        self.outputs.append(output)
        self.counts.append(len(ids))
        self.ids.extend(ids)

    def add_plain(self, text: str) -> bool:
        """Reads lines all at once if they are plain and nothing is wrong with them; says whether it did."""
        with_ids = '"hash_ids"' in text if self.has_ids is None else self.has_ids
        lines = plain_lines(text, with_ids=with_ids)
        if lines is None or not self._valid(lines):
            return False
        self.has_ids = with_ids
        self.last_ns = int(lines.milliseconds[-1]) * _NS_PER_MS
        kept = lines.outputs > 0
        if not kept.all():
            self.skipped += int(np.count_nonzero(~kept))
            lines = lines.keep(kept)
        self.times.frombytes((lines.milliseconds * _NS_PER_MS).tobytes())
        self.prompts.frombytes(lines.prompts.tobytes())
        self.outputs.frombytes(lines.outputs.tobytes())
        self.counts.frombytes(lines.counts.tobytes())
        self.ids.frombytes(lines.ids.tobytes())
        return True

    def _valid(self, lines: PlainLines) -> bool:
        """Whether ``add`` would take all of them."""
        times = lines.milliseconds
        return (
            int(times[0]) * _NS_PER_MS >= self.last_ns
            and bool((times[1:] >= times[:-1]).all())
            and int(times[-1]) <= MAX_TIME_S * 1000
            and _within(lines.prompts, 1, MAX_TOKENS)
            and _within(lines.outputs, 0 if self.skip_empty_output else 1, MAX_TOKENS)
            and (not len(lines.ids) or np.array_equal(lines.counts, -(-lines.prompts // self.block_tokens)))
        )

    def take(self) -> TraceRows:
        """The requests collected since the last call."""
        prompts, counts = _column(self.prompts), _column(self.counts)
        rows = TraceRows(
            time_ns=_column(self.times),
            prompt_tokens=prompts,
            output_tokens=_column(self.outputs),
            prefix=self._prefixes(prompts, counts) if self.has_ids else None,
            skipped=self.skipped,
        )
        self._clear()
        return rows

    def _prefixes(self, prompts: IntArray, counts: IntArray) -> Prefixes:
        offsets = offsets_of(counts)
        nth = np.arange(1, len(self.ids) + 1) - np.repeat(offsets[:-1], counts)
        ends = nth * self.block_tokens
        ends[offsets[1:] - 1] = prompts  # no prompt without a block: the last one ends with it
        return Prefixes(offsets=offsets, ids=_column(self.ids), ends=ends)

    def _object(self, line: int, text: str) -> dict[str, Any]:
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise complaint(self.path, line, f"not a JSON object: {error}") from None
        if not isinstance(row, dict):
            raise complaint(self.path, line, f"found {shown(row)}", allowed=("a JSON object",))
        return row

    def _time(self, line: int, row: dict[str, Any]) -> int:
        value = self._get(line, row, "timestamp")
        if type(value) not in (int, float) or not 0 <= value <= MAX_TIME_S * 1000:
            raise self._error(line, "timestamp", value, f"milliseconds from 0 to {MAX_TIME_S * 1000:g}")
        time_ns: int = round(value * _NS_PER_MS)
        if time_ns < self.last_ns:
            raise self._error(line, "timestamp", value, "a time not before the line above (sort the file by time)")
        self.last_ns = time_ns
        return time_ns

    def _tokens(self, line: int, row: dict[str, Any], key: str, *, least: int) -> int:
        value = self._get(line, row, key)
        if type(value) is not int or not least <= value <= MAX_TOKENS:
            raise self._error(line, key, value, f"a whole number of tokens from {least} to {MAX_TOKENS}")
        return value

    def _hash_ids(self, line: int, row: dict[str, Any], prompt: int) -> list[int]:
        ids = row.get("hash_ids")
        if self.has_ids is None:
            self.has_ids = ids is not None
        if not self.has_ids and ids is None:
            return []
        blocks = ceil_div(prompt, self.block_tokens)
        if not isinstance(ids, list) or not self.has_ids:
            raise self._error(line, "hash_ids", ids, "a list of ids on every line, or on none")
        if len(ids) != blocks:
            allowed = f"{blocks}, one for each {self.block_tokens} tokens of the prompt (see block_tokens)"
            raise self._error(line, "hash_ids", f"{len(ids)} ids", allowed)
        if set(map(type, ids)) != {int} or not 0 <= min(ids) <= max(ids) < 2**63:
            wrong = next(value for value in ids if type(value) is not int or not 0 <= value < 2**63)
            raise self._error(line, "hash_ids", wrong, "whole numbers from 0 to 2**63 - 1")
        return ids

    def _get(self, line: int, row: dict[str, Any], key: str) -> Any:
        if key not in row:
            raise complaint(self.path, line, f"key {key} is missing (found: {shown(', '.join(row))})")
        return row[key]

    def _error(self, line: int, key: str, found: object, allowed: str) -> ValueError:
        return complaint(self.path, line, f"found {shown(found)}", key=key, allowed=(allowed,))


def _within(values: IntArray, low: int, high: int) -> bool:
    return low <= int(values.min()) and int(values.max()) <= high


def _column(values: "array[int]") -> IntArray:
    return np.frombuffer(values, np.int64).copy() if values else np.zeros(0, np.int64)
