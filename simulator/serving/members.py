"""From a request to its sequences: one, one a sample, or one leader that will fork the others."""

from simulator.rng import stream
from simulator.serving.sequence import Group, Prefix, Sequence
from simulator.traffic.requests import Prefixes, Requests


class Members:
    """Makes the sequences of ``requests``; outputs are cut at ``max_model_len``.

    Where memory can be shared (``can_fork``), the samples of a request are forked from the first one when the prompt is
    computed.
    """

    def __init__(self, requests: Requests, *, max_model_len: int, can_fork: bool) -> None:
        self._requests = requests
        self._max_model_len = max_model_len
        self._can_fork = can_fork
        # a single element of a memory view is read three times as fast as one of an array
        self._prompts = requests.prompt_tokens.data
        self._outputs = requests.output_tokens.data
        self._samples = requests.samples.data
        self._beams = requests.beam_width.data

    def of(self, request_id: int, arrival_ns: int) -> list[Sequence]:
        """The sequences that enter the queue for ``request_id``."""
        beams = self._beams[request_id]
        samples = max(self._samples[request_id], beams)
        if samples == 1:
            return [self._member(request_id, arrival_ns, 0, None)]
        group = Group(samples)
        members = group.members = [self._member(request_id, arrival_ns, sample, group) for sample in range(samples)]
        if beams > 1:
            seed, replication = self._requests.drawn_by
            group.parents = stream(seed, "beams", replication, request_id)
        if not self._can_fork:
            return members
        members[0].forks = samples - 1
        return members[:1]

    def _member(self, request_id: int, arrival_ns: int, sample: int, group: Group | None) -> Sequence:
        requests, prompt = self._requests, self._prompts[request_id]
        priorities = requests.class_priority
        return Sequence(
            request_id,
            prompt_tokens=prompt,
            output_tokens=max(1, min(self._outputs[request_id], self._max_model_len - prompt)),
            arrival_ns=arrival_ns,
            sample=sample,
            prefix=None if requests.prefix is None else self._prefix(requests.prefix, request_id),
            group=group,
            priority=priorities[int(requests.class_id[request_id])] if priorities else 0,
        )

    @staticmethod
    def _prefix(prefixes: Prefixes, request_id: int) -> Prefix:
        start, end = prefixes.offsets[request_id : request_id + 2]
        return prefixes.ids[start:end].tolist(), prefixes.ends[start:end].tolist()
