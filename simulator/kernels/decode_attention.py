"""Decode attention of a whole model on one device: one launch a layer, grouped by kind of layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simulator.device import Device
from simulator.kernel import PagedKernel
from simulator.kernels.roofline import ContextShares, Work, context_shares
from simulator.kernels.step_load import Lengths
from simulator.kernels.tiles import AttentionShape, KernelOptions
from simulator.models.model_shape import AttentionGroup, Model

Seconds = Callable[[int, int, int, int, Lengths | None], float]


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

    __slots__ = ("_answer", "_asked", "kernel", "layers", "page_tokens", "shares", "window", "windowed")

    def __init__(
        self,
        device: Device,
        shape: AttentionShape,
        *,
        group: AttentionGroup,
        page_tokens: int,
        options: KernelOptions,
        shares: ContextShares | None = None,
    ) -> None:
        self.shares = shares
        self.layers = group.layers
        self.windowed = group.window is not None
        self.window = group.window or 0
        self.page_tokens = page_tokens
        self.kernel = PagedKernel(device, shape, page_tokens=page_tokens, options=options, window=self.window)
        self._asked, self._answer = (0, 0, 0.0), 0.0

    def seconds(self, sequences: int, tokens: int, pages: int, windowed_tokens: int, lengths: Lengths | None) -> float:
        """Seconds of all layers of the group; sums over the batch and its lengths as in ``StepLoad``."""
        if sequences == 0:
            return 0.0
        lengths = lengths if self.kernel.needs_lengths else None
        if self.shares is not None:
            return self.layers * self._shared_seconds(self.shares, sequences, tokens, pages, lengths)
        if not self.windowed:
            return self.layers * self.kernel.seconds(sequences, tokens, pages, lengths)
        read = min(float(pages), self.window_pages(sequences, windowed_tokens))
        if lengths is not None:
            return self.layers * self.kernel.seconds(sequences, windowed_tokens, read, lengths)
        # Once every window is full its sums stand still for many steps.
        asked = sequences, windowed_tokens, read
        if asked != self._asked:
            self._asked, self._answer = asked, self.layers * self.kernel.seconds(*asked)
        return self._answer

    def known(self, sequences: int, row: list[int], slack_s: float, most_steps: int) -> tuple[float, int]:
        """``seconds`` with every length known, and for how many steps the same core is last (``PagedKernel.known``).

        ``row`` are the lengths of one step.
        """
        if self.shares is not None:
            local_s, steps = self.kernel.known(self.shares.longest_row(row), slack_s, most_steps)
            return self.layers * (local_s + self.shares.exchange.seconds(sequences)), steps
        launch_s, steps = self.kernel.known(row, slack_s, most_steps)
        return self.layers * launch_s, steps

    def _shared_seconds(
        self, shares: ContextShares, sequences: int, tokens: int, pages: int, lengths: Lengths | None
    ) -> float:
        """A layer whose contexts several devices share: a page id stands for one page on each.

        Tiles of contiguous memory are counted in tokens of all devices, so there are fewer on each.
        """
        local_tokens = shares.longest_share(sequences, float(tokens))
        read = min(float(pages), local_tokens / self.page_tokens + sequences)
        local_s = self.kernel.seconds(sequences, local_tokens, read, shares.longest_of(lengths))
        return local_s + shares.exchange.seconds(sequences)

    def work(
        self,
        sequences: int,
        tokens: int,
        pages: int,
        windowed_tokens: int,
        lengths: Lengths | None = None,
        skew: float = 1.0,
    ) -> Work:
        """``seconds`` times ``skew``, with bytes, operations and bound."""
        if sequences == 0:
            return Work(seconds=0.0)
        tokens = windowed_tokens if self.windowed else tokens
        read = min(float(pages), self.window_pages(sequences, tokens)) if self.windowed else pages
        lengths = lengths if self.kernel.needs_lengths else None
        held, exchange_s = float(tokens), 0.0
        if self.shares is not None:
            held, lengths = self.shares.longest_share(sequences, held), self.shares.longest_of(lengths)
            read = min(float(read), held / self.page_tokens + sequences)
            exchange_s = self.shares.exchange.seconds(sequences)
        stages = self.kernel.stages(sequences, held, read, lengths)
        shape = self.kernel.shape
        flops = 2 * held * shape.query_heads * (shape.head_dim + shape.v_head_dim) * self.layers
        moved = self.kernel.traffic(sequences, held, read).kv_bytes * self.layers
        seconds, bound = skew * self.layers * (stages.total_s + exchange_s), stages.bound
        return Work(
            seconds=seconds, moved_bytes=moved, flops=flops, bound="link" if exchange_s > stages.total_s else bound
        )

    def seconds_array(
        self, sequences: int, tokens: Any, pages: Any, windowed_tokens: Any, lengths: Lengths | None
    ) -> Any:
        """``seconds`` for arrays, bit for bit the same."""
        import numpy as np

        if self.windowed:
            tokens = windowed_tokens
            pages = np.minimum(pages, self.window_pages(sequences, windowed_tokens))
        lengths = lengths if self.kernel.needs_lengths else None
        if self.shares is not None:
            tokens, exchange_s = self.shares.longest_shares(sequences, tokens), self.shares.exchange.seconds(sequences)
            pages = np.minimum(pages, tokens / self.page_tokens + sequences)
            local_s = self.kernel.seconds_array(sequences, tokens, pages, self.shares.longest_of(lengths))
            return self.layers * (local_s + exchange_s)
        return self.layers * self.kernel.seconds_array(sequences, tokens, pages, lengths)

    def window_pages(self, sequences: int, windowed_tokens: Any) -> Any:
        """Pages that windows cover: one of w tokens at any place touches (w - 1) / page + 1 on average."""
        return (windowed_tokens - sequences) / self.page_tokens + sequences


def attention_seconds(groups: Sequence[GroupAttention]) -> Seconds:
    """``(sequences, tokens, pages, windowed_tokens, lengths) -> seconds`` of all groups, with few calls."""
    if len(groups) == 1 and not groups[0].windowed and groups[0].shares is None:
        layers, kernel = groups[0].layers, groups[0].kernel
        launch, needs_lengths = kernel.sums_seconds, kernel.needs_lengths

        def one(sequences: int, tokens: int, pages: int, windowed_tokens: int, lengths: Lengths | None) -> float:
            if not sequences:
                return 0.0
            if needs_lengths:
                return layers * kernel.seconds(sequences, tokens, pages, lengths)
            return layers * launch(sequences, tokens, pages)

        return one

    def every(sequences: int, tokens: int, pages: int, windowed_tokens: int, lengths: Lengths | None) -> float:
        total = 0.0
        if sequences:
            for group in groups:
                total += group.seconds(sequences, tokens, pages, windowed_tokens, lengths)
        return total

    return every


def group_attention(
    device: Device,
    model: Model,
    *,
    tp: int,
    kv_bytes: float,
    page_tokens: int,
    options: KernelOptions | None = None,
    dcp: int = 1,
    run: int = 1,
) -> tuple[GroupAttention, ...]:
    """One ``GroupAttention`` for each kind of layer in the model.

    ``dcp`` of the ``tp`` devices share contexts in runs of ``run`` tokens; each works for the query heads of all.
    """
    chosen = options or KernelOptions()
    return tuple(
        GroupAttention(
            device,
            attention_shape(model, group, tp=tp // dcp, kv_bytes=kv_bytes),
            group=group,
            page_tokens=page_tokens,
            options=replace(chosen),
            shares=None if dcp == 1 else context_shares(device, model, group, tp=tp, devices=dcp, run=run),
        )
        for group in model.groups
    )
