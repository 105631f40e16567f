"""Inputs that somebody thought of later, in all commands: each has an answer, quickly, and says what was wrong."""

import gzip
from pathlib import Path

import pytest
from scenario_text import VALID

import cli

HEAD = "arrived_at,prompt_tokens,output_tokens\n"
BIG = "9" * 30


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(VALID)
    return tmp_path


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says on stderr when it ends with 2."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    said = capsys.readouterr()
    assert ended.value.code == 2, said.err
    assert said.out == "" and "Traceback" not in said.err
    return said.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        # as long as the number itself, a list was made before anything ran
        ("run s.yaml --no-report --replications 10000000000", "less than or equal to 100000"),
        ("sweep s.yaml --grid engine.max_num_seqs=4,8 --replications 1000000000", "less than or equal to 100000"),
        ("compare s.yaml --replications 10000000000", "less than or equal to 100000"),
        ("size s.yaml --max-replications 10000000000", "less than or equal to 100000"),
        ("kernel s.yaml --batch 1000000000000000", "less than or equal to 100000"),
        (f"kernel s.yaml --context {BIG}", "less than or equal to 100000000"),
        # an empty shell variable is not this folder
        ("run s.yaml --out=", "--out: is empty: name a folder or a file, '.' for this folder"),
        (f"explain s.yaml --request {BIG}", "there is no such request"),
        (f"memory --model llama-3.1-8b --device 910B3 --count {BIG}", "must divide the 32 attention heads"),
        ("cache-curve /dev/zero", "not a regular file"),
        ("calibrate s.yaml /dev/null", "is not a regular file"),
        ("compare s.yaml --vary engine.max_num_seqs=1:1000000000:1", "more than 100,000 values"),
        ("size s.yaml --target-oom nan", "nan is no limit"),
        ("init /proc/x.yaml", "cannot be written"),
        ("report /proc", "a results folder is needed"),
        ("run s.yaml --set engine.max_num_seqs=\uff11\uff16", "expected a whole number"),
        ("run s.yaml --set allocators[0].page_size=16", "did you mean 'allocators'?"),
        ("run s.yaml --set .=1", "a part of the dotted key is empty"),
        ('run s.yaml --set name="../../x"', "may not hold slashes"),
    ],
)
def test_an_odd_word_is_refused(words: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(words.split(" "), capsys)


@pytest.mark.parametrize("command", ["run", "kernel", "compare"])
def test_an_empty_name_of_a_folder_is_refused_by_every_command(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--out: is empty" in refusal([command, "s.yaml", "--out", ""], capsys)
    assert [path.name for path in folder.iterdir()] == ["s.yaml"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("zeros.csv", HEAD.encode() + b"0,5,5\n" + bytes(100), "3: found 1 cells"),
        ("open.csv", HEAD.encode() + b'"' + b"x" * 200_000, "not a readable CSV row"),
        ("bomb.csv.gz", gzip.compress(bytes(200_000_000), 1), "line is longer than 16777216 bytes"),
        ("semicolons.csv", HEAD.replace(",", ";").encode(), "no known trace"),
        ("empty.csv", HEAD.encode(), "no request is left"),
        ("far.csv", HEAD.encode() + b"1e308,5,5\n", "allowed: seconds from 0"),
        ("deep.jsonl", b'{"timestamp": 0, "hash_ids": ' + b"[" * 50_000 + b"\n", "not a JSON object"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_an_odd_trace_is_refused(
    name: str, content: bytes, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).write_bytes(content)
    told = refusal(["run", "s.yaml", "--set", f"workload={{arrivals: {{process: trace, path: {name}}}}}"], capsys)
    assert told.startswith(name) and says in told


def test_a_file_that_fails_while_it_is_read_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(["run", "s.yaml", "--set", "workload={arrivals: {process: trace, path: /proc/self/mem}}"], capsys)
    assert told.startswith("/proc/self/mem: cannot be read")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[" * 5000 + "]" * 5000, "exceeded maximum nesting depth"),
        (VALID + "---\n" + VALID, "more than one YAML document"),
        (VALID + "x: &a {b: 1}\ny: {<<: *a}\n", "anchor '&a' is refused"),
        (VALID + "x" * 100_000 + ": 1\n", "is not valid YAML"),
    ],
)
def test_an_odd_scenario_is_refused(content: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "odd.yaml").write_text(content)
    assert says in refusal(["run", "odd.yaml"], capsys)
