"""Lengths, classes and prefixes against theory; what is common to all runs of one seed."""

import math
from dataclasses import fields
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simulator.traffic.lengths import Length, LognormalLength
from simulator.workload import WorkloadConfig, generate

POISSON = {"process": "poisson", "rate": 4}
Z95 = 1.6448536269514722
# E and CV of a lognormal from a million equally likely quantiles: independent of the formulas under test.
QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / 100_000) for i in range(100_000)])


def workload(**more):
    return WorkloadConfig.model_validate(
        {"arrivals": POISSON, "prompt_tokens": 100, "output_tokens": 10, "requests": 1000, **more}
    )


def lengths(law, count=200_000, seed=1):
    return generate(workload(prompt_tokens=law, requests=count), seed=seed).prompt_tokens


def lognormal(**keys):
    return LognormalLength.model_validate({"dist": "lognormal", **keys})


def moments(law):
    mu, sigma = law.parameters()
    values = np.clip(np.exp(mu + sigma * QUANTILES), law.min, law.max)
    return values.mean(), values.std() / values.mean(), np.quantile(values, 0.95)


def test_a_bare_number_is_a_fixed_length():
    assert set(lengths(777, 10).tolist()) == set(lengths({"dist": "fixed", "value": 777}, 10).tolist()) == {777}
    assert set(lengths(2e3, 10).tolist()) == {2000}


def test_uniform_lengths_reach_both_ends_evenly():
    drawn = lengths({"dist": "uniform", "min": 3, "max": 8})
    counts = np.bincount(drawn, minlength=9)
    assert not counts[:3].any() and len(counts) == 9
    expected = len(drawn) / 6
    chi_square = np.sum((counts[3:] - expected) ** 2 / expected)
    assert chi_square < 25.7  # 0.9999 quantile for 5 degrees of freedom


def test_zipf_lengths_follow_the_power_law():
    s, low, high = 1.3, 5, 400
    drawn = lengths({"dist": "zipf", "s": s, "min": low, "max": high})
    weights = [k**-s for k in range(low, high + 1)]
    total = sum(weights)
    mean = sum(k * w for k, w in zip(range(low, high + 1), weights, strict=True)) / total
    second = sum(k * k * w for k, w in zip(range(low, high + 1), weights, strict=True)) / total
    assert drawn.min() == low and drawn.max() <= high
    assert drawn.mean() == pytest.approx(mean, abs=5 * math.sqrt((second - mean**2) / len(drawn)))
    assert np.mean(drawn == low) == pytest.approx(weights[0] / total, abs=5 * 0.5 / math.sqrt(len(drawn)))


def test_empirical_lengths_come_in_proportion_to_their_weights():
    drawn = lengths({"dist": "empirical", "values": [131072, 65536, 512], "weights": [1, 3, 6]})
    for value, share in ((131072, 0.1), (65536, 0.3), (512, 0.6)):
        assert np.mean(drawn == value) == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / len(drawn)))


@pytest.mark.parametrize(("mean", "p95"), [(2047.85, 7303), (1154.7, 4083), (342.62, 698), (10_000, 38_600)])
def test_lognormal_by_mean_and_p95_is_the_closed_form_with_the_smaller_sigma(mean, p95):
    # ln(p95 / mean) = z sigma - sigma^2 / 2 has the roots z -+ sqrt(z^2 - 2 ln(p95 / mean)).
    sigma = Z95 - math.sqrt(Z95**2 - 2 * math.log(p95 / mean))
    assert lognormal(mean=mean, p95=p95).parameters() == pytest.approx((math.log(mean) - sigma**2 / 2, sigma), rel=1e-6)


def test_lognormal_by_mean_and_cv_is_the_closed_form():
    sigma = math.sqrt(math.log(1 + 0.77**2))
    found = lognormal(mean=1154.7, cv=0.77).parameters()
    assert found == pytest.approx((math.log(1154.7) - sigma**2 / 2, sigma), rel=1e-9)


def test_no_spread_given_means_a_cv_of_one():
    assert lognormal(mean=600).parameters() == lognormal(mean=600, cv=1).parameters()


def test_mean_and_p95_hold_after_clipping_although_no_unclipped_lognormal_has_them():
    law = lognormal(mean=20000, p95=100_000, max=120_000)
    mean, _, p95 = moments(law)
    assert mean == pytest.approx(20000, rel=1e-4) and p95 == pytest.approx(100_000, rel=1e-3)
    drawn = lengths({"dist": "lognormal", "mean": 20000, "p95": 100_000, "max": 120_000})
    assert drawn.mean() == pytest.approx(20000, abs=5 * drawn.std() / math.sqrt(len(drawn)))
    assert drawn.max() == 120_000 and np.mean(drawn <= 100_000) == pytest.approx(0.95, abs=0.003)


