"""The scenario file: YAML rules, overrides, cross-checks, the resolved dump and the schema."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scenario_text import VALID, changed, line_of

from simulator.config import EngineConfig
from simulator.errors import InputError, Problem, nearest_name
from simulator.loading.catalogue import starter_text
from simulator.loading.schema import scenario_schema
from simulator.loading.yaml_source import MAX_DEPTH, parse_value, parse_yaml, resolve_scalar
from simulator.scenario import Scenario, load_scenario, parse_scenario, scenario_names
from simulator.showing.output import scenario_yaml

HERE = Path(__file__).parent


def parse(text: str, *overrides: str) -> Scenario:
    return parse_scenario(text, HERE, overrides, file="s.yaml")


def complaints(text: str, *overrides: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse(text, *overrides)
    return [str(problem) for problem in caught.value.problems]


# Scalars: the table of YAML 1.2.2, section 10.3.2 (core schema), and what YAML 1.1 read differently.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("~", None),
        ("", None),
        ("true", True),
        ("FALSE", False),
        ("0", 0),
        ("0o7", 7),
        ("0x3A", 58),
        ("-19", -19),
        ("+12", 12),
        ("0.", 0.0),
        ("-0.0", -0.0),
        (".5", 0.5),
        ("+12e03", 12000.0),
        ("-2E+05", -200000.0),
        ("1e9", 1e9),
        (".inf", float("inf")),
        ("-.Inf", float("-inf")),
        ("yes", "yes"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2001-12-14", "2001-12-14"),
        ("0b11", "0b11"),
        ("16KiB", "16KiB"),
    ],
)
def test_unquoted_scalars_follow_the_yaml_1_2_core_schema(text: str, value: object) -> None:
    resolved = resolve_scalar(text)
    assert resolved == value
    assert type(resolved) is type(value)


def test_quoted_scalars_are_text() -> None:
    assert parse_yaml("a: '1'\nb: \"true\"\nc: |\n  5\n", "f").data == {"a": "1", "b": "true", "c": "5\n"}


@given(st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive_a_round_trip(number: float) -> None:
    assert resolve_scalar(repr(number)) == number


# Without '-': 'a-b' beside 'a_b' is one key here.
KEYS = st.text(max_size=6).filter(lambda key: "-" not in key)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=12,
    )
)
def test_the_reader_agrees_with_the_writer_of_resolved_scenarios(tree: object) -> None:
    document = {"root": tree}
    assert parse_yaml(scenario_yaml(document), "f").data == document


def test_every_key_and_item_has_its_line() -> None:
    source = parse_yaml("a:\n  b: 1\n\nc:\n  - x\n  - d: 2\n", "f")
    assert source.lines == {("a",): 1, ("a", "b"): 2, ("c",): 4, ("c", 0): 5, ("c", 1): 6, ("c", 1, "d"): 6}
    assert source.line(("c", 1, "gone", "deeper")) == 6
    assert source.line(("gone",)) == 1


def test_byte_order_mark_and_windows_line_ends_are_accepted() -> None:
    assert parse_yaml(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "f").data == {"a": 1, "b": 2}


def test_nesting_up_to_the_limit_is_read() -> None:
    depth = MAX_DEPTH - 1
    assert parse_yaml("a: " + "[" * depth + "]" * depth, "f").data["a"] is not None


def test_a_flow_value_can_be_given_on_the_command_line() -> None:
    assert parse_value("{process: fixed, rate: 2/s}", "--set") == {"process": "fixed", "rate": "2/s"}


def test_a_valid_file_loads_with_its_units_resolved() -> None:
    scenario = parse(VALID)
    assert scenario.workload.arrivals.rate == 2.0
    assert scenario.loaded_device.count == 4
    assert scenario.loaded_model.num_layers == 32
    assert scenario.seed == 7
    assert scenario.base_dir == HERE


def test_the_name_defaults_to_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "night_shift.yaml").write_text(changed("name: small\n", ""))
    assert load_scenario(tmp_path / "night_shift.yaml").name == "night_shift"


def test_without_allocators_contiguous_is_compared_with_paged() -> None:
    text = VALID[: VALID.index("allocators:")]
    assert [one.kind for one in parse(text).allocators] == ["contiguous", "paged"]
    assert parse(text, "allocators.1.page_size=64").allocators[1].page_size == 64


def test_labels_are_distinct_even_when_kinds_repeat() -> None:
    text = changed("  - kind: contiguous\n    fit: first\n", "  - kind: paged\n  - {kind: paged, label: paged-2}\n")
    assert parse(text).labels == ("paged", "paged-2", "paged-3")


def test_vllm_spellings_are_accepted() -> None:
    text = changed("    page_size: 128", "    block-size: 64\n    num_gpu_blocks_override: 99")
    paged = parse(text.replace("max_num_seqs", "max-num-seqs")).allocators[1]
    assert (paged.page_size, paged.max_pages) == (64, 99)


@pytest.mark.parametrize(
    ("setting", "read"),
    [
        ("engine.max_num_seqs=3", lambda s: s.engine.max_num_seqs == 3),
        ("engine.max-num-seqs=3", lambda s: s.engine.max_num_seqs == 3),
        ("engine.swap_bytes=1GiB", lambda s: s.engine.swap_bytes == 2**30),
        ("allocators.1.page_size=64", lambda s: s.allocators[1].page_size == 64),
        ("allocators.1.block_size=64", lambda s: s.allocators[1].page_size == 64),
        ("workload.arrivals={process: fixed, rate: 1/min}", lambda s: s.workload.arrivals.mean_rate == 1 / 60),
        ("workload.shared_prefix.tokens=64", lambda s: s.workload.shared_prefix.tokens == 64),
        ("workload.horizon=5min", lambda s: s.workload.horizon == 300),
        ("seed=null", lambda s: s.seed == 0),
        ("engine.queue_timeout = 2s", lambda s: s.engine.queue_timeout == 2),
    ],
)
def test_set_changes_one_key(setting: str, read: object) -> None:
    assert callable(read)
    assert read(parse(VALID, setting))


def test_later_settings_win() -> None:
    assert parse(VALID, "seed=1", "seed=2").seed == 2


def test_set_can_mend_what_the_file_has_wrong() -> None:
    assert parse(changed("max_num_seqs: 16", "max_num_seqs: x"), "engine.max_num_seqs=4").engine.max_num_seqs == 4


def test_errors_of_a_setting_name_the_option_and_come_after_those_of_the_file() -> None:
    found = complaints(changed("count: 4", "count: two"), "engine.max_num_seqs=0")
    assert found == [
        f"s.yaml:{line_of('count:')}: device.count: found 'two'; expected a whole number",
        "--set engine.max_num_seqs=0: engine.max_num_seqs: found 0; must be >= 1",
    ]


def test_all_errors_come_at_once_in_the_order_of_the_file() -> None:
    text = changed("fit: first", "fit: frist").replace("rate: 2/s", "rat: 2/s").replace("910B3", "910B3\n  hbm: 1")
    found = complaints(text)
    lines = [int(one.split(":")[1]) for one in found]
    assert lines == [line_of("hbm: 1", text), line_of("rat:", text), line_of("frist", text)]


def test_a_wrong_item_is_not_reported_as_a_missing_one() -> None:
    """pydantic counts only the valid items of a list."""
    text = changed("page_size: 128", "page_size: 0").replace("  - kind: contiguous\n    fit: first\n", "")
    assert [line for line in complaints(text) if "at least 1 item" in line] == []
    assert any("page_size must be at least one token" in line for line in complaints(text))
    whole = VALID[: VALID.index("allocators:")] + "allocators: []\n"
    assert any("allocators: found an empty list; must have at least 1 item" in line for line in complaints(whole))


def test_an_unknown_key_names_the_nearest_and_all_that_are_allowed() -> None:
    found = complaints(changed("rate: 2/s", "rat: 2/s"))
    place = f"s.yaml:{line_of('rate:')}"
    assert found == [f"{place}: workload.arrivals.rat: unknown key; did you mean 'rate'? allowed: process, rate"]


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ("tensor_parallel_size: 2", "tensor_parallel_size: 3", "engine.tensor_parallel_size", "divide the 32"),
        ("count: 4", "count: 1", "device.count", "needs 2 devices"),
        ("max_model_len: 4096", "max_model_len: 131073", "engine.max_model_len", "131072"),
        ("on_oom: fail", "on_oom: fail\n  max_num_batched_tokens: 8", "engine.max_num_batched_tokens", ">= max_num_s"),
        (
            "on_oom: fail",
            "on_oom: fail\n  enable_chunked_prefill: false\n  max_num_batched_tokens: 4095",
            "engine.max_num_batched_tokens",
            ">= max_model_len (4096)",
        ),
        ("page_size: 128", "max_pages: unlimited", "allocators.1.max_pages", "only with engine.scheduler: replay"),
        ("page_size: 128", "max_pages: 9\n    safety_factor: 2", "allocators.1.safety_factor", "keep one"),
        ("page_size: 128", "label: ../../x", "allocators.1.label", "letters"),
        ("count: 4", "count: 4\n  kv_capacity_bytes: 1TiB", "device.kv_capacity_bytes", "1,099,511,627,776"),
        (
            "count: 4",
            "count: 4\n  hbm_bytes: 1GiB",
            "device.hbm_bytes",
            "larger than hbm_bytes (1,073,741,824)",
        ),
    ],
)
def test_parts_that_contradict_each_other_are_refused(old: str, new: str, key: str, says: str) -> None:
    text = changed(old, new)
    found = complaints(text)
    last_part = key.rsplit(".", 1)[1]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if f"{last_part}:" in line]
    assert len(found) == 1
    assert found[0].startswith(tuple(f"s.yaml:{line}: {key}: " for line in lines))
    assert says in found[0]


def test_of_many_allowed_names_the_likely_ones_are_listed_and_the_rest_counted() -> None:
    names = tuple(EngineConfig.model_fields)
    problem = Problem(message="unknown key", key="engine.max_num_seq", nearest="max_num_seqs", allowed=names)
    listed = str(problem).split("allowed: ")[1].split(", ")
    assert listed[0] == "max_num_seqs"
    assert "max_num_batched_tokens" in listed
    assert listed[-1] == f"... ({len(names)} in all)"
    assert len(listed) <= 8
    # A short list is shown whole, in its own order.
    assert str(Problem(message="x", allowed=("b", "a"))) == "x; allowed: b, a"


def test_unlimited_pages_are_allowed_in_replay() -> None:
    text = changed("page_size: 128", "max_pages: unlimited").replace(
        "on_oom: fail", "on_oom: fail\n  scheduler: replay\n  step_time: 10ms"
    )
    assert parse(text).allocators[1].max_pages == "unlimited"


def test_the_resolved_scenario_loads_to_the_same_scenario() -> None:
    for text in (VALID, starter_text()):
        first = parse(text, "engine.swap_bytes=3GiB", "device.hbm_sustained_bandwidth=1TB/s")
        again = parse(scenario_yaml(first.resolved()))
        assert dict(again) == dict(first)
        assert again.resolved() == first.resolved()
        assert again.loaded_device == first.loaded_device
        assert again.budget == first.budget


def test_a_text_that_looks_like_a_number_stays_a_text_when_resolved() -> None:
    first = parse(VALID, "name='1e9'", "description='0o7'")
    again = parse(scenario_yaml(first.resolved()))
    assert (again.name, again.description) == ("1e9", "0o7")


@pytest.mark.parametrize("name", scenario_names())
def test_every_shipped_scenario_loads_and_resolves(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description
    again = parse_scenario(scenario_yaml(scenario.resolved()), scenario.base_dir)
    assert again.resolved() == scenario.resolved()


def _unknown_keys(value: object, node: dict[str, object], definitions: dict[str, dict[str, object]]) -> set[str]:
    """Keys of ``value`` that no branch of the schema ``node`` knows: a small, independent reading of the schema."""
    while "$ref" in node:
        node = definitions[str(node["$ref"]).rsplit("/", 1)[1]]
    for word in ("anyOf", "oneOf", "allOf"):
        branches = node.get(word)
        if isinstance(branches, list):
            return min((_unknown_keys(value, branch, definitions) for branch in branches), key=len)
    if isinstance(value, list):
        items = node.get("items", {})
        assert isinstance(items, dict)
        return set().union(*(_unknown_keys(item, items, definitions) for item in value))
    properties = node.get("properties", {})
    assert isinstance(properties, dict)
    if not isinstance(value, dict):
        return set()
    found = set(value) - set(properties)
    for key in set(value) & set(properties):
        if "const" in properties[key] and properties[key]["const"] != value[key]:
            found.add(f"{key}={value[key]}")
        found |= _unknown_keys(value[key], properties[key], definitions)
    return found


def test_the_schema_knows_every_key_of_the_starter_and_of_a_resolved_scenario() -> None:
    schema = scenario_schema()
    for document in (yaml.safe_load(starter_text()), parse(VALID).resolved()):
        assert _unknown_keys(document, schema, schema["$defs"]) == set()
    assert _unknown_keys({"engine": {"max_seqs": 1}}, schema, schema["$defs"]) == {"max_seqs"}


def test_the_schema_lists_aliases_and_lets_sizes_be_spelled_with_units() -> None:
    definitions = scenario_schema()["$defs"]
    assert "block_size" in definitions["PagedConfig"]["properties"]
    kinds = {branch["type"] for branch in definitions["EngineConfig"]["properties"]["swap_bytes"]["anyOf"]}
    assert {"integer", "string"} <= kinds


def test_the_nearest_name_ignores_case_and_gives_up_on_nonsense() -> None:
    assert nearest_name("910b3", ["910B1", "910B3"]) == "910B3"
    assert nearest_name("max-num-seq", ["max_num_seqs", "max_model_len"]) == "max_num_seqs"
    assert nearest_name("zzzz", ["910B1"]) is None
