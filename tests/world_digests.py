"""What random worlds leave behind, a line each: run in one process a core, to be compared.

python tests/world_digests.py draw 200 worlds.pickle
python tests/world_digests.py run worlds.pickle
"""

import hashlib
import pickle
import sys
from pathlib import Path

from engine_worlds import World, worlds
from hypothesis import HealthCheck, given, settings
from test_leaps import digest


def draw(count: int) -> list[World]:
    """Drawn once for both cores: what hypothesis draws depends on the sources that it finds loaded."""
    drawn: list[World] = []

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(world=worlds())
    def keep(world: World) -> None:
        drawn.append(world)

    keep()
    return drawn


def main(task: str, *words: str) -> None:
    """One of the two commands above."""
    if task == "draw":
        Path(words[1]).write_bytes(pickle.dumps(draw(int(words[0]))))
        return
    for world in pickle.loads(Path(words[0]).read_bytes()):
        facts = repr(sorted(digest(world, leap=True).items()))
        print(world.kind, hashlib.sha256(facts.encode()).hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
