"""From a request to its sequences: one, one a sample, or one leader that will fork the others."""

from simulator.rng import stream
from simulator.serving.sequence import Group, Sequence
from simulator.traffic.requests import Requests


def members_of(
    requests: Requests, request_id: int, *, arrival_ns: int, max_model_len: int, can_fork: bool
) -> list[Sequence]:
    """The sequences that enter the queue for ``request_id``; outputs are cut at ``max_model_len``.

    Where memory can be shared, the samples of a request are forked from the first one when the prompt is computed.
    """
    prompt = int(requests.prompt_tokens[request_id])
    output = max(1, min(int(requests.output_tokens[request_id]), max_model_len - prompt))
    beams = int(requests.beam_width[request_id])
    samples = max(int(requests.samples[request_id]), beams)
    prefix = None
    if requests.prefix is not None:
        start, end = requests.prefix.offsets[request_id : request_id + 2]
        prefix = requests.prefix.ids[start:end].tolist(), requests.prefix.ends[start:end].tolist()
    priorities = requests.class_priority
    priority = priorities[int(requests.class_id[request_id])] if priorities else 0
    group = Group(samples) if samples > 1 else None
    members = [
        Sequence(
            request_id,
            prompt_tokens=prompt,
            output_tokens=output,
            arrival_ns=arrival_ns,
            sample=sample,
            prefix=prefix,
            group=group,
            priority=priority,
        )
        for sample in range(samples)
    ]
    if group is None:
        return members
    group.members = members
    if beams > 1:
        seed, replication = requests.drawn_by
        group.parents = stream(seed, "beams", replication, request_id)
    if not can_fork:
        return members
    members[0].forks = samples - 1
    return members[:1]
