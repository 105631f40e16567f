"""Decode attention of a whole model on one device: one launch a layer, grouped by kind of layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simulator.device import Device
from simulator.kernel import PagedKernel
from simulator.kernels.roofline import Work
from simulator.kernels.tiles import AttentionShape, KernelOptions
from simulator.models.model_shape import AttentionGroup, Model

Seconds = Callable[[int, int, int, int, int], float]


def attention_shape(model: Model, group: AttentionGroup, *, tp: int, kv_bytes: float) -> AttentionShape:
    """What one layer of ``group`` reads on one of ``tp`` devices. MLA reads its latent for K and V both."""
    heads = -(-model.num_attention_heads // tp)
    if group.kind == "mla":
        values = group.latent_dims - model.rotary_dims
        return AttentionShape(
            kv_heads=1,
            query_heads=heads,
            head_dim=group.latent_dims,
            v_head_dim=values,
            dtype_bytes=kv_bytes,
            latent=True,
        )
    return AttentionShape(
        kv_heads=max(1, -(-group.kv_heads // tp)),
        query_heads=heads,
        head_dim=group.head_dim,
        v_head_dim=group.v_head_dim,
        dtype_bytes=kv_bytes,
    )


class GroupAttention:
    """The launches of all layers of one group."""

    __slots__ = ("_answer", "_asked", "kernel", "layers", "page_tokens", "window", "windowed")

    def __init__(
        self, device: Device, shape: AttentionShape, *, group: AttentionGroup, page_tokens: int, options: KernelOptions
    ) -> None:
        self.layers = group.layers
        self.windowed = group.window is not None
        self.window = group.window or 0
        self.page_tokens = page_tokens
        self.kernel = PagedKernel(device, shape, page_tokens=page_tokens, options=options)
        self._asked, self._answer = (0, 0, 0.0, 0), 0.0

    def seconds(self, sequences: int, tokens: int, pages: int, windowed_tokens: int, longest_tokens: int) -> float:
        """Seconds of all layers of the group; sums over the batch and its longest context as in ``StepLoad``."""
        if sequences == 0:
            return 0.0
        if not self.windowed:
            return self.layers * self.kernel.launch_seconds(sequences, tokens, pages, longest_tokens)
        # Once every window is full its sums stand still for many steps.
        read = min(float(pages), (windowed_tokens - sequences) / self.page_tokens + sequences)
        asked = sequences, windowed_tokens, read, min(longest_tokens, self.window)
        if asked != self._asked:
            self._asked, self._answer = asked, self.layers * self.kernel.launch_seconds(*asked)
        return self._answer

    def work(self, sequences: int, tokens: int, pages: int, windowed_tokens: int, longest_tokens: int = 0) -> Work:
        """``seconds`` with bytes, operations and bound."""
        if sequences == 0:
            return Work(seconds=0.0)
        if self.windowed:
            tokens, longest_tokens = windowed_tokens, min(longest_tokens, self.window)
        read = min(float(pages), self.window_pages(sequences, tokens)) if self.windowed else pages
        stages = self.kernel.stages(sequences, tokens, read, longest_tokens)
        shape = self.kernel.shape
        flops = 2 * tokens * shape.query_heads * (shape.head_dim + shape.v_head_dim) * self.layers
        moved = self.kernel.traffic(sequences, tokens, read).kv_bytes * self.layers
        return Work(seconds=self.layers * stages.total_s, moved_bytes=moved, flops=flops, bound=stages.bound)

    def seconds_array(self, sequences: int, tokens: Any, pages: Any, windowed_tokens: Any, longest_tokens: Any) -> Any:
        """``seconds`` for arrays, bit for bit the same."""
        import numpy as np

        if self.windowed:
            tokens, longest_tokens = windowed_tokens, np.minimum(longest_tokens, self.window)
            pages = np.minimum(pages, self.window_pages(sequences, windowed_tokens))
        return self.layers * self.kernel.seconds_array(sequences, tokens, pages, longest_tokens)

    def window_pages(self, sequences: int, windowed_tokens: Any) -> Any:
        """Pages that windows cover: one of w tokens at any place touches (w - 1) / page + 1 on average."""
        return (windowed_tokens - sequences) / self.page_tokens + sequences


def attention_seconds(groups: Sequence[GroupAttention]) -> Seconds:
    """``(sequences, tokens, pages, windowed_tokens, longest_tokens) -> seconds`` of all groups, with few calls."""
    if len(groups) == 1 and not groups[0].windowed:
        layers, launch = groups[0].layers, groups[0].kernel.launch_seconds

        def one(sequences: int, tokens: int, pages: int, windowed_tokens: int, longest_tokens: int) -> float:
            return layers * launch(sequences, tokens, pages, longest_tokens) if sequences else 0.0

        return one

    def every(sequences: int, tokens: int, pages: int, windowed_tokens: int, longest_tokens: int) -> float:
        total = 0.0
        if sequences:
            for group in groups:
                total += group.seconds(sequences, tokens, pages, windowed_tokens, longest_tokens)
        return total

    return every


def group_attention(
    device: Device, model: Model, *, tp: int, kv_bytes: float, page_tokens: int, options: KernelOptions | None = None
) -> tuple[GroupAttention, ...]:
    """One ``GroupAttention`` for each kind of layer in the model."""
    chosen = options or KernelOptions()
    return tuple(
        GroupAttention(
            device,
            attention_shape(model, group, tp=tp, kv_bytes=kv_bytes),
            group=group,
            page_tokens=page_tokens,
            options=replace(chosen),
        )
        for group in model.groups
    )
