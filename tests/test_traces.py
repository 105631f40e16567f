"""Shipped traces against their published statistics, and files from outside against everything that can be wrong."""

import csv
import gzip
import json
import os
from datetime import datetime

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.traffic.traces import trace_names, trace_path
from simulator.workload import WorkloadConfig, generate

NS = 1_000_000_000

# Rows, prompt mean/p50/p95/p99/max, output the same, seconds, requests/s, gap CV, as published with the data.
STATISTICS = {
    "azure_code": (8819, (2047.85, 1469, 7303, 7436, 7437), (27.88, 13, 90, 251, 1899), 3435.9, 2.566, 13.2),
    "azure_conv": (19366, (1154.70, 1020, 4083, 4142, 14050), (211.13, 129, 451, 601, 1000), 3501.7, 5.530, 1.09),
    "mooncake_conversation": (
        12031,
        (12035.06, 6909, 39550, 85400, 126195),
        (342.62, 350, 698, 1119, 2000),
        3537.0,
        3.401,
        3.03,
    ),
}


def replay(path, base_dir=None, seed=1, workload=None, **arrivals):
    config = {"arrivals": {"process": "trace", "path": str(path), **arrivals}, **(workload or {})}
    return generate(WorkloadConfig.model_validate(config), seed=seed, base_dir=base_dir)


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("name", STATISTICS)
def test_shipped_traces_have_their_published_statistics(name):
    rows, prompt, output, seconds, rate, cv = STATISTICS[name]
    requests = replay(name)
    assert len(requests) == rows
    for column, (mean, *percentiles) in ((requests.prompt_tokens, prompt), (requests.output_tokens, output)):
        assert column.mean() == pytest.approx(mean, abs=0.005)
        assert np.round(np.percentile(column, [50, 95, 99, 100])).tolist() == percentiles
    times = requests.arrival_ns / NS
    gaps = np.diff(times)
    assert times[0] == 0 and times[-1] == pytest.approx(seconds, abs=0.05)
    assert len(gaps) / times[-1] == pytest.approx(rate, abs=0.001)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.005)