@settings(max_examples=60, deadline=None)
@given(
    mean=st.floats(20, 50_000),
    cap=st.floats(1.5, 50),
    spread=st.one_of(
        st.fixed_dictionaries({"cv": st.floats(0.05, 3)}),
        st.fixed_dictionaries({"sigma": st.floats(0.05, 3)}),
        st.fixed_dictionaries({"p95": st.floats(1.05, 20)}),
    ),
)
def test_solved_moments_are_those_of_the_clipped_lengths(mean, cap, spread):
    if "p95" in spread:
        spread = {"p95": mean * spread["p95"]}
    try:
        law = lognormal(mean=mean, max=math.ceil(mean * cap), min=5, **spread)
    except ValidationError:
        assume(False)
    found_mean, cv, p95 = moments(law)
    assert found_mean == pytest.approx(mean, rel=2e-3)
    if law.cv:
        assert cv == pytest.approx(law.cv, rel=1e-2)
    if law.p95:
        assert p95 == pytest.approx(law.p95, rel=2e-3)
    if law.sigma:
        assert law.parameters()[1] == law.sigma


def test_the_largest_p95_of_an_uncapped_lognormal_is_named():
    limit = math.exp(Z95**2 / 2)
    lognormal(mean=1000, p95=int(limit * 1000))
    with pytest.raises(ValidationError, match=r"5 times the mean 1000.*at most 3\.868 times"):
        lognormal(mean=1000, p95=5000)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ({"mean": 600}, "unable to extract tag using discriminator 'dist'"),
        ({"dist": "normal", "mean": 600}, "does not match any of the expected tags"),
        (0, "greater than or equal to 1"),
        (-5, "greater than or equal to 1"),
        (2.5, "fractional part"),
        (True, "input should be|valid dictionary|not a number"),
        (10**18, "less than or equal to 100000000"),
        ("many", "valid dictionary"),
        ({"dist": "fixed"}, "Field required"),
        ({"dist": "fixed", "value": True}, "true is not a number of tokens"),
        ({"dist": "uniform", "min": 9, "max": 3}, "min 9 is above max 3"),
        ({"dist": "uniform", "min": 9, "max": 30, "mean": 20}, "not permitted"),
        ({"dist": "lognormal"}, "Field required"),
        ({"dist": "lognormal", "mean": float("nan")}, "finite"),
        ({"dist": "lognormal", "mean": 5, "cv": 1, "sigma": 1}, "one of p95, cv, sigma; found cv and sigma"),
        ({"dist": "lognormal", "mean": 5, "cv": 0}, "greater than 0"),
        ({"dist": "lognormal", "mean": 500, "max": 400}, "mean 500 must lie between min 1 and max 400"),
        ({"dist": "lognormal", "mean": 500, "p95": 400}, "p95 400 must be above the mean 500"),
        ({"dist": "lognormal", "mean": 500, "p95": 900, "max": 800}, "p95 900 must lie between"),
        ({"dist": "lognormal", "mean": 600, "max": 700}, r"cv 1 cannot be had .* allowed below 0\.39"),
        ({"dist": "zipf", "s": 1}, "Field required"),
        ({"dist": "zipf", "s": 0, "max": 5}, "greater than 0"),
        ({"dist": "zipf", "s": 1, "max": 100_000_000}, "allows a range below"),
        ({"dist": "empirical"}, "either values or file"),
        ({"dist": "empirical", "values": []}, "at least 1 item"),
        ({"dist": "empirical", "values": [1, 0]}, "greater than or equal to 1"),
        ({"dist": "empirical", "values": [1, 2], "weights": [1]}, "1 weights for 2 values"),
        ({"dist": "empirical", "values": [1], "weights": [0]}, "all weights are zero"),
        ({"dist": "empirical", "values": [1], "weights": [-1]}, "greater than or equal to 0"),
        ({"dist": "empirical", "values": [1], "column": "x"}, "column belongs to file"),
        ({"dist": "empirical", "file": "x", "weights": [1]}, "1 weights for 0 values|weights"),
    ],
)
def test_a_senseless_length_is_refused_with_the_reason(law, message):
    with pytest.raises(ValidationError, match=f"(?i){message}"):
        TypeAdapter(Length).validate_python(law)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prompt_tokens": None}, "prompt_tokens is missing for class 'default'"),
        ({"output_tokens": None}, "output_tokens is missing"),
        ({"token_pairs": {"path": "azure_code"}}, "token_pairs brings both lengths"),
        ({"samples": 0}, "greater than or equal to 1"),
        ({"samples": 2, "beam_width": 4}, "cannot both be above 1"),
        ({"samples": 2, "classes": [{"name": "a", "beam_width": 4}]}, "cannot both be above 1"),
        ({"classes": [{"name": "a"}, {"name": "a"}]}, "two classes are called 'a'"),
        ({"classes": [{"name": "a", "weight": 0}]}, "greater than 0"),
        ({"classes": [{"weight": 1}]}, "Field required"),
        ({"shared_prefix": {"groups": 0, "tokens": 5}}, "greater than or equal to 1"),
        ({"shared_prefix": {"groups": 3}}, "Field required"),
        ({"shared_prefix": {"tokens": 3, "fraction": 2}}, "less than or equal to 1"),
        ({"rate": 5}, "not permitted"),
    ],
)
def test_a_senseless_workload_is_refused_with_the_reason(more, message):
    with pytest.raises(ValidationError, match=message):
        workload(**more)


