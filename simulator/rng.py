"""Random streams: one seeded tree, one branch a purpose.

Each purpose draws from its own generator, so one draw more among the arrivals does not move the lengths,
and two allocators compared under the same seed and replication see the same requests.
"""

import numpy as np

STREAMS = (
    "arrivals",
    "prompt_tokens",
    "output_tokens",
    "prefixes",
    "classes",
    "trace",
    "faults",
    "router",
    "think",
    "beams",
    "launches",
)


def stream(seed: int, purpose: str, replication: int = 0, index: int = 0) -> np.random.Generator:
    """The generator of one purpose in one replication; ``index`` tells request classes apart.

    Raises ``ValueError`` when ``purpose`` is not one of ``STREAMS``.
    """
    key = (replication, STREAMS.index(purpose), index)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key)))