def test_the_mooncake_trace_has_its_published_block_counts():
    requests = replay("mooncake_conversation")
    prefix = requests.prefix
    assert prefix is not None
    assert len(prefix.ids) == 288_500
    assert len(np.unique(prefix.ids)) == 182_790
    assert int(np.sum(requests.prompt_tokens // 512)) == 276_491
    # Every block but the last is full; the last ends with the prompt.
    assert np.array_equal(prefix.ends[prefix.offsets[1:] - 1], requests.prompt_tokens)
    inner = np.ones(len(prefix.ids), bool)
    inner[prefix.offsets[1:] - 1] = False
    assert not np.any(prefix.ends[inner] % 512)


def test_equal_mooncake_ids_always_end_at_the_same_token():
    prefix = replay("mooncake_conversation").prefix
    assert prefix is not None
    assert len(np.unique(np.stack([prefix.ids, prefix.ends]), axis=1)[0]) == 182_790


def test_azure_times_are_exact_to_100_ns():
    requests = replay("azure_code")
    with gzip.open(trace_path("azure_code"), "rt", newline="") as file:
        rows = list(csv.DictReader(file))

    def ticks(text):
        whole, fraction = text.split(".")
        second = (datetime.fromisoformat(whole) - datetime(1970, 1, 1)).total_seconds()
        return int(second) * 10**7 + int(fraction)

    first = ticks(rows[0]["TIMESTAMP"])
    assert requests.arrival_ns.tolist() == [(ticks(row["TIMESTAMP"]) - first) * 100 for row in rows]
    assert requests.prompt_tokens.tolist() == [int(row["ContextTokens"]) for row in rows]


@pytest.mark.parametrize(
    ("name", "token_steps", "page_steps", "peak_live"),
    [("azure_code", 524_109_173, 32_872_140, 80), ("mooncake_conversation", None, None, 101)],
)
def test_a_replay_at_50_ms_a_token_has_the_known_demand(name, token_steps, page_steps, peak_live):
    # Totals made once with an independent program: a request holds P + k tokens during its k-th interval of 50 ms.
    requests = replay(name)
    prompts, outputs = requests.prompt_tokens.tolist(), requests.output_tokens.tolist()
    if token_steps:
        assert sum(p * o + o * (o + 1) // 2 for p, o in zip(prompts, outputs, strict=True)) == token_steps
        held = (-(-(p + k) // 16) for p, o in zip(prompts, outputs, strict=True) for k in range(1, o + 1))
        assert sum(held) == page_steps
    starts = requests.arrival_ns
    ends = np.sort(starts + requests.output_tokens * 50_000_000)
    live = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    last_of_tick = np.append(np.diff(starts) > 0, True)
    assert live[last_of_tick].max() == peak_live


def test_the_shipped_names_are_listed_and_a_slip_is_answered_with_the_nearest(tmp_path):
    assert trace_names() == list(STATISTICS)
    with pytest.raises(ValueError, match="did you mean 'azure_code'"):
        replay("azure_cod", tmp_path)


def test_a_window_keeps_start_to_end_and_moves_the_start_to_zero():
    whole = replay("azure_conv").arrival_ns
    part = replay("azure_conv", window=["10min", "20min"])
    inside = (whole >= 600 * NS) & (whole < 1200 * NS)
    assert np.array_equal(part.arrival_ns, whole[inside] - 600 * NS)
    assert np.array_equal(part.prompt_tokens, replay("azure_conv").prompt_tokens[inside])


def test_scale_two_is_twice_as_fast_with_the_same_requests():
    whole, fast = replay("azure_conv"), replay("azure_conv", scale=2)
    assert np.max(np.abs(fast.arrival_ns * 2 - whole.arrival_ns)) <= 1
    assert np.array_equal(fast.output_tokens, whole.output_tokens)


def test_limit_keeps_the_first_requests_with_their_prefixes():
    whole, few = replay("mooncake_conversation"), replay("mooncake_conversation", limit=1000)
    assert len(few) == 1000 and np.array_equal(few.arrival_ns, whole.arrival_ns[:1000])
    assert few.prefix is not None and whole.prefix is not None
    assert np.array_equal(few.prefix.ids, whole.prefix.ids[: few.prefix.offsets[-1]])


def test_a_sample_keeps_about_its_share_and_a_larger_one_holds_the_smaller():
    whole = replay("azure_conv")
    small, large = (replay("azure_conv", sample=share).arrival_ns for share in (0.1, 0.3))
    error = 5 * np.sqrt(0.1 * 0.9 * len(whole))
    assert len(small) == pytest.approx(0.1 * len(whole), abs=error)
    assert set(small.tolist()) <= set(large.tolist()) <= set(whole.arrival_ns.tolist())
    assert not np.array_equal(small, replay("azure_conv", sample=0.1, seed=2).arrival_ns)


def test_a_sampled_window_is_the_window_of_the_sample():
    sampled = replay("azure_conv", sample=0.2).arrival_ns
    both = replay("azure_conv", sample=0.2, window=[100, 200]).arrival_ns
    assert np.array_equal(both, sampled[(sampled >= 100 * NS) & (sampled < 200 * NS)] - 100 * NS)


def test_sampled_prefixes_belong_to_the_sampled_requests():
    whole, part = replay("mooncake_conversation"), replay("mooncake_conversation", sample=0.05)
    assert whole.prefix is not None and part.prefix is not None
    by_first_and_last = {
        (int(whole.prefix.ids[a]), int(whole.prefix.ids[b - 1])): b - a
        for a, b in zip(whole.prefix.offsets[:-1], whole.prefix.offsets[1:], strict=True)
    }
    for i in range(len(part)):
        a, b = int(part.prefix.offsets[i]), int(part.prefix.offsets[i + 1])
        assert by_first_and_last[int(part.prefix.ids[a]), int(part.prefix.ids[b - 1])] == b - a
        assert part.prefix.ends[b - 1] == part.prompt_tokens[i]


def test_requests_and_horizon_cut_a_trace(tmp_path):
    path = write(
        tmp_path, "t.csv", "arrived_at,prompt_tokens,output_tokens\n" + "".join(f"{i},5,5\n" for i in range(9))
    )
    assert len(replay(path, workload={"requests": 4})) == 4
    assert len(replay(path, workload={"horizon": 6})) == 6
    assert len(replay(path, workload={"requests": 100})) == 9


def test_burstgpt_rows_without_response_are_skipped_and_counted(tmp_path):
    path = write(
        tmp_path,
        "burst.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,0,0,0,Conversation log\n"
        "45.5,GPT-4,417,0,417,API log\n"
        "118,GPT-4,417,276,693,Conversation log\n",
    )
    requests = replay(path)
    assert requests.arrival_ns.tolist() == [0, 113 * NS]
    assert requests.prompt_tokens.tolist() == [472, 417]
    assert requests.notes == ("2 trace rows without output tokens skipped",)


def test_azure_2024_times_with_a_utc_offset_are_exact(tmp_path):
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n2024-05-10T00:00:01.5Z,76,15\n"
    path = write(tmp_path, "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    assert replay(path).arrival_ns.tolist() == [0, 990_070_000, 1_490_070_000]


def test_burstgpt_with_session_columns_is_recognised(tmp_path):
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path = write(tmp_path, "burst.csv", f"{header}\r\n5,,1.5,ChatGPT,472,18,490,API log\r\n")
    assert replay(path).output_tokens.tolist() == [18]


def test_plain_csv_prefixes_share_by_id(tmp_path):
    path = write(
        tmp_path,
        "plain.csv",
        "arrived_at,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n"
        "1.5,100,10,system-a,64\n2.25,50,5,,\n2.25,80,5,b,80\n3,90,5,system-a,64\n",
    )
    requests = replay(path)
    assert requests.arrival_ns.tolist() == [0, 750_000_000, 750_000_000, 1_500_000_000]
    assert requests.prefix is not None
    assert requests.prefix.offsets.tolist() == [0, 1, 1, 2, 3]
    assert requests.prefix.ids.tolist() == [0, 1, 0]
    assert requests.prefix.ends.tolist() == [64, 80, 64]


def test_gzip_byte_order_mark_crlf_quotes_and_missing_last_newline_are_fine(tmp_path):
    text = '\ufeff"arrived_at",prompt_tokens,output_tokens\r\n0,"10",1\r\n\r\n0.5,20.0,2'
    path = tmp_path / "whatever.dat"
    path.write_bytes(gzip.compress(text.encode()))
    requests = replay("whatever.dat", tmp_path)
    assert requests.prompt_tokens.tolist() == [10, 20]
    assert requests.arrival_ns.tolist() == [0, 500_000_000]


def test_jsonl_without_hash_ids_has_no_prefixes(tmp_path):
    path = write(tmp_path, "t.jsonl", '{"timestamp": 0.5, "input_length": 600, "output_length": 2}\n\n')
    requests = replay(path)
    assert requests.prefix is None and requests.prompt_tokens.tolist() == [600]


def test_block_tokens_say_what_a_hash_id_covers(tmp_path):
    row = {"timestamp": 0, "input_length": 40, "output_length": 2, "hash_ids": [7, 8, 9]}
    path = write(tmp_path, "t.jsonl", json.dumps(row))
    prefix = replay(path, block_tokens=16).prefix
    assert prefix is not None and prefix.ends.tolist() == [16, 32, 40]
    with pytest.raises(ValueError, match=r"t.jsonl:1: hash_ids: found '3 ids'; allowed: 1, one for each 512 tokens"):
        replay(path)


def test_a_trace_larger_than_one_run_reads_the_same(tmp_path):
    count = 150_000
    rows = "".join(f"{i / 1000},{i % 977 + 1},{i % 89 + 1},{i % 5},1\n" for i in range(count))
    path = write(tmp_path, "t.csv", "arrived_at,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n" + rows)
    requests = replay(path)
    assert requests.arrival_ns.tolist() == [i * 1_000_000 for i in range(count)]
    assert requests.prompt_tokens.tolist() == [i % 977 + 1 for i in range(count)]
    assert requests.prefix is not None and requests.prefix.ids.tolist() == [i % 5 for i in range(count)]
    assert np.array_equal(replay(path, window=[100, 110]).output_tokens, requests.output_tokens[100_000:110_000])


def test_times_only_takes_arrivals_from_the_trace_and_lengths_from_the_laws():
    laws = {"prompt_tokens": 7, "output_tokens": 3}
    requests = replay("azure_code", workload=laws, times_only=True)
    assert np.array_equal(requests.arrival_ns, replay("azure_code").arrival_ns)
    assert set(requests.prompt_tokens.tolist()) == {7} and requests.prefix is None


def test_token_pairs_draw_rows_of_a_file_together(tmp_path):
    path = write(tmp_path, "pairs.csv", "num_prefill_tokens,num_decode_tokens,pd_ratio\n10,1,10\n20,2,10\n30,3,10\n")
    config = {
        "arrivals": {"process": "poisson", "rate": 1},
        "token_pairs": {"path": path.name},
        "requests": 30_000,
    }
    requests = generate(WorkloadConfig.model_validate(config), seed=1, base_dir=tmp_path)
    assert np.array_equal(requests.prompt_tokens, requests.output_tokens * 10)
    shares = np.bincount(requests.output_tokens)[1:] / 30_000
    assert shares == pytest.approx([1 / 3] * 3, abs=5 * np.sqrt(2 / 9 / 30_000))
    with pytest.raises(ValueError, match="lengths but no arrival times"):
        replay(path)


PLAIN = "arrived_at,prompt_tokens,output_tokens"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [0, 1]}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t:1: the file is empty"),
        ("\n\n", r"t:1: the file is empty"),
        (PLAIN + "\n", "no request is left"),
        ("a,b,c\n1,2,3\n", r"t:1: columns 'a,b,c' are no known trace; allowed: TIMESTAMP.*\(Azure\).*arrived_at"),
        ("arrived_at,prompt_tokens\n1,2\n", r"t:1: column output_tokens is missing"),
        (PLAIN + ",output_tokens\n1,2,3,4\n", r"t:1: the header names a column twice"),
        (PLAIN + "\n1,2\n", r"t:2: found 2 cells, the header has 3"),
        (PLAIN + "\n0,5,5\n1,2,3,4\n", r"t:3: found 4 cells"),
        (PLAIN + "\n0,5,5\n1,x,3\n", r"t:3: prompt_tokens: found 'x'; allowed: a whole number of tokens from 1"),
        (PLAIN + "\n0,5,-5\n", r"t:2: output_tokens: found '-5'; allowed: a whole number"),
        (PLAIN + "\n0,0,5\n", r"t:2: prompt_tokens: found '0'"),
        (PLAIN + "\n0,5,0\n", r"t:2: output_tokens: found '0'"),
        (PLAIN + "\n0,5,nan\n", r"t:2: output_tokens: found 'nan'"),
        (PLAIN + "\n0,inf,5\n", r"t:2: prompt_tokens: found 'inf'"),
        (PLAIN + "\n0,2.5,5\n", r"t:2: prompt_tokens: found '2.5'"),
        (PLAIN + "\n0,,5\n", r"t:2: prompt_tokens: found ''"),
        (PLAIN + "\n0,1000000000000000000,5\n", r"t:2: prompt_tokens: found '10+'"),
        (PLAIN + "\n0,1e300,5\n", r"t:2: prompt_tokens: found '1e300'"),
        (PLAIN + f"\n0,{'9' * 6000},5\n", r"t:2: prompt_tokens: found '9+\.\.\.'"),
        (PLAIN + "\nnan,5,5\n", r"t:2: arrived_at: found 'nan'; allowed: seconds from 0"),
        (PLAIN + "\n-1,5,5\n", r"t:2: arrived_at: found '-1'"),
        (PLAIN + "\n1e30,5,5\n", r"t:2: arrived_at: found '1e30'"),
        (PLAIN + "\n\n1,5,5\n\n0.5,5,5\n", r"t:5: arrived_at: found '0.5'; allowed: a time not before the row above"),
        (PLAIN + '\n0,"5\n",5\n1,x,5\n', r"t:4: prompt_tokens: found 'x'"),
        (PLAIN + '\n0,"5,5\n', r"t:2: .*unexpected end of data"),
        (PLAIN + '\n0,"5"5,5\n', r"t:2: not a readable CSV row"),
        (PLAIN + ",prefix_id\n0,5,5,1\n", r"t:1: prefix_id needs the other"),
        (PLAIN + ",prefix_id,prefix_tokens\n0,5,5,1,6\n", r"t:2: prefix_tokens: found '6'; allowed: at most"),
        (PLAIN + ",prefix_id,prefix_tokens\n0,5,5,1,\n", r"t:2: prefix_tokens: found ''"),
        (AZURE + "\n", "no request is left"),
        (AZURE + '\n"2023-11-16 18:17:03\n2023-11-16 18:17:04",5,5\n', r"t:3: TIMESTAMP: found '2023-11-16 18:17:03"),
        (AZURE + "\n2023-11-16 18:17,5,5\n", r"t:2: TIMESTAMP: found '2023-11-16 18:17'; allowed: a UTC time"),
        (AZURE + "\n2023-13-16 18:17:03.9,5,5\n", r"t:2: TIMESTAMP: found '2023-13-16"),
        (AZURE + "\n2023-02-30 18:17:03.9,5,5\n", r"t:2: TIMESTAMP: found '2023-02-30"),
        (AZURE + "\n9999-01-01 00:00:00,5,5\n", r"t:2: TIMESTAMP: found '9999"),
        (AZURE + "\n2023-11-16 18:17:03+05:00,5,5\n", r"t:2: TIMESTAMP"),
        (PLAIN.encode() + b"\n0,5\xff,5\n", r"t:2: not UTF-8 text \(byte 3"),
        ("arrived_at".encode("utf-16"), r"t:1: not UTF-8"),
        (b"\x1f\x8b\x08\x00garbage", r"t: the gzip file"),
        (gzip.compress((PLAIN + "\n0,5,5\n" * 99).encode(), mtime=0)[:-20], r"the gzip file ends too early"),
        (gzip.compress(b"\0" * (17 * 2**20)), r"t:1: the line is longer than 16777216 bytes"),
        ("{", r"t:1: not a JSON object"),
        ("{" + '"a":[' * 100_000, r"t:1: not a JSON object"),
        (ROW + "[1]\n", r"t:2: found a list.*; allowed: a JSON object"),
        ("{}\n", r"t:1: key timestamp is missing"),
        (ROW.replace("600", "true"), r"t:1: input_length: found true; allowed: a whole number"),
        (ROW.replace("600", "600.5"), r"t:1: input_length: found 600.5"),
        (ROW.replace("600", "-600"), r"t:1: input_length: found -600"),
        (ROW.replace("600", "9" * 5000), r"t:1: not a JSON object"),
        (ROW.replace(": 2,", ": 0,"), r"t:1: output_length: found 0; allowed: a whole number of tokens from 1"),
        (ROW.replace(": 0,", ": NaN,"), r"t:1: timestamp: found nan; allowed: milliseconds"),
        (ROW.replace(": 0,", ": 5,") + ROW, r"t:2: timestamp: found 0; allowed: a time not before the line above"),
        (ROW.replace("[0, 1]", "[0]"), r"t:1: hash_ids: found '1 ids'; allowed: 2, one for each 512"),
        (ROW.replace("[0, 1]", '[0, "x"]'), r"t:1: hash_ids: found 'x'; allowed: whole numbers"),
        (ROW.replace("[0, 1]", "[0, true]"), r"t:1: hash_ids: found true"),
        (ROW.replace("[0, 1]", "[0, -1]"), r"t:1: hash_ids: found -1"),
        (ROW.replace("[0, 1]", f"[0, {2**63}]"), r"t:1: hash_ids: found 9223372036854775808"),
        (
            ROW + ROW.replace(', "hash_ids": [0, 1]', ""),
            r"t:2: hash_ids: found nothing; allowed: a list of ids on every",
        ),
    ],
)
def test_a_broken_trace_is_refused_with_line_and_column(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        replay(write(tmp_path, "t", text))


def refusal(path):
    """What is said against the trace; None when it can be replayed. Anything but ValueError is a crash."""
    try:
        replay(path)
    except ValueError as error:
        return str(error)
    return None


GOOD = [
    f"{PLAIN},prefix_id,prefix_tokens\n0,10,5,a,3\n0.5,10,5,,\n1,10,5,b,10\n".encode(),
    f"{AZURE}\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n".encode(),
    ROW.encode() * 3,
    gzip.compress(ROW.encode() * 3, mtime=0),
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    good=st.sampled_from(GOOD),
    start=st.floats(0, 1),
    length=st.integers(0, 12),
    put=st.one_of(st.binary(max_size=12), st.sampled_from([b"-", b"nan", b"\n", b",", b'"', b"9" * 30, b"{", b"\0"])),
)
def test_a_damaged_trace_is_read_or_refused_but_never_crashes(tmp_path, good, start, length, put):
    at = int(start * len(good))
    path = write(tmp_path, "t", good[:at] + put + good[at + length :])
    message = refusal(path)
    assert message is None or str(path) in message


def test_a_file_that_cannot_be_read_as_one_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="is a directory"):
        replay(tmp_path)
    with pytest.raises(ValueError, match=r"nowhere\.csv: no such file"):
        replay("nowhere.csv", tmp_path)
    with pytest.raises(ValueError, match=r"cannot be opened|no such file"):
        replay("nul\0byte", tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="not a regular file"):
        replay(pipe)


def test_rows_without_output_can_be_skipped_on_request(tmp_path):
    path = write(tmp_path, "t.csv", PLAIN + "\n0,5,0\n1,5,5\n")
    requests = replay(path, skip_empty_output=True)
    assert len(requests) == 1 and requests.notes == ("1 trace rows without output tokens skipped",)


@pytest.mark.parametrize(
    ("arrivals", "workload", "message"),
    [
        ({"scale": 0}, {}, "greater than or equal"),
        ({"scale": 1e-6}, {}, "beyond the clock"),
        ({"window": [5, 5]}, {}, "start < end"),
        ({"window": [5]}, {}, "Field required"),
        ({"window": ["1h", "2h"]}, {}, "no request is left after window"),
        ({"sample": 0}, {}, "greater than 0"),
        ({"sample": 1.5}, {}, "less than or equal to 1"),
        ({"limit": 0}, {}, "greater than or equal to 1"),
        ({"path": ""}, {}, "at least 1 character"),
        ({}, {"prompt_tokens": 5}, "a trace brings its own lengths: remove prompt_tokens"),
        ({}, {"classes": [{"name": "a"}]}, "remove classes"),
        ({"times_only": True}, {}, "prompt_tokens is missing"),
        ({"path": "mooncake_conversation"}, {"shared_prefix": {"tokens": 5}}, "has its own prefix ids"),
    ],
)
def test_a_senseless_cut_is_refused_with_the_reason(arrivals, workload, message):
    with pytest.raises(ValueError, match=message):
        replay(**{"path": "azure_code", **arrivals}, workload=workload)
