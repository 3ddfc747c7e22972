"""`datasets` reads from the files of `trl-grpo-plus export` what the traces hold."""

import json
import os
import re
import shlex
import tracemalloc
from itertools import groupby
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest
import synthetic_traces
import yaml

from trl_grpo_plus import traces
from trl_grpo_plus.cli import main
from trl_grpo_plus.cli.export import writers
from trl_grpo_plus.cli.export.columns import COLUMNS


JSON_COLUMNS = {name for name, column in COLUMNS.items() if column.kind == "json"}
PLACE = ("split", "step", "batch", "round", "group")
TEXTS = ["a\ud800b", "\udfff", "\0\u2028\r\n", "</script>|`x`", "{}", "2024-01-01", "", "👩‍👩‍👧\u202e"]


def hostile(step, number, split="train"):
    """Return a group of two attempts whose columns have other types than those of the next group."""
    text = TEXTS[number % len(TEXTS)]
    values = [1, "one", None, [1, "x"], {"a": {"b": 2**70}}, 0.5, text, [[]]]
    place = {"step": step, "split": split, "group": number, "size": 2, "prompt": f"{text} {number}"}
    first, second = (
        {"completion": text * 2, "reference": {"answer": values[number % len(values)], text: text}, "tokens": 0},
        {"completion": "b", "reference": {"answer": values[-1], "other": number}, "belief": None, "kl": 0.25},
    )
    first |= {"rewards": {"my.reward|`": None, "format": -1e-7}, "reward": None, "advantage": None, "kept": None}
    first |= {"belief": {"mean": 0.5, "std": 1e-30, "attempts": 3}, "advantages": [[1, 0.5], [2, -1.25]]}
    first |= {"extra": {"pred": values[(number + 1) % len(values)]}, "alarms": ["repetition", text]}
    second |= {"rewards": {"my.reward|`": 1.0, "format": 0.1}, "steps": {"format": [[3, 0.5]]}, "verdict": None}
    outcomes = {"outcomes": {"my.reward|`": "timeout", "format": "ok"}}
    return [synthetic_traces.row(**place, attempt=i, **outcomes, **one) for i, one in enumerate((first, second))]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    groups = [hostile(step, number) for step in range(6) for number in range(8)]
    groups += [
        hostile(step, number, split) for split in ("eval_a-b", "eval_a_b") for step in (0, 6) for number in (0, 1)
    ]
    about = {"rewards": {"my.reward|`": 1.0, "format": 0.0}, "num_generations": 2}
    return synthetic_traces.write_traces(tmp_path_factory.mktemp("runs") / "my_run", groups, about=about)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(writers, "CHUNK", 7)  # so that a file has several chunks


def exported(run, to, *options, output="out"):
    assert main.main(["export", str(run), "--to", to, "--output", output, *options]) == 0
    return Path(output)


def load(*args, **options):
    return datasets.load_dataset(*args, cache_dir="cache", **options)


def refused(capsys, *words):
    assert main.main(["export", *map(str, words)]) == 2
    return capsys.readouterr().err


def shown(text):
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def told(row):
    """Return the row that an export must have for a line of a trace."""
    row = {name: row.get(name) for name in COLUMNS}
    cleaned = {name: shown(value) for name, value in row.items() if isinstance(value, str)}
    return {**row, **cleaned, "alarms": [shown(alarm) for alarm in row["alarms"]]}


def read(row):
    return {k: json.loads(v) if k in JSON_COLUMNS and v is not None else v for k, v in row.items()}


def all_told(run, split=None):
    return [told(row) for group in traces.groups(run) for row in group if split in (None, row["split"])]


@pytest.mark.parametrize("to", ["parquet", "hf"])
def test_a_folder_is_read_as_what_the_traces_hold(run, to):
    folder = exported(run, to)
    loaded = load(str(folder))
    # `datasets` allows no "-" in the name of a split.
    assert set(loaded) == {"train", "eval_a_b", "eval_a_b_2"}
    for name, split in (("train", "train"), ("eval_a_b", "eval_a-b"), ("eval_a_b_2", "eval_a_b")):
        assert [read(row) for row in loaded[name]] == all_told(run, split)
    by_file = load("parquet", data_files=str(folder / "data" / "train-*.parquet"), split="train")
    assert by_file[:] == loaded["train"][:]
    assert (folder / "README.md").exists() == (to == "hf")