def test_empirical_lengths_are_read_from_a_column_or_a_list(tmp_path):
    (tmp_path / "lengths.csv").write_text("id,tokens\na,5\nb,7\n")
    (tmp_path / "lengths.txt").write_text("5\n\n7\n")
    for law in ({"file": "lengths.csv", "column": "tokens"}, {"file": "lengths.txt"}):
        config = workload(prompt_tokens={"dist": "empirical", **law})
        assert set(generate(config, seed=1, base_dir=tmp_path).prompt_tokens.tolist()) == {5, 7}


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("id,tokens\na,5\n", "token", r"f:1: no column 'token'; allowed: id, tokens"),
        ("id,tokens\na,5\nb,-7\n", "tokens", r"f:3: tokens: found '-7'; allowed: a whole number"),
        ("id,tokens\n", "tokens", "holds no length"),
        ("5\n\nsix\n", None, r"f:3: length: found 'six'"),
        ("", None, "holds no length"),
    ],
)
def test_a_broken_length_file_is_refused_with_line_and_column(tmp_path, text, column, message):
    (tmp_path / "f").write_text(text)
    config = workload(prompt_tokens={"dist": "empirical", "file": "f", "column": column})
    with pytest.raises(ValueError, match=message):
        generate(config, seed=1, base_dir=tmp_path)


CLASSES = [
    {"name": "chat", "weight": 3, "prompt_tokens": {"dist": "lognormal", "mean": 500}, "samples": 2},
    {
        "name": "summary",
        "weight": 1,
        "prompt_tokens": {"dist": "uniform", "min": 5000, "max": 9000},
        "output_tokens": 99,
    },
]


def test_classes_come_in_proportion_to_their_weights_and_keep_their_own_settings():
    requests = generate(workload(classes=CLASSES, requests=100_000), seed=1)
    assert requests.class_names == ("chat", "summary")
    chat = requests.class_id == 0
    assert chat.mean() == pytest.approx(0.75, abs=5 * math.sqrt(0.75 * 0.25 / 100_000))
    assert requests.prompt_tokens[~chat].min() >= 5000
    assert set(requests.output_tokens[chat].tolist()) == {10}
    assert set(requests.output_tokens[~chat].tolist()) == {99}
    assert set(requests.samples[chat].tolist()) == {2} and set(requests.samples[~chat].tolist()) == {1}


def test_a_class_draws_the_same_lengths_whatever_the_other_classes_do():
    one = generate(workload(classes=CLASSES), seed=1)
    reweighted = [{**CLASSES[0], "weight": 1}, {**CLASSES[1], "prompt_tokens": 1}]
    other = generate(workload(classes=reweighted), seed=1)
    first, second = one.prompt_tokens[one.class_id == 0], other.prompt_tokens[other.class_id == 0]
    assert len(first) > len(second)
    assert np.array_equal(first[: len(second)], second)


def test_changing_the_output_law_moves_neither_arrivals_nor_prompts_nor_prefixes():
    law = {"dist": "lognormal", "mean": 500}
    fixed = {"prompt_tokens": law, "shared_prefix": {"groups": 9, "tokens": 50}}
    one = generate(workload(**fixed, output_tokens=10), seed=5)
    other = generate(workload(**fixed, output_tokens={"dist": "zipf", "s": 1, "max": 9}), seed=5)
    assert one.prefix is not None and other.prefix is not None
    assert np.array_equal(one.arrival_ns, other.arrival_ns)
    assert np.array_equal(one.prompt_tokens, other.prompt_tokens)
    assert np.array_equal(one.prefix.ids, other.prefix.ids)


def test_changing_the_rate_stretches_the_same_arrivals():
    slow = generate(workload(arrivals={"process": "poisson", "rate": 1}), seed=5)
    fast = generate(workload(arrivals={"process": "poisson", "rate": 4}), seed=5)
    assert np.max(np.abs(slow.arrival_ns - 4 * fast.arrival_ns)) <= 4
    assert np.array_equal(slow.prompt_tokens, fast.prompt_tokens)


