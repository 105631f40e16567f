"""Weight matrices: how many elements, how many bytes in a storage format, and what one tensor-parallel device holds.

Tensor parallelism splits a matrix along heads, intermediate columns or vocabulary rows (``tp``), along KV heads,
which are replicated once there are more devices than heads (``kv``), or not at all (``none``).
"""

from dataclasses import dataclass
from typing import Literal

from simulator.units import ceil_div

Split = Literal["tp", "kv", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """Storage of one weight element, and of the scales that go with it.

    One scale (with its zero point, if any) of ``scale_bits`` serves a tile of ``scale_rows x scale_columns``
    elements; 0 rows or columns mean "all of them"; no scale when ``scale_bits`` is 0.
    """

    name: str
    bits: int
    scale_bits: int = 0
    scale_rows: int = 1
    scale_columns: int = 0

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a ``rows x columns`` matrix (output by input features), scales included."""
        elements = ceil_div(rows * columns * self.bits, 8)
        if not self.scale_bits:
            return elements
        tiles = ceil_div(rows, self.scale_rows or rows) * ceil_div(columns, self.scale_columns or columns)
        return elements + ceil_div(tiles * self.scale_bits, 8)


FORMATS = {
    "fp32": WeightFormat(name="fp32", bits=32),
    "fp16": WeightFormat(name="fp16", bits=16),
    "bf16": WeightFormat(name="bf16", bits=16),
    # One FP32 scale an output channel: FP8 "dynamic" checkpoints of compressed-tensors, W8A8 of msModelSlim.
    "fp8": WeightFormat(name="fp8", bits=8, scale_bits=32),
    "int8": WeightFormat(name="int8", bits=8, scale_bits=32),
    # AWQ and GPTQ: an FP16 scale and a 4-bit zero point for every 128 inputs of an output channel.
    "int4": WeightFormat(name="int4", bits=4, scale_bits=20, scale_columns=128),
    # OCP microscaling: one 8-bit exponent for 32 elements.
    "mxfp4": WeightFormat(name="mxfp4", bits=4, scale_bits=8, scale_columns=32),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """One weight tensor of a layer (``copies`` of them: one an expert), ``rows`` outputs by ``columns`` inputs.

    ``name`` is its module path inside the layer, ``kv_heads`` matters only to the ``kv`` split. A matrix that is
    not ``linear`` (norm, bias, router, embedding) stays in the model's own precision when weights are quantised.
    """

    name: str
    rows: int
    columns: int = 1
    copies: int = 1
    split: Split = "none"
    kv_heads: int = 1
    linear: bool = True

    @property
    def elements(self) -> int:
        """Elements of all copies."""
        return self.rows * self.columns * self.copies

    def device_bytes(self, tp: int, storage: WeightFormat) -> int:
        """Bytes on the fullest of ``tp`` devices, scales included."""
        held, parts = self._share(tp)
        return ceil_div(storage.matrix_bytes(self.rows, self.columns) * held, parts) * self.copies

    def _share(self, tp: int) -> tuple[int, int]:
        """What one device holds, as ``held`` of ``parts``."""
        if self.split == "tp":
            return 1, tp
        if self.split == "kv":
            return ceil_div(self.kv_heads, tp), self.kv_heads
        return 1, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMatrix:
    """A matrix and the format its checkpoint keeps it in."""

    matrix: Matrix
    storage: WeightFormat

    def device_bytes(self, tp: int) -> int:
        """Bytes on the fullest of ``tp`` devices."""
        return self.matrix.device_bytes(tp, self.storage)