def test_a_file_of_json_lines_is_read_as_what_the_traces_hold(run):
    file = exported(run, "jsonl", output="new/out.jsonl")
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [read(row) for row in lines] == all_told(run)
    loaded = load("json", data_files=str(file), split="train")
    assert [read(row) for row in loaded] == all_told(run)


def test_the_schema_does_not_depend_on_what_is_chosen_nor_on_the_run(run, tmp_path):
    tame = [
        synthetic_traces.row(size=1, group=i, rewards={"my.reward|`": 0.0, "format": 1.0}, outcomes={})
        for i in range(3)
    ]
    other = synthetic_traces.write_traces(tmp_path / "tame", [[row] for row in tame])
    folders = [exported(run, "parquet", "--last", "1"), exported(other, "parquet", output="other")]
    schemas = [pq.read_schema(path) for folder in folders for path in (folder / "data").iterdir()]
    assert len(schemas) == 4
    assert all(schema == schemas[0] for schema in schemas)


MESSAGES = [
    [{"role": "user", "content": "hi"}],
    [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}],
    [{"role": "user", "content": [{"type": "text", "text": "see\ud800"}, {"type": "image", "image": "RGB 1x1"}]}],
    [],
    "a text",
]


def test_messages_stay_messages_and_a_text_among_them_becomes_one(tmp_path, capsys):
    group = [synthetic_traces.row(attempt=i, size=5, completion=messages) for i, messages in enumerate(MESSAGES)]
    folder = exported(synthetic_traces.write_traces(tmp_path / "run", [group]), "hf")
    assert "Prompts as text and completions as messages." in capsys.readouterr().out
    hi, call, picture, nothing, text = load(str(folder), split="train")["completion"]
    assert hi == [{"role": "user", "content": "hi", "other": None}]
    assert call[0]["content"] is None
    assert json.loads(call[0]["other"]) == {"tool_calls": MESSAGES[1][0]["tool_calls"]}
    assert (picture[0]["content"], json.loads(picture[0]["other"])) == (
        "see\ufffd",
        {"content": MESSAGES[2][0]["content"]},
    )
    assert nothing == []
    assert text == [{"role": "assistant", "content": "a text", "other": None}]


def test_a_prompt_that_is_neither_text_nor_messages_becomes_json(tmp_path):
    group = [synthetic_traces.row(attempt=i, size=2, prompt=prompt) for i, prompt in enumerate(["a", {"b": [1]}])]
    folder = exported(synthetic_traces.write_traces(tmp_path / "run", [group]), "parquet")
    assert [json.loads(prompt) for prompt in load(str(folder), split="train")["prompt"]] == ["a", {"b": [1]}]


def places(file):
    rows = [json.loads(line) for line in file.read_bytes().splitlines()]
    return {place: len(list(group)) for place, group in groupby(rows, key=lambda row: tuple(row[k] for k in PLACE))}


def test_a_share_is_of_whole_groups_and_the_same_each_time(run):
    some, again, more = (
        places(exported(run, "jsonl", "--share", share, output=f"{i}.jsonl"))
        for i, share in enumerate(("0.3", "0.3", "0.6"))
    )
    everything = places(exported(run, "jsonl"))
    assert some == again
    assert set(some) < set(more) < set(everything)
    assert {*some.values(), *more.values()} == {2}
    assert 0.15 * len(everything) < len(some) < 0.45 * len(everything)


def test_the_last_steps_of_each_split_and_a_split_alone(run):
    last = places(exported(run, "jsonl", "--last", "2"))
    assert {place[:2] for place in last} == {
        *(("train", step) for step in (4, 5)),
        *((split, step) for split in ("eval_a-b", "eval_a_b") for step in (0, 6)),
    }
    one = places(exported(run, "jsonl", "--last", "1", "--split", "eval_a-b", output="one.jsonl"))
    assert {place[:2] for place in one} == {("eval_a-b", 6)}


def test_dropped_columns_are_in_no_file_and_the_others_are_named(run, capsys):
    folder = exported(run, "hf", "--drop", "answer", "completion", "--drop", "extra")
    said = capsys.readouterr().out
    assert re.match(r"out: 56 groups, 112 attempts, \d\.\d\d MB\n", said)
    assert "Whoever gets this table can read: prompts, the reference, with any gold answers (" in said
    assert "answer" not in said.partition("gold answers (")[2]
    rows = load(str(folder), split="train")
    assert {"completion", "extra"} & set(rows.column_names) == set()
    expected = [
        {key: value for key, value in row["reference"].items() if key != "answer"} for row in all_told(run, "train")
    ]
    assert [json.loads(text) for text in rows["reference"]] == expected
    assert "without completion, extra, reference.answer." in (folder / "README.md").read_text()


