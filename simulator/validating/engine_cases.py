"""Single public reports about engines: state pages, out-of-memory messages, draft models, pools that hold three."""

from collections.abc import Iterator

import numpy as np

from simulator.traffic.requests import Prefixes, offsets_of
from simulator.units import ceil_div
from simulator.validating.bench import at_once, paged, requests_of, serve, shared_pages
from simulator.validating.check import Check, Source
from simulator.validating.oom_text import cause, foreign_bytes
from simulator.validating.parts import GIB, settings
from simulator.validating.startup import aligned_block_tokens, state_waste_bytes

FAMILY = "engines"


def checks() -> Iterator[Check]:
    """One report after the other."""
    yield from _state_pages()
    yield from _messages()
    yield from _draft_model()
    yield from _three_of_four()
    yield from _rounding_up()


def _state_pages() -> Iterator[Check]:
    source = Source(FAMILY, "state", "vllm-ascend issue 7393 (Qwen3.5-35B, TP8) and pull request 14543")
    state, convolution, key = 262_144, 12_288, 512
    tokens = aligned_block_tokens(state, token_bytes=key)
    yield source.exact("block", "tokens of an attention block that holds a state page", expected=512, got=tokens)
    yield source.exact("page", "bytes of K and V in it", expected=524_288, got=tokens * 2 * key)
    got = tokens * 2 * key + convolution
    yield source.exact("padded", "bytes of a padded state page", expected=536_576, got=got)
    got = state_waste_bytes(state, token_bytes=key, page_bytes_per_token=2 * key)
    yield source.exact("waste", "bytes of it that are not used", expected=262_144, got=got)
    joined = aligned_block_tokens(state + convolution, token_bytes=2 * key)
    yield source.exact("fixed", "tokens of a block when K and V count", expected=384, got=joined)


_MESSAGES = (
    ("vllm-ascend issue 6611", "exhaustion", "Tried to allocate 2.57 GiB (NPU 0; 60.96 GiB total capacity; 57.49 GiB "
     "already allocated; 1.96 GiB free; 57.62 GiB reserved in total by PyTorch)"),
    ("vllm-ascend issue 19", "foreign", "Tried to allocate 22.00 MiB (NPU 6; 60.97 GiB total capacity; 10.24 GiB "
     "already allocated; 19.79 MiB free; 10.65 GiB reserved in total by PyTorch)"),
    ("vllm-omni issue 1199", "exhaustion", "Tried to allocate 52.00 MiB (NPU 0; 60.96 GiB total capacity; 59.36 GiB "
     "already allocated)"),
)  # fmt: skip


def _messages() -> Iterator[Check]:
    for place, (text, expected, message) in enumerate(_MESSAGES):
        source = Source(FAMILY, "oom-text", text)
        yield source.exact(f"{place}", "cause of the out-of-memory error", expected=expected, got=cause(message))
    source = Source(FAMILY, "oom-text", _MESSAGES[1][0])
    got = foreign_bytes(_MESSAGES[1][2]) / GIB
    yield source.near("foreign", "GiB that other processes hold", expected=50.3, got=got, within=0.05, grade="rounding")


def _draft_model() -> Iterator[Check]:
    """Two requests share a prefix; the draft model gives the last matched block of 1,536 tokens away again."""
    source = Source(FAMILY, "draft", "vllm-ascend issue 16639: hashes of 1,536 tokens, the last matched block dropped")
    for shared, expected in ((1535, 0), (1536, 0), (3071, 0), (3072, 1536), (4608, 3072)):
        engine = settings(profile="vllm-0.33", max_num_batched_tokens=16_384)
        prefix = Prefixes(
            offsets=offsets_of(np.ones(2, np.int64)), ids=np.zeros(2, np.int64), ends=np.full(2, shared, np.int64)
        )
        arrivals, prompts = np.array([0, 10**7]), np.full(2, 6000)
        pool = shared_pages(40, 1536, engine)
        run = serve(requests_of(arrivals, prompts, np.full(2, 4), prefix=prefix), pool, engine)
        kept = max(0, int(run.ledger.hit_tokens[1]) - 1536)
        yield source.exact(f"{shared}", f"tokens hit of {shared:,} in common", expected=expected, got=kept)


def _three_of_four() -> Iterator[Check]:
    source = Source(FAMILY, "three", "GLM-5.3-Flash-EXL3 thread 122: about 90,000 tokens a request, a pool of 356,667")
    for at_once_, expected in ((3, 3), (4, 3)):
        engine = settings(max_num_seqs=8, max_num_batched_tokens=400_000, on_oom="wait")
        prompts = np.full(at_once_, 91_000)
        run = serve(at_once(prompts, np.full(at_once_, 50)), paged(356_667 // 16, 16, engine), engine)
        started, first_end = np.array(run.ledger.started_ns), min(run.ledger.finished_ns)
        got = int((started < first_end).sum())
        yield source.exact(f"{at_once_}", f"of {at_once_} requests run at once", expected=expected, got=got)


def _rounding_up() -> Iterator[Check]:
    source = Source(FAMILY, "trtllm", "NVIDIA/TensorRT-LLM issue 2268 (Qwen1.5-7B, 21.89 GiB free, share 0.9)")
    token_bytes, block_tokens = 2 * 32 * 32 * 128 * 2, 64
    tokens = int(21.89 * 0.9 * GIB // token_bytes)
    got = ceil_div(tokens, block_tokens)
    yield source.exact(
        "blocks", "blocks of 64, tokens rounded up to whole ones", expected=631, got=got, grade="decoded"
    )
