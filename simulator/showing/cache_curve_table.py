"""What people see of cache curves, and how they spell the question."""

from collections.abc import Sequence

from simulator.errors import InputError, Problem, nearest_name
from simulator.planning.cache_curve import POLICIES, CacheCurve, CurvePoint, PolicyName
from simulator.showing.terminal import print_rows
from simulator.units import format_percent as percent


def parse_policies(names: Sequence[str]) -> tuple[PolicyName, ...]:
    """The policies of ``--policy`` options, each a name or several with commas; LRU for none. Raises ``InputError``."""
    chosen: list[PolicyName] = []
    for name in ",".join(names or ("lru",)).split(","):
        found = next((policy for policy in POLICIES if policy == name.strip().lower()), None)
        if found is None:
            nearest = nearest_name(name, POLICIES)
            message = f"{name!r} is no replacement policy"
            raise InputError([Problem(option="--policy", message=message, nearest=nearest, allowed=POLICIES)])
        chosen.append(found)
    return tuple(dict.fromkeys(chosen))


def parse_capacities(text: str | None) -> list[int] | None:
    """``"1000,10000"`` as numbers of blocks, in that order; ``None`` for none given. Raises ``InputError``."""
    if text is None:
        return None
    sizes: list[int] = []
    for piece in text.split(","):
        plain = piece.strip().replace("_", "")
        if plain.lower() in ("inf", "infinite", "null"):
            continue  # a pool without limit is always the last point
        if not plain.isascii() or not plain.isdigit() or len(plain) > 12 or not int(plain):
            message = f"{piece!r} is no pool size: give numbers of blocks such as 1000,10000"
            raise InputError([Problem(option="--capacity", message=message)])
        sizes.append(int(plain))
    return list(dict.fromkeys(sizes))


def print_curves(curves: Sequence[CacheCurve], *, block_tokens: int) -> None:
    """One sentence and one table a policy."""
    for curve in curves:
        rows = [_row(point, block_tokens) for point in curve.curve]
        print_rows(_answer(curve), rows)


def _answer(curve: CacheCurve) -> str:
    best = curve.curve[-1].hit_ratio
    text = (
        f"{curve.policy}: {curve.requests:,} requests, {curve.full_blocks:,} full blocks, "
        f"{curve.unique_blocks:,} different ones; at most {percent(best)} can be found in a cache"
    )
    enough = next((point for point in curve.curve[:-1] if point.hit_ratio >= 0.9 * best), None)
    if enough is None or not best:
        return text + "."
    return text + f", nine tenths of that with {enough.capacity_blocks:,} blocks."


def _row(point: CurvePoint, block_tokens: int) -> dict[str, str]:
    size = point.capacity_blocks
    return {
        "blocks": "no limit" if size is None else f"{size:,}",
        "tokens": "no limit" if size is None else f"{size * block_tokens:,}",
        "hits": f"{point.hits:,}",
        "evictions": f"{point.evictions:,}",
        "hit ratio": percent(point.hit_ratio),
    }