def test_a_name_that_is_a_column_and_a_key_of_the_reference_drops_both(tmp_path):
    run = synthetic_traces.write_traces(
        tmp_path / "run", [[synthetic_traces.row(size=1, reference={"tokens": "gold", "b": 1})]]
    )
    both, key = (exported(run, "jsonl", "--drop", n, output=f"{n}.jsonl") for n in ("tokens", "reference.tokens"))
    assert [
        ("tokens" in row, json.loads(row["reference"])) for row in map(json.loads, [both.read_text(), key.read_text()])
    ] == [
        (False, {"b": 1}),
        (True, {"b": 1}),
    ]


def test_the_card_names_run_version_files_columns_and_weights(run, capsys):
    text = (exported(run, "hf", "--share", "0.5") / "README.md").read_text(encoding="utf-8")
    head = yaml.safe_load(text.split("---")[1])
    assert head["size_categories"] == ["n<1K"]
    for one in head["configs"][0]["data_files"]:
        assert list(Path("out").glob(one["path"]))
    for row in (r"`format` \| 0, a monitor", r"`my.reward__` \| 1.0", *(rf"`{name}` \|" for name in COLUMNS)):
        assert re.search(rf"^\| {row}", text, re.MULTILINE), row
    assert f"trl_grpo_plus {main.__version__}" in text
    assert "GRPO run my_run" in text
    upload = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert upload == ["hf", "upload", "NAME/out", "out", "--repo-type", "dataset", "--private"]


def test_refusals_name_the_nearest_name_or_the_wrong_option(run, capsys):
    assert "Did you mean answer?" in refused(capsys, run, "--to", "jsonl", "--drop", "answr")
    assert "Did you mean eval_a_b or eval_a-b?" in refused(capsys, run, "--to", "jsonl", "--split", "eval_ab")
    assert "no column is left" in refused(capsys, run, "--to", "jsonl", "--drop", *COLUMNS)
    for option, value in (("--share", 0), ("--share", 1.5), ("--share", "nan"), ("--last", 0)):
        assert option in refused(capsys, run, "--to", "jsonl", option, value)
    assert "Raise it" in refused(capsys, run, "--to", "hf", "--share", 1e-9)
    assert "is not a folder" in refused(capsys, "nowhere", "--to", "hf")
    assert os.listdir() == []


def test_nothing_is_overwritten_unless_it_is_an_export_and_said(run, capsys):
    exported(run, "hf", "--last", "1")
    small = load("out", split="train").num_rows
    assert "--overwrite" in refused(capsys, run, "--to", "parquet", "--output", "out")
    assert "writes a file" in refused(capsys, run, "--to", "jsonl", "--output", "out", "--overwrite")
    exported(run, "parquet", "--overwrite")
    assert not Path("out", "README.md").exists()
    assert load("out", split="train").num_rows == 6 * small
    Path("out", "notes.txt").write_text("mine")
    assert "notes.txt" in refused(capsys, run, "--to", "hf", "--output", "out", "--overwrite")
    exported(run, "jsonl", output="out.jsonl")
    assert "--overwrite" in refused(capsys, run, "--to", "jsonl", "--output", "out.jsonl")
    inside = run / "rollouts" / "train-00000000.jsonl"
    assert "among the run's own files" in refused(capsys, run, "--to", "jsonl", "--output", inside, "--overwrite")
    assert sorted(os.listdir()) == ["cache", "out", "out.jsonl"]


@pytest.mark.parametrize("to", ["jsonl", "parquet", "hf"])
def test_an_interrupted_export_leaves_no_file_and_keeps_the_old_export(run, to, monkeypatch):
    exported(run, to)
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    done, flat = [], writers.flat

    def cut(*args):
        done.append(args)
        if len(done) == 60:
            raise KeyboardInterrupt
        return flat(*args)

    monkeypatch.setattr(writers, "flat", cut)
    assert main.main(["export", str(run), "--to", to, "--output", "out", "--overwrite"]) == 130
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    assert len(os.listdir()) == 1


