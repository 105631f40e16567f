"""Every loader of outside data returns or refuses, whatever bytes it gets: inputs that a fuzzer has found, and damage.

``fuzz/fuzz_loaders.py`` looks for more; what it finds is kept in ``fuzz/inputs`` and tried here again.
"""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
sys.path.insert(0, str(FUZZ))

import loaders  # noqa: E402

FOUND = sorted(path for path in (FUZZ / "inputs").glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name[-8:]}")
def test_what_the_fuzzer_found_is_read_or_refused(path: Path) -> None:
    loaders.read(path.parent.name, path.read_bytes())


def damaged(good: bytes, rng: random.Random) -> Iterator[bytes]:
    """Cut, doubled, with other bytes, with numbers and words that do not belong there."""
    for _ in range(6):
        start = rng.randrange(len(good) + 1)
        end = min(len(good), start + rng.randrange(1, 40))
        put = rng.choice(
            [b"", b"\0", b"\xff\xfe", b"-1", b"NaN", b"1e400", b"9" * 40, b"\r", b'"', b"{", b"[[", b"&a ", b"!!x ",
             b"\xef\xbb\xbf", b"\x1b[2J", b",,,", b"null", b"true", "\u2028".encode(), good[start:end] * 2]
        )  # fmt: skip
        yield good[:start] + put + good[end:]
    yield good[: rng.randrange(len(good) + 1)]


@pytest.mark.parametrize("target", sorted(loaders.TARGETS))
def test_damaged_inputs_are_read_or_refused(target: str) -> None:
    rng = random.Random(f"{target} 1")
    refused = 0
    for good in loaders.seeds(target)[:8]:
        for data in damaged(good, rng):
            started = time.perf_counter()
            refused += loaders.read(target, data) is not None
            assert time.perf_counter() - started < 5
    assert refused


def test_texts_of_a_file_cannot_steer_the_terminal() -> None:
    refusal = loaders.read("measured", b"transfer\x1b[2J\x00bytes,gb_per_s\n1,10\n")
    assert "transfer\\x1b[2J\\x00bytes" in str(refusal)
    refusal = loaders.read("measured", b"x" * 100_000 + b",gb_per_s\n1,10\n")
    assert len(str(refusal)) <= 3000
