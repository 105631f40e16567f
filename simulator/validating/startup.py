"""What an engine says at start-up about a pool of blocks: tokens, concurrency, refusal, by the rules of its version.

Read from vLLM: v0 ``executor/gpu_executor.py``, 0.11 and 0.33 ``v1/core/kv_cache_utils.py``.

v0      tokens N * B, concurrency N * B / T; refused when T > N * B
0.11    tokens N // groups * B, concurrency N / (blocks of one request of T tokens)
0.33    the same concurrency, tokens int(concurrency * T); block 0 is set aside before the check that one request fits
"""

from dataclasses import dataclass
from typing import Literal

from simulator.memory import request_pages
from simulator.units import ceil_div

Version = Literal["0.6", "0.11", "0.33"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPool:
    """``blocks`` of ``block_tokens`` tokens, shared by groups of layers.

    A group's window is ``None`` for full attention, 0 for a state that takes one block. ``in_flight_tokens`` is the
    token budget of a step, which windowed layers hold beyond their window.
    """

    version: Version
    blocks: int
    block_tokens: int
    windows: tuple[int | None, ...] = (None,)
    in_flight_tokens: int = 1

    def request_blocks(self, tokens: int) -> int:
        """Blocks that one request of ``tokens`` can need, over all groups."""
        return sum(
            request_pages(tokens, page_size=self.block_tokens, window=window, in_flight_tokens=self.in_flight_tokens)
            for window in self.windows
        )

    def concurrency(self, max_model_len: int) -> float:
        """The ``Maximum concurrency`` of requests of ``max_model_len`` tokens."""
        if self.version == "0.6":
            return self.blocks * self.block_tokens / max_model_len
        return self.blocks / self.request_blocks(max_model_len)

    def tokens(self, max_model_len: int) -> int:
        """The ``KV cache size`` in tokens."""
        if self.version == "0.33":
            return self.blocks * max_model_len // self.request_blocks(max_model_len)
        return self.blocks // len(self.windows) * self.block_tokens

    def accepts(self, max_model_len: int) -> bool:
        """Whether the engine starts with this ``max_model_len``."""
        if self.version == "0.6":
            return max_model_len <= self.blocks * self.block_tokens
        return self.request_blocks(max_model_len) <= self.blocks - (self.version == "0.33")

    def largest_model_len(self, max_model_len: int) -> int:
        """The estimate that a refusal carries: the largest length up to ``max_model_len`` that is accepted, or 0."""
        low, high = 0, max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.accepts(middle) else (low, middle - 1)
        return low


def aligned_block_tokens(state_bytes: int, *, token_bytes: int, step: int = 128) -> int:
    """Tokens of an attention block whose bytes hold one page of a state: whole steps of tokens (vllm-ascend)."""
    return step * ceil_div(state_bytes, step * token_bytes)


def state_waste_bytes(state_bytes: int, *, token_bytes: int, page_bytes_per_token: int) -> int:
    """Bytes of a padded state page that the state does not use; the page is as large as the block's K and V."""
    return aligned_block_tokens(state_bytes, token_bytes=token_bytes) * page_bytes_per_token - state_bytes