def test_the_old_export_comes_back_if_the_new_one_cannot_be_put_in_place(run, monkeypatch):
    exported(run, "parquet")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    rename = Path.rename

    def cut(path, target):
        if re.fullmatch(r"\.out\.\d+", path.name):
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", cut)
    assert main.main(["export", str(run), "--to", "hf", "--output", "out", "--overwrite"]) == 130
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_damaged_line_is_named(tmp_path, capsys):
    group = [synthetic_traces.row(attempt=i, size=2, step=3, tokens=tokens) for i, tokens in enumerate([1, "many"])]
    error = refused(
        capsys, synthetic_traces.write_traces(tmp_path / "run", [group]), "--to", "parquet", "--output", "out"
    )
    assert "tokens of split train, step 3, batch 0, round 0, group 0, attempt 1" in error
    assert os.listdir() == ["run"]


def test_a_run_that_ended_before_its_first_group_was_whole(tmp_path, capsys):
    folder = tmp_path / "run" / "rollouts"
    folder.mkdir(parents=True)
    (folder / "train-00000000.jsonl").write_text(
        json.dumps(synthetic_traces.row(step=0, split="train", size=2)) + "\n"
    )
    for more in ([], ["--split", "train"], ["--last", 1]):
        assert "holds no whole group" in refused(capsys, tmp_path / "run", "--to", "jsonl", *more)


def test_columns_that_this_version_does_not_know_are_named(tmp_path, capsys):
    exported(synthetic_traces.write_traces(tmp_path / "run", [[synthetic_traces.row(size=1, mood="good")]]), "jsonl")
    assert "does not know them: mood." in capsys.readouterr().out


def test_a_run_of_stock_trl(tmp_path):
    rows = {
        "step": [1, 1],
        "prompt": ["a", "a"],
        "completion": ["b", "c"],
        "score": [0.0, 1.0],
        "advantage": [-1.0, 1.0],
    }
    (tmp_path / "run" / "completions").mkdir(parents=True)
    datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "run" / "completions" / "completions_00001.parquet")
    loaded = load(str(exported(tmp_path / "run", "hf")), split="train")
    assert (loaded["completion"], loaded["rewards"]) == (["b", "c"], [{"score": 0.0}, {"score": 1.0}])


def test_no_more_than_a_chunk_is_held(tmp_path, monkeypatch):
    sizes, made = [], writers.pa.Table

    class Table:
        @staticmethod
        def from_pylist(rows, schema):
            sizes.append(len(rows))
            return made.from_pylist(rows, schema)

    monkeypatch.setattr(writers.pa, "Table", Table)
    exported(synthetic_traces.write_run(tmp_path / "run", steps=5, length=1), "parquet")
    assert (max(sizes), sum(sizes)) == (writers.CHUNK, 120)


@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_memory_does_not_grow_with_the_run(tmp_path, to):
    """The peak is the same with eight times as many groups, in as many files (the names of files stay in memory)."""
    peaks = []
    for each in (1, 8):
        places = [(step, number) for step in range(20) for number in range(each)]
        groups = [synthetic_traces.group([1.0, 0.0], length=300, step=step, group=number) for step, number in places]
        run = synthetic_traces.write_traces(tmp_path / f"run{each}", groups)
        del groups
        exported(run, to, output=f"before{each}")  # imports at the first use do not count
        tracemalloc.start()
        exported(run, to, output=f"out{each}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0], peaks


def test_an_advantage_of_a_token_that_is_not_known_stays_unknown(tmp_path, capsys):
    rows = [synthetic_traces.row(size=1, completion="abc", advantages=[[2, None], [3, 1.0]])]
    exported(synthetic_traces.write_traces(tmp_path / "run", [rows]), "parquet", output=str(tmp_path / "out"))
    (path,) = (tmp_path / "out").rglob("*.parquet")
    assert pq.read_table(path)["advantages"].to_pylist() == [[[2.0, None], [3.0, 1.0]]]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ((), "all that was traced"),
        (("--split", "train"), "the split train"),
        (("--last", "2"), "the last 2 steps of each split"),
        (("--split", "train", "--share", "0.9"), "0.9 of the groups, chosen by a hash, from the split train"),
    ],
)
def test_the_card_tells_what_part_was_exported(run, options, part):
    assert f": {part}" in (exported(run, "hf", *options) / "README.md").read_text(encoding="utf-8")
