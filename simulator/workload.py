"""What comes: arrivals, lengths, shared prefixes, recorded traces -> ``Requests``.

Everything is drawn up front, from one stream a purpose (``rng``): changing the output law moves neither arrivals nor
prompts, and every allocator under comparison meets the same requests.
"""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AliasChoices, Field, model_validator

from simulator.fields import Seconds
from simulator.rng import stream
from simulator.traffic import draws
from simulator.traffic.arrivals import (
    ClosedArrivals,
    DiurnalArrivals,
    FixedArrivals,
    GammaArrivals,
    PoissonArrivals,
    arrival_ns,
)
from simulator.traffic.mmpp import MmppArrivals
from simulator.traffic.request_classes import ClassFields, RequestClass, ResolvedClass, draw_lengths, resolve
from simulator.traffic.requests import (
    MAX_REQUESTS,
    MAX_TIME_S,
    ClosedLoop,
    IntArray,
    Prefixes,
    Requests,
    SmallArray,
    offsets_of,
)
from simulator.traffic.trace_rows import TraceRows
from simulator.traffic.traces import TraceArrivals, load_arrivals, trace_names
from simulator.units import to_ns

__all__ = ["ClosedLoop", "Prefixes", "Requests", "WorkloadConfig", "generate", "trace_names"]

Arrivals = Annotated[
    PoissonArrivals | FixedArrivals | GammaArrivals | MmppArrivals | DiurnalArrivals | ClosedArrivals | TraceArrivals,
    Field(discriminator="process"),
]