def test_a_larger_mean_lengthens_every_request_in_step():
    small = lengths({"dist": "lognormal", "mean": 1000, "cv": 1}, 1000)
    large = lengths({"dist": "lognormal", "mean": 3000, "cv": 1}, 1000)
    assert np.max(np.abs(large - 3 * small)) <= 3


def columns(requests):
    found = {field.name: getattr(requests, field.name) for field in fields(requests)}
    prefix = found.pop("prefix")
    found |= {name: getattr(prefix, name) for name in ("offsets", "ids", "ends")}
    return {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in found.items()}


def test_the_same_seed_gives_the_same_bytes():
    config = workload(classes=CLASSES, shared_prefix={"groups": 5, "tokens": 40, "popularity": "zipf"})
    again = WorkloadConfig.model_validate(config.model_dump(mode="json"))
    assert columns(generate(config, seed=3, replication=2)) == columns(generate(again, seed=3, replication=2))
    assert columns(generate(config, seed=3)) != columns(generate(config, seed=4))


def test_prefix_groups_are_as_popular_as_zipf_says_and_prefixes_end_within_prompts():
    prefix_law = {"groups": 20, "tokens": 2048, "popularity": "zipf", "s": 1.0}
    prompts = {"dist": "uniform", "min": 1000, "max": 5000}
    requests = generate(workload(prompt_tokens=prompts, shared_prefix=prefix_law, requests=100_000), seed=1)
    prefix = requests.prefix
    assert prefix is not None
    assert np.array_equal(np.diff(prefix.offsets), np.ones(100_000))
    assert np.array_equal(prefix.ends, np.minimum(2048, requests.prompt_tokens))
    harmonic = sum(1 / g for g in range(1, 21))
    shares = np.bincount(prefix.ids, minlength=20) / 100_000
    assert shares == pytest.approx([1 / g / harmonic for g in range(1, 21)], abs=5 * 0.5 / math.sqrt(100_000))


def test_a_fraction_of_requests_has_the_prefix_and_groups_stay_uniform():
    shared = {"groups": 4, "tokens": 10, "fraction": 0.3}
    prefix = generate(workload(shared_prefix=shared, requests=100_000), seed=1).prefix
    assert prefix is not None
    assert len(prefix.ids) == pytest.approx(30_000, abs=5 * math.sqrt(21_000))
    assert np.bincount(prefix.ids) == pytest.approx([len(prefix.ids) / 4] * 4, abs=5 * math.sqrt(7500))
    for fraction, share in ((0, 0), (1, 1)):
        prefix = generate(workload(shared_prefix={**shared, "fraction": fraction}), seed=1).prefix
        assert prefix is not None and len(prefix.ids) == 1000 * share


def test_classes_share_the_workloads_groups_but_not_each_others():
    classes = [
        {"name": "a"},
        {"name": "b", "shared_prefix": {"groups": 2, "tokens": 7}},
        {"name": "c", "shared_prefix": {"groups": 2, "tokens": 8}},
        {"name": "d"},
    ]
    requests = generate(workload(classes=classes, shared_prefix={"groups": 3, "tokens": 5}), seed=1)
    prefix = requests.prefix
    assert prefix is not None
    by_class = [set(prefix.ids[requests.class_id == index].tolist()) for index in range(4)]
    assert by_class == [{0, 1, 2}, {3, 4}, {5, 6}, {0, 1, 2}]


def test_shared_prefixes_can_be_laid_over_a_trace_without_any():
    config = {
        "arrivals": {"process": "trace", "path": "azure_code", "limit": 100},
        "shared_prefix": {"tokens": 300},
        "samples": 3,
    }
    requests = generate(WorkloadConfig.model_validate(config), seed=1)
    assert requests.prefix is not None
    assert np.array_equal(requests.prefix.ends, np.minimum(300, requests.prompt_tokens))
    assert set(requests.samples.tolist()) == {3}


def test_a_million_requests_fit_in_100_mb_and_cannot_be_changed():
    requests = generate(workload(requests=1_000_000, shared_prefix={"tokens": 5}), seed=1)
    assert requests.prefix is not None
    arrays = [getattr(requests, field.name) for field in fields(requests)]
    arrays += [requests.prefix.offsets, requests.prefix.ids, requests.prefix.ends]
    assert sum(array.nbytes for array in arrays if isinstance(array, np.ndarray)) < 100e6
    with pytest.raises(ValueError, match="read-only"):
        requests.arrival_ns[0] = 5


def test_the_schema_for_editors_allows_the_bare_number():
    schema = WorkloadConfig.model_json_schema()
    assert {"type": "integer"} in schema["properties"]["prompt_tokens"]["anyOf"]
