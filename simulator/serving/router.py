"""Which instance of a fleet serves an arrival: turns, the shortest queue, or where its prefix is likely cached.

A router decides at the instant of the arrival and sees each instance as it is then. The rule for prefixes is that of
SGLang's ``cache_aware`` policy (``sglang_router``; NVIDIA Dynamo ports the same): affinity while loads are balanced,
the least loaded instance otherwise. Like SGLang's, it goes by what it has sent where, not by what caches still hold.
"""

from collections.abc import Sequence
from typing import Protocol

from simulator.config import LeastLoadedConfig, PrefixAffinityConfig, RouterConfig
from simulator.traffic.requests import Requests


class Instance(Protocol):
    """One serving instance, as a router sees it."""

    @property
    def is_open(self) -> bool:
        """Whether it still serves: it has not stopped at a horizon, a standstill or an interrupt."""

    @property
    def live_requests(self) -> int:
        """Requests that have come and not ended: queued, running, swapped out."""

    @property
    def held_bytes(self) -> int:
        """KV bytes that its sequences hold on one device."""


class Router(Protocol):
    """Chooses among instances; ``looks_at_kv`` says whether it reads ``held_bytes``."""

    looks_at_kv: bool

    def choose(self, request_id: int, instances: Sequence[Instance]) -> int | None:
        """The place of the instance that gets the request; ``None`` when nobody serves any more."""


class RoundRobin:
    """The ``k``-th arrival goes to instance ``k mod N``, whatever its state."""

    looks_at_kv = False

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, request_id: int, instances: Sequence[Instance]) -> int | None:
        self._turn += 1
        return self._turn % len(instances)


class LeastLoaded:
    """The open instance with the least load; among equals the one that was sent the fewest requests, then the first."""

    def __init__(self, config: "LeastLoadedConfig | PrefixAffinityConfig", instances: int) -> None:
        self.looks_at_kv = config.load == "kv"
        self._sent = [0] * instances

    def choose(self, request_id: int, instances: Sequence[Instance]) -> int | None:
        open_ones = [place for place, one in enumerate(instances) if one.is_open]
        return self.send(self.least(open_ones, instances)) if open_ones else None

    def load(self, instance: Instance) -> int:
        """What is compared: live requests, or bytes held."""
        return instance.held_bytes if self.looks_at_kv else instance.live_requests

    def least(self, places: Sequence[int], instances: Sequence[Instance]) -> int:
        """The least loaded of ``places``."""
        return min(places, key=lambda place: (self.load(instances[place]), self._sent[place], place))

    def send(self, place: int) -> int:
        """Remember that ``place`` gets one more."""
        self._sent[place] += 1
        return place


class PrefixAffinity(LeastLoaded):
    """The instance that was sent the longest part of the prompt, while the fleet is balanced.

    It is out of balance when the live requests of the fullest and the emptiest instance differ by more than
    ``balance_abs_threshold`` and by more than the factor ``balance_rel_threshold``. Then, and where no more than
    ``cache_threshold`` of the prompt is known anywhere, the least loaded instance gets the request.
    """

    def __init__(self, config: PrefixAffinityConfig, requests: Requests, instances: int) -> None:
        super().__init__(config, instances)
        self._config = config
        self._requests = requests
        #: for each prefix id the instances it was sent to, one bit each
        self._known: dict[int, int] = {}

    def choose(self, request_id: int, instances: Sequence[Instance]) -> int | None:
        open_ones = [place for place, one in enumerate(instances) if one.is_open]
        if not open_ones:
            return None
        ids, ends = self._prefix(request_id)
        holders, matched = self._longest(ids, ends, sum(1 << place for place in open_ones))
        enough = matched > self._config.cache_threshold * int(self._requests.prompt_tokens[request_id])
        if enough and self._balanced(open_ones, instances):
            open_ones = [place for place in open_ones if holders >> place & 1]
        chosen = self.send(self.least(open_ones, instances))
        for prefix_id in ids:
            self._known[prefix_id] = self._known.get(prefix_id, 0) | 1 << chosen
        return chosen

    def _prefix(self, request_id: int) -> tuple[list[int], list[int]]:
        prefix = self._requests.prefix
        if prefix is None:
            return [], []
        start, end = prefix.offsets[request_id : request_id + 2]
        return prefix.ids[start:end].tolist(), prefix.ends[start:end].tolist()

    def _longest(self, ids: list[int], ends: list[int], among: int) -> tuple[int, int]:
        """Instances (as bits) that were sent the longest leading part, and its tokens."""
        matched = 0
        for prefix_id, end in zip(ids, ends, strict=True):
            holders = among & self._known.get(prefix_id, 0)
            if not holders:
                break
            among, matched = holders, end
        return among, matched

    def _balanced(self, places: Sequence[int], instances: Sequence[Instance]) -> bool:
        live = [instances[place].live_requests for place in places]
        most, fewest, config = max(live), min(live), self._config
        return not (most - fewest > config.balance_abs_threshold and most > config.balance_rel_threshold * fewest)


def router_of(config: RouterConfig, requests: Requests, instances: int) -> Router:
    """The router that ``config`` describes, with nothing sent yet."""
    if isinstance(config, PrefixAffinityConfig):
        return PrefixAffinity(config, requests, instances)
    if isinstance(config, LeastLoadedConfig):
        return LeastLoaded(config, instances)
    return RoundRobin()