class WorkloadConfig(ClassFields):
    """A scenario's ``workload``.

    The run has ``requests`` requests, those that arrive before ``horizon`` seconds, or whichever ends first (a trace
    may end earlier still). Lengths given here serve all ``classes`` that have none of their own; without ``classes``
    all requests are of one class, "default". ``warmup`` is only carried: metrics leave out what happens before it.
    """

    arrivals: Arrivals
    classes: tuple[RequestClass, ...] = Field((), max_length=1000)
    requests: int | None = Field(None, ge=1, le=MAX_REQUESTS, validation_alias=AliasChoices("requests", "num_prompts"))
    horizon: Annotated[Seconds, Field(gt=0, le=MAX_TIME_S)] | None = None
    warmup: Literal["auto"] | Seconds = "auto"

    @property
    def replays_lengths(self) -> bool:
        """Whether prompts and outputs come from a trace together with the arrivals."""
        return isinstance(self.arrivals, TraceArrivals) and not self.arrivals.times_only

    @model_validator(mode="after")
    def _complete(self) -> "WorkloadConfig":
        if self.replays_lengths:
            self._check_nothing_drawn()
        else:
            self.resolved_classes()
        return self

    @model_validator(mode="after")
    def _ends(self) -> "WorkloadConfig":
        if isinstance(self.arrivals, TraceArrivals) or self.requests is not None:
            return self
        if isinstance(self.arrivals, ClosedArrivals):
            raise ValueError("closed arrivals need requests: a number to stop at (horizon may end the run earlier)")
        if self.horizon is None:
            raise ValueError("requests or horizon is missing: say when arrivals end")
        expected = self.arrivals.mean_rate * self.horizon
        if expected > MAX_REQUESTS:
            raise ValueError(
                f"about {expected:.3g} arrivals before the horizon; allowed: {MAX_REQUESTS} (or give requests)"
            )
        return self

    def _check_nothing_drawn(self) -> None:
        given = [key for key in ("prompt_tokens", "output_tokens", "token_pairs") if getattr(self, key)]
        given += ["classes"] if self.classes else []
        if given:
            raise ValueError(
                f"a trace brings its own lengths: remove {', '.join(given)}, or set arrivals.times_only: true"
            )

    def resolved_classes(self) -> tuple[ResolvedClass, ...]:
        """The classes with nothing left open. Raises ``ValueError`` for a missing length or a name used twice."""
        names = [own.name for own in self.classes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ValueError(f"two classes are called {twice!r}")
        classes = self.classes or (RequestClass(name="default"),)
        return tuple(resolve(own, self) for own in classes)


def generate(config: WorkloadConfig, *, seed: int, replication: int = 0, base_dir: Path | None = None) -> Requests:
    """All requests of one replication, the same for the same arguments, byte for byte.

    ``base_dir`` is the folder that relative paths start from. Under a drawn process with only a ``horizon`` there may
    be no request at all. Raises ``ValueError`` naming file and line when a trace or length file cannot be used.
    """
    if isinstance(config.arrivals, TraceArrivals):
        rows = load_arrivals(config.arrivals, seed=seed, replication=replication, base_dir=base_dir)
        rows = _cut(rows, config)
        if config.replays_lengths:
            return _replayed(config, rows, seed=seed, replication=replication)
        assert rows.time_ns is not None
        return _drawn(config, rows.time_ns, seed=seed, replication=replication, base_dir=base_dir)
    if isinstance(config.arrivals, ClosedArrivals):
        times = np.zeros(config.requests or 0, np.int64)
    else:
        times = arrival_ns(
            config.arrivals, requests=config.requests, horizon=config.horizon, seed=seed, replication=replication
        )
    return _drawn(config, times, seed=seed, replication=replication, base_dir=base_dir)


def _cut(rows: TraceRows, config: WorkloadConfig) -> TraceRows:
    assert rows.time_ns is not None
    inside = np.arange(len(rows)) < (config.requests or len(rows))
    if config.horizon is not None:
        inside &= rows.time_ns < to_ns(config.horizon)
    if not inside.any():
        raise ValueError(f"no request of the trace arrives before the horizon of {config.horizon:g} s")
    return rows.keep(inside)


def _replayed(config: WorkloadConfig, rows: TraceRows, *, seed: int, replication: int) -> Requests:
    assert rows.time_ns is not None
    prefix = rows.prefix
    if config.shared_prefix:
        if prefix is not None:
            raise ValueError("shared_prefix cannot be added to a trace that has its own prefix ids")
        group = config.shared_prefix.draw(stream(seed, "prefixes", replication).random(len(rows)))
        prefix = _one_segment(group, np.minimum(config.shared_prefix.tokens, rows.prompt_tokens))
    return Requests(
        arrival_ns=rows.time_ns,
        prompt_tokens=rows.prompt_tokens,
        output_tokens=rows.output_tokens,
        class_id=np.zeros(len(rows), np.int16),
        class_names=("default",),
        class_priority=(config.priority or 0,),
        drawn_by=(seed, replication),
        samples=np.full(len(rows), config.samples or 1, np.int16),
        beam_width=np.full(len(rows), config.beam_width or 0, np.int16),
        prefix=prefix,
        notes=(f"{rows.skipped} trace rows without output tokens skipped",) if rows.skipped else (),
    )


def _drawn(config: WorkloadConfig, times: IntArray, *, seed: int, replication: int, base_dir: Path | None) -> Requests:
    classes, count = config.resolved_classes(), len(times)
    chooser = stream(seed, "classes", replication)
    class_id = draws.weighted(chooser.random(count), [each.weight for each in classes]).astype(np.int16)
    prompts, outputs = np.empty(count, np.int64), np.empty(count, np.int64)
    for index, each in enumerate(classes):
        mine = class_id == index
        prompts[mine], outputs[mine] = draw_lengths(
            each.lengths,
            int(np.count_nonzero(mine)),
            seed=seed,
            replication=replication,
            index=index,
            base_dir=base_dir,
        )
    return Requests(
        arrival_ns=times,
        prompt_tokens=prompts,
        output_tokens=outputs,
        class_id=class_id,
        class_names=tuple(each.name for each in classes),
        class_priority=tuple(each.priority for each in classes),
        drawn_by=(seed, replication),
        samples=np.asarray([each.samples for each in classes], np.int16)[class_id],
        beam_width=np.asarray([each.beam_width for each in classes], np.int16)[class_id],
        prefix=_drawn_prefixes(classes, class_id, prompts, seed=seed, replication=replication),
        closed=_closed_loop(config.arrivals, count, seed=seed, replication=replication),
    )


def _closed_loop(arrivals: Arrivals, count: int, *, seed: int, replication: int) -> ClosedLoop | None:
    if not isinstance(arrivals, ClosedArrivals):
        return None
    think_ns = arrivals.think_ns(count, seed=seed, replication=replication)
    return ClosedLoop(users=arrivals.users, think_ns=think_ns)


def _drawn_prefixes(
    classes: tuple[ResolvedClass, ...], class_id: SmallArray, prompts: IntArray, *, seed: int, replication: int
) -> Prefixes | None:
    """Group ids run on from class to class; classes that use the workload's prefix share its groups."""
    if not any(each.shared_prefix for each in classes):
        return None
    group, end = np.full(len(class_id), -1, np.int64), np.zeros(len(class_id), np.int64)
    next_id = max(
        (each.shared_prefix.groups for each in classes if each.shared_prefix and not each.owns_prefix), default=0
    )
    for index, each in enumerate(classes):
        if each.shared_prefix is None:
            continue
        mine = class_id == index
        rng = stream(seed, "prefixes", replication, index)
        own = each.shared_prefix.draw(rng.random(int(np.count_nonzero(mine))))
        group[mine] = np.where(own >= 0, own + (next_id if each.owns_prefix else 0), -1)
        end[mine] = np.minimum(each.shared_prefix.tokens, prompts[mine])
        next_id += each.shared_prefix.groups if each.owns_prefix else 0
    return _one_segment(group, end)


def _one_segment(group: IntArray, end: IntArray) -> Prefixes:
    shared = group >= 0
    return Prefixes(offsets=offsets_of(shared), ids=group[shared], ends=end[shared])
