"""A small valid scenario as text, one key a line, for tests that change single lines of it."""

VALID = """\
name: small
device:
  preset: 910B3
  count: 4
model:
  preset: llama-3.1-8b
workload:
  arrivals:
    process: poisson
    rate: 2/s
  prompt_tokens:
    dist: uniform
    min: 10
    max: 200
  output_tokens:
    dist: fixed
    value: 20
  requests: 30
engine:
  tensor_parallel_size: 2
  max_num_seqs: 16
  max_model_len: 4096
  on_oom: fail
allocators:
  - kind: contiguous
    fit: first
  - kind: paged
    page_size: 128
seed: 7
"""


def changed(old: str, new: str) -> str:
    """``VALID`` with one piece replaced; the piece must be there once."""
    assert VALID.count(old) == 1, f"{old!r} must be in VALID exactly once"
    return VALID.replace(old, new)


def line_of(piece: str, text: str = VALID) -> int:
    """1-based line of the first line that holds ``piece``."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if piece in line)
