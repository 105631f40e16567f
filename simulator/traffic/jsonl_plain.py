"""Many lines of a JSONL trace at once, where all are written alike: ``{"timestamp": 0, "input_length": 6758, ...}``.

Parsing JSON line by line costs more than anything else that is done with a trace. What is not spelled just so, whole
numbers in this order and nothing else, is left to ``trace_jsonl``, which also says what is wrong with a line.
"""

import re
from dataclasses import dataclass

import numpy as np

from simulator.traffic.requests import BoolArray, IntArray

_NUMBER = r"(0|[1-9]\d{0,14})"
_START = rf'^\{{"timestamp": ?{_NUMBER}, ?"input_length": ?{_NUMBER}, ?"output_length": ?{_NUMBER}'
_WITH_IDS = re.compile(_START + r', ?"hash_ids": ?\[([^\]]*)\]\}$', re.ASCII | re.MULTILINE)
_WITHOUT_IDS = re.compile(_START + r"\}$", re.ASCII | re.MULTILINE)
#: ids from here on, which may not fit into 64 bits, are looked at one by one
_LARGE = 10**18


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlainLines:
    """The numbers of all lines; ``counts`` says how many of ``ids`` are whose."""

    milliseconds: IntArray
    prompts: IntArray
    outputs: IntArray
    counts: IntArray
    ids: IntArray

    def keep(self, mask: BoolArray) -> "PlainLines":
        """The lines where ``mask`` is true."""
        return PlainLines(
            milliseconds=self.milliseconds[mask],
            prompts=self.prompts[mask],
            outputs=self.outputs[mask],
            counts=self.counts[mask],
            ids=self.ids[np.repeat(mask, self.counts)],
        )


def plain_lines(text: str, *, with_ids: bool) -> PlainLines | None:
    """The lines of ``text``, or ``None`` if not every one is plain."""
    found = (_WITH_IDS if with_ids else _WITHOUT_IDS).findall(text)
    if len(found) != text.count("\n") + 1:
        return None
    times, prompts, outputs, *lists = zip(*found, strict=True)
    counts, ids = np.zeros(len(found), np.int64), np.zeros(0, np.int64)
    if with_ids:
        read = _ids(lists[0])
        if read is None:
            return None
        counts, ids = np.array([one.count(",") + 1 for one in lists[0]], np.int64), read
    return PlainLines(
        milliseconds=_numbers(",".join(times)),
        prompts=_numbers(",".join(prompts)),
        outputs=_numbers(",".join(outputs)),
        counts=counts,
        ids=ids,
    )


def _numbers(text: str) -> IntArray:
    return np.fromstring(text, np.int64, sep=",")


def _ids(lists: tuple[str, ...]) -> IntArray | None:
    """The numbers in ``lists``, or ``None`` if they are anything but whole numbers as JSON spells them.

    Between two of them is a comma, followed by one blank everywhere or by none.
    """
    blank = " " if ", " in lists[0] else ""
    text = f",{blank}".join(lists)
    if text.encode().translate(None, b"0123456789, "):
        return None
    gaps = text.count(",")
    alike = text.count(f",{blank}") == gaps and text.count(" ") == gaps * len(blank)
    if not alike or not text[:1].isdigit() or not text[-1].isdigit() or f",{blank}," in text:
        return None
    ids = _numbers(text)
    digits = len(text) - gaps * (1 + len(blank))
    return ids if int(ids.max()) < _LARGE and _digits(ids) == digits else None


def _digits(values: IntArray) -> int:
    """Decimal digits of all ``values`` together, without leading zeros."""
    return len(values) + sum(int(np.count_nonzero(values >= 10**power)) for power in range(1, len(str(values.max()))))
