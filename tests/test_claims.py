"""The articles' claims against right values worked out by hand or published, typed here and nowhere in the program."""

from dataclasses import replace
from functools import cache

import pytest

from simulator import claims
from simulator.claiming import claims_memory
from simulator.claims import Claim, check_claims

GIB, MIB = 2**30, 2**20


@cache
def found() -> dict[str, Claim]:
    return {claim.number: claim for claim in check_claims()}


def test_all_37_claims_are_checked_in_order() -> None:
    assert list(found()) == [f"A{n}" for n in range(1, 16)] + [f"B{n}" for n in range(1, 23)]


# Right values in the order of the computed ones; None where only the verdict counts. Relative tolerance 0.5 %.
RIGHT = {
    "A1": [1, 2],
    "A2": [64 * GIB, 128 * GIB],
    "A3": [40 * GIB, 320 * GIB],
    "A4": [141, 131 * GIB],
    "A5": [64 * GIB, 64 * GIB, 64 * GIB, 32 * GIB, 64 * GIB, 128 * GIB],
    "A6": [128 * MIB, 16 * GIB, 160 * MIB, 20 * GIB],
    "A7": [2_097_152, 1024, 1_048_576],
    "A8": [0.5, 0, 4],
    "A9": [300, 162e-9, 186],
    "A10": [7],
    "A11": [299, 627e6, 339e-3, 14.1e-3, 0.883e-3],
    "A13": [48 * GIB + 16 * MIB],
    "A15": [2_097_152, 1],
    "B1": [13.48, 8.59, 22.07, 13.48, 14_233, 5_840],
    "B2": [8_392, 0.488],
    "B3": [30.66, 65.79, None],
    "B4": [16 * 1024, 512 * 1024],
    "B5": [524_288, 192 * 1024],
    "B6": [32, 8192, 256],
    "B8": [128, 128, 64, 64],
    "B9": [128, 64],
    "B10": [12_288, 768, 16],
    "B11": [1024, 0, 256],
    "B12": [2, 0.649e-6, 1200 / 1.85e9 / 15e-3],
    "B14": [30, 34, 31],
    "B15": [1, 16],
    "B16": [320, 544],
    "B17": [8.42e-3, 0.157e-3, 0.547, 0.353],
    "B18": [1, 1.2, 0.75],
    "B19": [0.222, 16, -0.571, 6, 6],
    "B20": [24_576, 768],
    "B21": [0, 8],
    "B22": [None, None, 25.3, 8.5],
}


@pytest.mark.parametrize("number", RIGHT)
def test_computed_values_are_the_right_ones(number: str) -> None:
    computed = [value.value for value in found()[number].computed]
    assert len(computed) == len(RIGHT[number])
    for value, right in zip(computed, RIGHT[number], strict=True):
        assert right is None or value == pytest.approx(right, rel=5e-3)


VERDICTS = {
    "right": ["A4", "A7", "B9", "B16", "B20"],
    "partly": ["A6", "B4", "B5", "B7", "B18"],
    "plausible": ["A9", "B2"],
    "implausible": ["B12", "B17"],
    "unsupported": ["A13", "B8", "B13"],
    "poor": ["A15"],
    "wrong": [
        *("A1", "A2", "A3", "A5", "A8", "A10", "A11", "A12", "A14"),
        *("B1", "B3", "B6", "B10", "B11", "B14", "B15", "B19", "B21", "B22"),
    ],
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_verdicts_are_those_of_the_hand_check(verdict: str) -> None:
    assert [number for number, claim in found().items() if claim.verdict == verdict] == VERDICTS[verdict]


# The shares of peak that two-point fits of Huawei's copy kernels give (time = 59.9 ns + bytes / 65.7 GB/s a core);
# the fits were made at 8 and 32 KiB and plateau at 1.577 TB/s, this device's sustained bandwidth is 1.45 TB/s.
def test_bandwidth_by_page_size_follows_the_published_copy_kernels() -> None:
    single_16, double_16, single_128, _, single_512, _ = [value.value for value in found()["A12"].computed]
    assert single_16 < 0.50 < double_16
    assert single_128 == pytest.approx(0.88, rel=0.10)
    assert single_512 == pytest.approx(0.96, rel=0.10)
    small, large = [value.value for value in found()["B7"].computed][:2]
    assert small == pytest.approx(0.67, rel=0.10)
    assert large == pytest.approx(0.79, rel=0.10)


def test_the_cliff_between_pages_of_32_and_64_needs_whole_pages_read_again() -> None:
    shares = {value.name: value.value for value in found()["B7"].computed}
    assert shares["per-head tiles, 64"] > shares["per-head tiles, 32"]
    assert shares["whole pages in parts, 64"] == pytest.approx(shares["whole pages in parts, 32"], rel=0.02)
    assert shares["whole pages read again, 64"] < 0.6 * shares["whole pages read again, 32"]


def test_the_articles_softmax_is_off_and_the_exact_one_is_not() -> None:
    exact, article, exponent = [value.value for value in found()["A14"].computed]
    weights = [2.718281828**-2, 1.0, 2.718281828**-1]
    assert exact == pytest.approx((weights[0] + 2 * weights[1] + 3 * weights[2]) / sum(weights), rel=1e-6)
    # Its weights are 1 and e^2 scaled by e^-2 and 1, then e^-1: the second counts e^2-fold.
    own = [2.718281828**-2, 2.718281828**2, 2.718281828**-1]
    assert article == pytest.approx((own[0] + 2 * own[1] + 3 * own[2]) / sum(own), rel=1e-6)
    assert exponent > 88.7


def test_small_pages_make_the_kernel_slower_than_contiguous_keys() -> None:
    assert found()["B13"].computed[0].value > 1.1


def test_a_verdict_follows_the_device_and_not_the_data_file(monkeypatch: pytest.MonkeyPatch) -> None:
    large = replace(claims.device("910B1"), hbm_bytes=128 * 10**9)
    monkeypatch.setattr(claims_memory, "device", lambda name="910B1": large)
    assert claims_memory.device_memory({"gigabytes": 128}).verdict == "right"
