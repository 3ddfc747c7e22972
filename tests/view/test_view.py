"""The data of a page, read back from its file as the browser reads it."""

import base64
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic_traces

from trl_grpo_plus import traces
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.rollouts.verdicts import VERDICTS
from trl_grpo_plus.traces import best_first, entry, trl_completions
from trl_grpo_plus.traces.group_line import believed
from trl_grpo_plus.utils import files
from trl_grpo_plus.utils.text import as_text
from trl_grpo_plus.view import page as view
from trl_grpo_plus.view import panel, write_comparison, write_page
from trl_grpo_plus.view.calibration import calibration
from trl_grpo_plus.view.file_index import without_files
from trl_grpo_plus.view.group_data import Tally, by_name, curves, detail, thin, utf16
from trl_grpo_plus.view.overview import before_after, metrics_table, opening, telling
from trl_grpo_plus.view.size_budget import fitting, in_turn


HOSTILE = "</script><script>alert(1)</script><!-- \u2028 \x00 \ud800 \udfff \u202eRTL \x1b[31mred <b>&amp;"


def read(page):
    """Return head, list and texts of a page."""
    blocks = re.findall(r'<script type="application/(json|deflate)" id="([\w-]+)">(.*?)</script>', page, re.DOTALL)
    read = {}
    for kind, name, text in blocks:
        raw = zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS).decode() if kind == "deflate" else text
        read[name] = json.loads(raw, parse_constant=pytest.fail)
    chunks = [read.pop(f"chunk-{n}") for n in range(len(read["index"]["chunks"]))]
    assert set(read) - {"lists", "metrics"} == {"head", "index"}
    groups = [group for chunk, n in zip(chunks, read["index"]["chunks"], strict=True) for group in chunk[:n]]
    return read["head"], read["index"], groups


def page_of_run(run, out, **options):
    """Write the page of a run, and return what `write_page` returns, and head, list and texts of the page."""
    written = write_page(run, out, **options)
    return written, *read(written.path.read_text())


def page_of(folder, groups, max_mb=100, **journals):
    return page_of_run(
        synthetic_traces.write_traces(folder, groups, **journals), folder / "report.html", max_mb=max_mb
    )


def room_for(mb):
    """Return the `max_mb` that leaves `mb` for data, beside the scripts and styles of a page."""
    return mb + sum(map(len, view._template())) / 1e6


def column(index, name):
    values = index["groups"][name]
    return [None if value < 0 else index["words"][value] for value in values]


# -- the whole page


def test_names_that_packages_import_lazily_exist():
    import trl_grpo_plus.view as face

    for name in traces._LAZY:
        value = getattr(traces, name)
        assert getattr(value, "__module__", value.__name__).startswith("trl_grpo_plus.traces.")
    for name in ("Trackers", "failed_in"):
        assert getattr(face, name).__module__ == "trl_grpo_plus.view.trackers"


def test_a_page_is_written_without_torch(tmp_path):
    """torch takes a second to import, and a run can be viewed on a laptop that has no torch."""
    run = synthetic_traces.write_run(tmp_path / "run")
    script = f"""
import sys
from trl_grpo_plus.cli.main import main
assert main(["view", {str(run)!r}, "-o", {str(tmp_path / "page.html")!r}]) == 0
assert not {{"torch", "transformers", "trl", "datasets", "accelerate"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_page_holds_every_group_and_every_text(tmp_path):
    run = synthetic_traces.write_run(tmp_path, steps=3, groups=5, size=4)
    written, head, index, groups = page_of_run(run, tmp_path / "report.html")
    assert (written.groups_total, written.groups_written) == (15, 15)
    assert (written.attempts_total, written.attempts_written) == (60, 60)
    assert written.bytes == written.path.stat().st_size
    assert head["groups"] == head["groups_total"] == 15
    assert index["groups"]["step"] == sorted(index["groups"]["step"])
    lines = [line for path in sorted((run / "rollouts").glob("train*")) for line in path.read_text().splitlines()]
    texts = sorted(json.loads(line)["completion"] for line in lines)
    assert sorted(attempt["text"] for group in groups for attempt in group["attempts"]) == texts
    assert len(index["rewards"]) == sum(index["groups"]["size"]) == 60


def test_evaluations_stand_after_the_training_of_their_step(tmp_path):
    rows = [
        synthetic_traces.group([1.0, 0.0], step=step, split=split)
        for step in (0, 1)
        for split in ("train", "eval_easy")
    ]
    _, _, index, _ = page_of(tmp_path, rows)
    assert column(index, "split") == ["train", "eval_easy", "train", "eval_easy"]
    assert index["groups"]["step"] == [0, 0, 1, 1]


def test_a_page_loads_nothing(tmp_path):
    page = write_page(synthetic_traces.write_run(tmp_path), tmp_path / "report.html").path.read_text()
    names = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}  # XML namespaces
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) == names
    assert not re.search(r"<(link|img|iframe|object|embed|base)\b|@import|url\(", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        inline = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_scripts_never_make_markup_of_text():
    scripts = "".join(path.read_text() for path in (Path(view.__file__).parent / "viewer").glob("*.js"))
    assert "createElement" in scripts
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|console\."
    assert not re.search(forbidden, scripts)


def test_hostile_texts_come_back_as_they_were(tmp_path):
    rows = synthetic_traces.group([1.0, 0.0], prompt=HOSTILE, reference={HOSTILE: HOSTILE}, extra={"a": HOSTILE})
    rows = [{**row, "completion": HOSTILE} for row in rows]
    alarm = {"step": 0, "name": HOSTILE, "message": HOSTILE, "groups": [[0, 0, 0]]}
    written, head, index, [group] = page_of(tmp_path, [rows], alarms=[alarm])
    assert [attempt["text"] for attempt in group["attempts"]] == [HOSTILE] * 2
    assert group["prompt"] == [[None, HOSTILE]]
    assert group["reference"] == [[HOSTILE, HOSTILE]]
    assert head["alarms"][0]["times"][0]["message"] == HOSTILE
    assert HOSTILE in index["words"]
    for page in (written.path.read_bytes(), panel([rows], HOSTILE).encode()):
        assert b"alert(1)</script>" not in page
        assert b"\x00" not in page
        assert page.count(b"<script") == page.count(b"</script>") == 5
    assert read(panel([rows], HOSTILE))[2] == [group]


@pytest.mark.parametrize("name", ["my-run", "<b>\udcff"], ids=["plain", "hostile"])
def test_a_page_has_the_name_of_its_run_if_made_from_the_rollouts_folder_too(tmp_path, name):
    run = synthetic_traces.write_run(tmp_path / name)
    for folder in (run, run / "rollouts"):
        _, head, *_ = page_of_run(folder, tmp_path / "new" / "r.html")
        assert head["title"] == name


def test_numbers_that_are_not_finite_are_null(tmp_path):
    nan, inf = float("nan"), float("inf")
    bad = {"reward": nan, "advantage": inf, "kl": -inf, "rewards": {"accuracy": nan}}
    rows = [{**row, **bad} for row in synthetic_traces.group([1.0, 0.0])]
    _, head, index, [group] = page_of(tmp_path, [rows], metrics=[{"step": 1, "reward": float("nan"), "kl": 0.5}])
    assert index["rewards"] == [None, None]
    assert group["attempts"][0]["parts"] == [["accuracy", None, "ok"]]
    assert [group["attempts"][0][key] for key in ("reward", "advantage", "kl")] == [None] * 3
    assert [curve["title"] for curve in head["curves"]] == ["verdicts", "KL", "tokens"]


# -- room


def test_no_page_is_larger_than_allowed_and_groups_stay_whole(tmp_path):
    run = synthetic_traces.write_run(tmp_path, steps=10, groups=20, size=4, length=400)
    whole = write_page(run, tmp_path / "whole.html")
    written, head, index, groups = page_of_run(run, tmp_path / "report.html", max_mb=0.3)
    assert whole.bytes > 300_000 >= written.bytes > 200_000
    assert 0 < written.groups_written < written.groups_total == whole.groups_written == 200
    assert written.attempts_written == 4 * written.groups_written
    assert [len(group["attempts"]) for group in groups] == index["groups"]["size"] == [4] * written.groups_written
    counts = (head["groups"], head["groups_total"], head["attempts"], head["attempts_total"])
    assert counts == (written.groups_written, 200, written.attempts_written, 800)


def test_groups_that_are_left_out_are_spread_over_the_steps(tmp_path):
    places = [{"step": step, "group": group} for step in range(16) for group in range(8)]
    rows = [synthetic_traces.group([1.0, 0.0], length=300, **place) for place in places]
    written, _, index, _ = page_of(tmp_path, rows, max_mb=room_for(0.085))
    kept = [index["groups"]["step"].count(step) for step in range(16)]
    assert written.groups_written < 128
    assert max(kept) - min(kept) <= 1


def test_even_few_groups_are_spread_over_the_steps():
    order = in_turn(np.arange(64), np.ones(64, int)).tolist()
    assert sorted(fitting([(step, 10) for step in order], room=85)) == list(range(0, 64, 8))


def test_groups_are_chosen_by_rank_and_then_in_turn_over_the_steps():
    whens, ranks = np.array([0, 0, 0, 1, 1, 2]), np.array([1, 1, 0, 1, 2, 1])
    assert in_turn(whens, ranks).tolist() == [2, 0, 5, 3, 1, 4]
    assert in_turn(whens[:0], ranks[:0]).tolist() == []
    assert fitting([(4, 5), (2, 9), (7, 3)], room=8) == [4, 7]


def test_groups_that_alarms_name_and_live_ones_stay_first(tmp_path):
    def made(scores, count, first, steps):
        return [
            synthetic_traces.group(scores, length=300, seed=i, step=steps[i % 4], group=first + i)
            for i in range(count)
        ]

    rows = made([1.0, 1.0], 60, 0, range(4)) + made([1.0, 0.0], 60, 100, range(4)) + made([0.0, 0.0], 10, 200, [3] * 4)
    alarm = {"step": 3, "name": "repetition", "message": "", "groups": [[0, 0, 200 + i] for i in range(10)]}
    written, _, index, _ = page_of(tmp_path, rows, max_mb=room_for(0.035), alarms=[alarm])
    kept = index["groups"]["group"]
    assert sum(group >= 200 for group in kept) == 10
    assert 0 < sum(100 <= group < 200 for group in kept) < 60
    assert not any(group < 100 for group in kept)
    assert written.groups_total == 130


def test_a_limit_that_leaves_no_room_names_one_that_does(tmp_path):
    run = synthetic_traces.write_run(tmp_path)
    with pytest.raises(ValueError, match=r"max_mb=0.01 leaves no room.*needs (\d+\.\d+) or more") as error:
        write_page(run, tmp_path / "report.html", max_mb=0.01)
    least = float(re.search(r"needs ([\d.]+) or", str(error.value))[1])
    assert write_page(run, tmp_path / "report.html", max_mb=least).groups_written > 0
    with pytest.raises(ValueError, match="leaves no room"):
        write_page(run, tmp_path / "report.html", max_mb=least - 0.02)


# -- files


def test_a_folder_without_traces_and_a_folder_as_output_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has no traces"):
        write_page(tmp_path, tmp_path / "report.html")
    with pytest.raises(ValueError, match="no group in them is whole yet"):
        page_of(tmp_path, [synthetic_traces.group([1.0, 0.0])[:1]])
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(ValueError, match=r"is a folder.*report\.html"):
        write_page(synthetic_traces.write_run(tmp_path), tmp_path)


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize(
    ("place", "why"), [("/proc/x.html", "the user .* may not write into /proc"), ("FILE/x.html", ".*FILE is a file")]
)
def test_a_place_that_cannot_be_written_is_named_as_given(tmp_path, capsys, runs, place, why):
    folders = [str(synthetic_traces.write_run(tmp_path / str(number))) for number in range(runs)]
    (tmp_path / "FILE").touch()
    place = place.replace("FILE", str(tmp_path / "FILE"))
    assert main(["view", *folders, "-o", place]) == 2
    assert re.match(rf"error: {place} cannot be written: {why}.* Name another file\.\n$", capsys.readouterr().err)


def test_a_file_that_cannot_be_put_in_place_is_named_itself(tmp_path):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(OSError, match=rf": '{tmp_path}/page.html'$"):
        files.replace(tmp_path / "page.html", [b""])


def test_a_page_that_fails_leaves_the_old_one(tmp_path):
    run = synthetic_traces.write_run(tmp_path)
    old = write_page(run, tmp_path / "report.html").path.read_bytes()
    (run / "rollouts" / "train-00000003.jsonl").write_text('{"batch": broken\n')
    with pytest.raises(ValueError, match="Expecting value"):
        write_page(run, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == old
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "rollouts"}


def test_the_next_page_removes_what_killed_processes_left_of_it(tmp_path):
    """A younger file may be that of a process that writes the same page at this moment."""
    runs = [synthetic_traces.write_run(tmp_path / name, steps=1) for name in ("one", "two")]
    names = [f".{page}.{end}" for page in ("report.html", "compare.html") for end in ("12", "now", "99")]
    for name in names:
        (tmp_path / name).write_text("<html>")
        age = 0 if name.endswith("99") else files.ABANDONED_S + 60
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    write_page(runs[0], tmp_path / "report.html")
    write_comparison(runs, tmp_path / "compare.html")
    left = {path.name for path in tmp_path.glob(".*")}
    assert left == {name for name in names if not name.endswith("12")}


def test_a_page_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", refuse)
    run = synthetic_traces.write_run(tmp_path)
    with pytest.raises(OSError, match="no space left"):
        write_page(run, tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts"]


# -- a group


def test_attempts_and_dots_are_sorted_by_advantage_then_reward():
    marks = [(0.5, 1.0), (None, 3.0), (-0.5, 2.0), (0.5, 2.0), (None, None)]
    rows = [{"attempt": i, "advantage": a, "reward": r} for i, (a, r) in enumerate(marks)]
    assert [row["attempt"] for row in best_first(rows)] == [3, 0, 2, 1, 4]
    rows = synthetic_traces.group([0.0, 1.0, 0.0, 1.0])
    assert entry(rows)["rewards"] == [2.0, 2.0, 1.0, 1.0]
    assert [attempt["attempt"] for attempt in detail(rows)["attempts"]] == [1, 3, 0, 2]


def test_an_attempt_shows_the_prompt_that_an_environment_gave_it_alone():
    asked = [[{"role": "user", "content": text}] for text in ("01", "02", "01")]
    rows = [synthetic_traces.row(attempt=i, prompt=prompt, extra={"note": 5}) for i, prompt in enumerate(asked)]
    shown = detail(rows)
    assert shown["prompt"] == [["user", "01"]]
    notes = {attempt["attempt"]: attempt["extra"] for attempt in shown["attempts"]}
    assert notes == {0: [["note", "5"]], 1: [["its prompt", "02"], ["note", "5"]], 2: [["note", "5"]]}


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("no answer", None),
        ("so \\boxed{42}.", "42"),
        ("\U0001f600\U0001f600 <answer>4\U0001f600</answer>", "4\U0001f600"),
        ([{"role": "assistant", "content": "\U0001f600 calls"}, {"role": "assistant", "content": "#### 7"}], "7"),
    ],
)
def test_the_place_of_the_answer_is_counted_in_utf16_units(completion, answer):
    [attempt] = detail([synthetic_traces.row(completion=completion)])["attempts"]
    units, place = attempt["text"].encode("utf-16-le"), attempt["answer"]
    assert (place and units[2 * place[0] : 2 * place[1]].decode("utf-16-le")) == answer
    assert attempt["text"] == as_text(completion)


def test_messages_keep_their_roles():
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "\n\n  Add 2 and 2 \nnow"}]
    completion = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]},
        {"role": "tool", "content": [{"type": "text", "text": "\U0001f6004"}, {"type": "image"}]},
        {"role": "assistant", "content": "4"},
    ]
    group = detail([synthetic_traces.row(prompt=prompt, completion=completion)])
    [attempt] = group["attempts"]
    assert group["prompt"] == [["system", "Be brief."], ["user", "\n\n  Add 2 and 2 \nnow"]]
    assert [role for role, _ in attempt["roles"]] == ["assistant", "tool", "assistant"]
    assert attempt["text"] == as_text(completion)
    assert sum(length + 1 for _, length in attempt["roles"]) - 1 == utf16(attempt["text"])
    begun = [*prompt, {"role": "assistant", "content": "Well,"}]
    assert entry([synthetic_traces.row(prompt=begun)])["title"] == "Add 2 and 2"


def test_the_entropy_of_answers_ignores_how_an_answer_is_written():
    def entropy(*texts):
        return entry([synthetic_traces.row(attempt=k, completion=text) for k, text in enumerate(texts)])["entropy"]

    assert entropy("so \\boxed{4}", "it is <answer> 4 </answer>", "four: \\boxed{4}", "4") == 0.0
    assert entropy("\\boxed{4}", "\\boxed{4}", "\\boxed{5}", "#### 5") == 1.0
    assert entropy("\\boxed{4}", "\\boxed{4}", "\\boxed{5}", "no answer") == 1.5
    assert entropy("one", "two", "three") == 1.585
    assert entropy("\\boxed{4}") is None
    turns = [{"role": "assistant", "content": "\\boxed{4}"}, {"role": "assistant", "content": "or \\boxed{5}"}]
    assert entropy(turns, "\\boxed{5}") == 0.0


@pytest.mark.parametrize(
    ("completion", "stretches"),
    [
        ("ab\U0001f600cd", ["ab\U0001f600", "cd"]),
        ([{"role": "assistant", "content": "abcde"}], ["abc", "de"]),
        (
            [
                {"role": "assistant", "content": "\U0001f600", "tool_calls": [{"function": {"name": "add"}}]},
                {"role": "tool", "content": "\U0001f6004"},
                {"role": "assistant", "content": "a\U0001f600cde"},
                {"role": "tool", "content": "5"},
            ],
            ["a\U0001f600c", "de"],
        ),
    ],
    ids=["text", "message", "messages"],
)
def test_places_of_credit_are_counted_in_utf16_units(completion, stretches):
    steps = {"a": [[3, 1.0], [5, -1.0]], "b": [[3, 0.0]], "none": []}
    row = synthetic_traces.row(completion=completion, advantages=[[3, 0.5], [5, -0.25]], steps=steps)
    [attempt] = detail([row])["attempts"]
    units = attempt["text"].encode("utf-16-le")
    found = [(units[2 * start : 2 * end].decode("utf-16-le"), value) for start, end, value in attempt["heat"]]
    assert found == list(zip(stretches, [0.5, -0.25], strict=True))
    (_, third, _), (_, last, _) = attempt["heat"]
    assert attempt["steps"] == [[third, 1.0, "a"], [third, 0.0, "b"], [last, -1.0, "a"]]


def test_an_attempt_without_credit_has_no_credit_fields():
    [attempt] = detail([synthetic_traces.row(steps={"a": []})])["attempts"]
    assert not {"heat", "steps"} & attempt.keys()


def test_a_group_holds_values_of_other_types_as_text():
    rows = synthetic_traces.group([1.0, 0.0, 1.0, 0.0], prompt="a prompt like no other")
    assert json.dumps(detail(rows)).count("a prompt like no other") == 1
    reference = {"answer": "42", "tests": ["é", 1], "large": 12345678901234567890}
    scored = {"rewards": {"a": None, "b": 0.5}, "outcomes": {"a": "timeout", "b": "ok"}}
    group = detail(
        [synthetic_traces.row(prompt=["a", 1], completion=None, reference=reference, extra={"odd": None}, **scored)]
    )
    assert group["prompt"] == [[None, '["a", 1]']]  # neither a text nor messages
    assert group["reference"] == [["answer", "42"], ["tests", '["é", 1]'], ["large", "12345678901234567890"]]
    assert group["attempts"][0]["extra"] == [["odd", "null"]]
    assert group["attempts"][0]["parts"] == [["a", None, "timeout"], ["b", 0.5, "ok"]]


# -- beliefs


BELIEF = {"mean": 0.4, "std": 0.49, "attempts": 3.5}


def test_a_group_says_what_was_believed_and_what_it_earned():
    rows = [{"reward": r, "rewards": {"a": 10 * r}, "belief": BELIEF} for r in (0.0, 1.0, 0.5)]
    assert believed(rows) == [0.4, 0.49, 3.5, 0.5]
    assert believed([*rows, {**rows[0], "reward": None}]) == [0.4, 0.49, 3.5, 0.5]
    assert believed([{**rows[0], "reward": float("nan")}]) == [0.4, 0.49, 3.5, None]
    assert believed([{**row, "belief": {**BELIEF, "of": "a"}} for row in rows]) == [0.4, 0.49, 3.5, 5.0, "a"]
    assert believed([{**rows[0], "belief": {"mean": 1, "of": [HOSTILE]}}]) == [1, None, None, None, str([HOSTILE])]
    for nothing in (None, {}, 0.5, {"mean": None}, {"mean": float("inf")}):
        assert believed([{**rows[0], "belief": nothing}]) is None
    assert believed([{"reward": 1.0}]) is None


def calibrated(pairs):
    return calibration(*np.array(pairs).reshape(-1, 3).T)


def test_calibration_is_by_tenths_over_all_steps_and_the_last_quarter():
    pairs = [(0, 0.0, 0.5), (0, 0.05, 0.0), (2, 0.31, 0.25), (5, 0.39, 0.75), (9, 1.0, 1.0)]
    made = calibrated(pairs)
    assert made["range"] == [0.0, 1.0]
    every, last = made["spans"]
    assert every == {"steps": [0, 9], "tenths": [[2, 0.025, 0.25], [2, pytest.approx(0.35), 0.5], [1, 1.0, 1.0]]}
    assert last == {"steps": [9, 9], "tenths": [[1, 1.0, 1.0]]}
    assert len(calibrated(pairs[:3])["spans"]) == 1
    assert calibrated([]) is None


def test_calibration_takes_rewards_of_any_range():
    made = calibrated([(0, -1.0, 0.0), (0, 2.9, 3.0), (0, 3.0, 1.0)])
    assert made["range"] == [-1.0, 3.0]
    assert made["spans"][0]["tenths"] == [[1, -1.0, 0.0], [2, pytest.approx(2.95), 2.0]]
    made = calibrated([(0, 2.0, 2.0)])
    assert made["range"] == [0.0, 2.0]
    assert made["spans"][0]["tenths"] == [[1, 2.0, 2.0]]


def test_calibration_counts_groups_that_found_no_room(tmp_path):
    places = [{"step": step, "group": group} for step in range(16) for group in range(8)]
    rows = [synthetic_traces.group([1.0, 0.0], length=300, belief=BELIEF, **place) for place in places]
    written, head, index, _ = page_of(tmp_path, rows, max_mb=room_for(0.085))
    assert written.groups_written < 128
    assert [span["tenths"] for span in head["calibration"]["spans"]] == [
        [[128, pytest.approx(0.4), 1.5]],
        [[32, pytest.approx(0.4), 1.5]],
    ]
    assert index["groups"]["belief"] == [[0.4, 0.49, 3.5, 1.5]] * written.groups_written


def test_a_run_without_beliefs_has_no_calibration(tmp_path):
    _, head, index, _ = page_of_run(synthetic_traces.write_run(tmp_path), tmp_path / "report.html")
    assert head["calibration"] is None
    assert set(index["groups"]["belief"]) == {None}


def test_groups_of_one_prompt_have_its_number(tmp_path):
    long = "the same beginning " * 20
    kinds = [{"prompt": long}, {"prompt": long + "."}, {"prompt": long, "reference": {"answer": "7"}}]
    kinds += [{"prompt": HOSTILE}, {"prompt": [{"role": "user", "content": long}]}]
    rows = [
        synthetic_traces.group([1.0, 0.0], step=step, group=g, **kind)
        for step in (0, 1)
        for g, kind in enumerate(kinds)
    ]
    _, _, index, _ = page_of(tmp_path, rows)
    assert index["groups"]["prompt"] == [*range(5)] * 2


# -- alarms and curves


def test_alarms_name_groups_of_the_training_only(tmp_path):
    rows = [
        synthetic_traces.group([1.0, 0.0], step=1, split=split, group=g) for split in ("train", "eval") for g in (0, 1)
    ]
    alarms = [{"step": 1, "name": "repetition", "message": "loops", "groups": [[0, 0, 1]]}]
    _, head, index, _ = page_of(tmp_path, rows, alarms=alarms)
    code = index["words"].index("repetition")
    assert index["groups"]["alarms"] == [[], [code], [], []]
    assert head["alarms"] == [
        {"name": "repetition", "count": 1, "times": [{"step": 1, "message": "loops", "groups": [[0, 0, 1]]}]}
    ]


def test_alarms_of_one_name_stand_together():
    alarms = [{"step": step, "name": name} for step, name in enumerate(["b", "a", "b", "b"])]
    steps = {alarm["name"]: [time["step"] for time in alarm["times"]] for alarm in by_name(alarms)}
    assert list(steps.items()) == [("b", [0, 2, 3]), ("a", [1])]
    assert [(alarm["count"], len(alarm["times"])) for alarm in by_name(alarms, most=2)] == [(3, 2), (1, 1)]


def by_title(metrics, tally):
    return {curve["title"]: curve for curve in curves(metrics, tally)}


def points(curve):
    return [(series["name"], series["points"]) for series in curve["series"]]


def tally_of(*groups):
    """Return the sums over these groups."""
    return without_files(groups).tally


def test_curves_come_from_what_was_logged(tmp_path):
    metrics = [
        {"step": 1, "reward": 0.5, "kl": 0.1, "entropy": 1.0, "groups/alive": 0.75, "groups/all_bad": 0.25},
        {"step": 1, "eval_easy_runtime": 1.0, "eval_reward": 0.25, "eval_rewards/accuracy/mean": 9.0},
        {"step": 1, "eval_hard_runtime": 1.0, "eval_reward": 0.0},
        {"step": 1, "eval_runtime": 1.0},
    ]
    made = by_title(metrics, Tally())
    assert set(made) == {"reward", "verdicts", "KL", "entropy"}
    assert points(made["reward"]) == [("train", [[1, 0.5]]), ("eval_easy", [[1, 0.25]]), ("eval_hard", [[1, 0.0]])]
    assert [name for name, _ in points(made["verdicts"])] == ["alive", "all_bad"]


def test_curves_without_metrics_come_from_the_rows():
    tally = tally_of(
        synthetic_traces.group([1.0, 0.0], step=3),
        synthetic_traces.group([1.0, 1.0], step=3),
        synthetic_traces.group([0.0, 0.0], step=3, split="eval"),
    )
    made = by_title([], tally)
    assert set(made) == {"reward", "verdicts", "tokens"}
    assert points(made["reward"]) == [("train", [[3, 1.75]]), ("eval", [[3, 1.0]])]
    shares = dict(points(made["verdicts"]))
    assert (shares["alive"], shares["all_good"], shares["tied"]) == ([[3, 0.5]], [[3, 0.5]], [[3, 0.0]])


def test_attempts_tell_the_metrics_that_a_run_did_not_log():
    evaluated = synthetic_traces.group([0.0, 0.0], step=3, split="eval_easy")
    tally = tally_of(synthetic_traces.group([1.0, 0.0], step=3), evaluated, synthetic_traces.group([1.0], step=4))
    told = tally.series()
    assert (told["reward"], told["eval_easy/reward"]) == ([[3, 1.5], [4, 2.0]], [[3, 1.0]])
    assert [step for step, _ in told["completions/mean_length"]] == [3, 4]
    assert "groups/alive" in told
    assert "kl" not in told


def test_thinning_keeps_the_ends():
    assert thin(range(5), 5) == [0, 1, 2, 3, 4]
    assert thin(range(1000), 4) == [0, 333, 666, 999]


# -- which group is shown first


def test_groups_are_ranked_by_spread_then_balance_then_distinct_texts():
    def told(rewards, texts="abcd", **changes):
        rows = [synthetic_traces.row(reward=r, completion=t) for r, t in zip(rewards, texts, strict=False)]
        return telling([{**row, "verdict": "alive", **changes} for row in rows])

    assert told([1.0, 0.0, 0.0, 1.0]) == (1.0, -0.0, 4)
    assert told([1.0, 0.0, 0.0, 0.0]) == (1.0, -0.25, 4)
    assert told([1.0, None, float("nan"), 0.0], texts="aaab") == (1.0, -0.0, 2)
    assert told([3.0, 1.0]) > told([1.0, 0.0, 1.0, 0.0]) > told([1.0, 0.0], texts="aa") > told([1.0, 0.0, 0.0])
    assert told([1.0, 0.0], kept=None, verdict=None) is not None  # as in the files of stock TRL
    for dead in ({"verdict": "tied"}, {"kept": False}, {"split": "eval"}):
        assert told([1.0, 0.0], **dead) is None
    assert told([1.0, 1.0]) is told([None, None]) is None


def test_a_page_opens_on_the_most_telling_group_of_the_last_tenth_of_the_steps():
    def at(step, told, split="train", number=0):
        return (split, step, (0, 0, number)), told

    def chosen(*groups):
        found = opening(groups)
        return found and (found["split"], found["step"], found["group"])

    dead = [at(step, None) for step in range(20)]
    assert chosen(*dead, at(3, (9.0, 0.0, 9)), at(18, (1.0, 0.0, 2), number=1), at(19, (1.0, -0.1, 4), number=2)) == (
        *("train", 18),
        "0.0.1",
    )
    assert chosen(*dead, at(18, (1.0, 0.0, 2), number=1), at(19, (1.0, 0.0, 2), number=2)) == ("train", 19, "0.0.2")
    # No group of the last tenth is telling: the latest telling group, or the last training group, or the last group.
    assert chosen(at(2, (9.0, 0.0, 9), number=1), at(5, (1.0, -0.5, 1)), *dead[6:]) == ("train", 5, "0.0.0")
    assert chosen(*dead, at(30, None, split="eval")) == ("train", 19, "0.0.0")
    assert chosen(at(3, None, split="eval"), at(4, None, split="eval", number=2)) == ("eval", 4, "0.0.2")
    assert chosen() is None


def test_the_group_to_open_on_found_room(tmp_path):
    rows = [synthetic_traces.group([1.0, 0.0], length=300, step=step, group=g) for step in range(30) for g in range(4)]
    written, head, index, _ = page_of(tmp_path, rows, max_mb=room_for(0.04))
    assert written.groups_written < 30
    where = [f"{batch}.{round}.{group}" for batch, round, group in zip(*places(index), strict=True)]
    found = list(zip(index["groups"]["step"], where, strict=True))
    assert (head["opening"]["step"], head["opening"]["group"]) in found
    assert head["opening"]["step"] >= 20
    assert read(panel(rows[:2]))[0]["opening"] is None  # a panel opens on its first group


def places(index):
    return [index["groups"][name] for name in ("batch", "round", "group")]


def test_first_and_last_evaluation_come_from_the_log_or_else_from_the_traces():
    def logged(step, split, reward, **means):
        means = {f"eval_rewards/{name}/mean": value for name, value in means.items()}
        other = {"eval_rewards/a/std": 9.0, "eval_rewards/a/abstain": 9.0}
        return {"step": step, f"{split}_runtime": 1.0, "eval_reward": reward, **means, **other}

    metrics = [logged(0, "eval_easy", 0.25, a=0.5), {"step": 1, "reward": 9.0}, logged(5, "eval_easy", 0.5)]
    metrics += [logged(9, "eval_easy", 0.75, a=1.0, b=float("nan"))]
    tally = tally_of(
        synthetic_traces.group([1.0, 0.0], step=3, split="eval_hard"),
        synthetic_traces.group([1.0, 1.0], step=3, split="eval_easy"),
    )
    assert before_after(metrics, tally) == [
        {
            "split": "eval_easy",
            "steps": [0, 9],
            "rewards": [["reward", 0.25, 0.75], ["a", 0.5, 1.0]],
        },
        {"split": "eval_hard", "steps": [3], "rewards": [["reward", 1.5]]},
    ]
    assert before_after([], Tally()) == []


def test_of_two_evaluations_at_one_step_the_last_counts():
    logged = [(0, 0.25), (4, 0.5), (4, 0.75), (0, 0.125)]
    metrics = [{"step": step, "eval_runtime": 1.0, "eval_reward": reward} for step, reward in logged]
    assert before_after(metrics, Tally()) == [{"split": "eval", "steps": [0, 4], "rewards": [["reward", 0.125, 0.75]]}]
    assert metrics_table(metrics)["metrics"]["eval/reward"] == [0, [0.125, 0.75]]


def test_every_metric_is_a_column_of_a_shared_list_of_steps():
    metrics = [{"step": step, "loss": step / 3, "kl": float("nan"), "epoch": 1.0, "note": "x"} for step in (1, 2)]
    metrics += [{"step": 2, "eval_easy_runtime": 1.5, "eval_easy_loss": 2.0, "eval_reward": 0.5}]
    metrics += [{"step": 2, "eval_runtime": 1.0, "eval_reward": 0.25}]
    metrics += [{"step": 2, "eval_a b_runtime": 1.5, "eval_a b_loss": 4.0}]  # an evaluation without a reward
    assert metrics_table(metrics) == {
        "steps": [[2], [1, 2]],
        "metrics": {
            **{"eval/reward": [0, [0.25]], "eval/runtime": [0, [1.0]]},
            **{"eval_easy/loss": [0, [2.0]], "eval_easy/reward": [0, [0.5]], "eval_easy/runtime": [0, [1.5]]},
            **{"eval_a_b/loss": [0, [4.0]], "eval_a_b/runtime": [0, [1.5]]},
            "loss": [1, [0.33333, 0.66667]],
        },
    }
    long = metrics_table([{"step": step, "loss": 1.0} for step in range(5000)])
    assert [len(steps) for steps in long["steps"]] == [1500]


def test_metrics_are_thinned_or_left_out_before_they_take_the_room_of_groups(tmp_path):
    metrics = [{"step": step, **{f"m{i}": math.sin(step * i) for i in range(40)}} for step in range(600)]
    run = synthetic_traces.write_traces(tmp_path, [synthetic_traces.group([1.0, 0.0])], metrics=metrics)

    def points(max_mb):
        written = write_page(run, tmp_path / "report.html", max_mb=max_mb)
        assert written.bytes <= max_mb * 1e6
        block = re.search(r'id="metrics">(.*?)</script>', written.path.read_text())
        if block is None:
            return 0
        table = json.loads(zlib.decompress(base64.b64decode(block[1]), -zlib.MAX_WBITS))
        assert len(table["metrics"]) == 40
        return max(map(len, table["steps"]))

    assert [points(room_for(mb)) for mb in (1, 0.2)] == [600, 300]


# -- a panel


def test_a_panel_holds_its_groups_unpacked_and_no_curves():
    rows = [synthetic_traces.group([1.0, 0.0], group=0), synthetic_traces.group([0.0, 0.0, 1.0], group=1)]
    page = panel(rows, "step 12")
    head, index, groups = read(page)
    assert (head["title"], head["curves"], head["panel"]) == ("step 12", [], True)
    assert index["groups"]["size"] == [2, 3]
    assert groups == [detail(of_group) for of_group in rows]
    assert "application/deflate" not in page.split("<script>")[0]


# -- TRL's own files


def write_completions(folder, step, prompts, size=2, messages=False, **more):
    """Write a file of completions as TRL 1.16 does."""
    texts = [f"attempt {i} \\boxed{{{i}}}" for i in range(size * len(prompts))]
    prompts = [prompt for prompt in prompts for _ in range(size)]
    if messages:
        texts = [[{"role": "assistant", "content": text}] for text in texts]
        prompts = [[{"role": "system", "content": "Hm."}, {"role": "user", "content": text}] for text in prompts]
    table = {
        "step": [step] * len(texts),
        "prompt": prompts,
        "completion": texts,
        "accuracy_reward": [float(i % 2) for i in range(len(texts))],
        "format_reward": [float("nan") if i == 0 else 0.5 for i in range(len(texts))],
        "extracted": [str(i) for i in range(len(texts))],
        **more,
        "advantage": [i % 2 - 0.5 for i in range(len(texts))],
    }
    path = folder / "completions" / f"completions_{step:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(table).to_parquet(path)
    return path


@pytest.mark.parametrize("messages", [False, True])
def test_trl_files_are_read_as_far_as_they_go(tmp_path, messages):
    write_completions(tmp_path, 5, ["a", "b", "a"], messages=messages)
    write_completions(tmp_path, 10, ["c"], messages=messages)
    _, head, index, groups = page_of_run(tmp_path, tmp_path / "report.html")
    assert index["groups"]["step"] == [5, 5, 5, 10]
    assert index["groups"]["title"] == ["a", "b", "a", "c"]
    assert index["groups"]["size"] == [2, 2, 2, 2]
    assert column(index, "verdict") == [None] * 4
    assert index["groups"]["kept"] == [None] * 4
    assert "unweighted sum" in head["note"]
    assert groups[0]["prompt"][-1][1] == "a"
    best, last = groups[0]["attempts"]
    assert best["text"] == "attempt 1 \\boxed{1}"
    assert best["parts"] == [["accuracy_reward", 1.0, None], ["format_reward", 0.5, None]]
    assert (best["reward"], best["advantage"]) == (1.5, 0.5)
    assert (last["reward"], last["parts"][1]) == (0.0, ["format_reward", None, None])
    assert best["extra"] == [["extracted", "1"]]
    assert best["tokens"] is best["truncated"] is best["kl"] is None


def test_the_completions_folder_itself_will_do_and_traces_are_preferred(tmp_path):
    write_completions(tmp_path / "run", 99_999, ["a"])
    write_completions(tmp_path / "run", 100_000, ["b"])
    _, head, index, _ = page_of_run(tmp_path / "run" / "completions", tmp_path / "r.html")
    assert head["title"] == "run"
    assert index["groups"]["step"] == [99_999, 100_000]
    _, head, index, _ = page_of_run(synthetic_traces.write_run(tmp_path / "run"), tmp_path / "r.html")
    assert head["note"] == ""
    assert 99_999 not in index["groups"]["step"]


def test_a_reward_that_is_not_finite_is_left_out_of_the_sum(tmp_path):
    write_completions(tmp_path, 5, ["a"], judge_reward=[float("inf"), 2.0])
    [[first, second]] = trl_completions.groups(tmp_path)
    assert first["rewards"] == {"accuracy_reward": 0.0, "format_reward": None, "judge_reward": None}
    assert (first["reward"], second["reward"]) == (0.0, 3.5)


def test_a_parquet_file_that_is_not_trls_is_refused(tmp_path):
    path = write_completions(tmp_path, 5, ["a"])
    pd.DataFrame({"step": [1], "prompt": ["a"]}).to_parquet(path)
    with pytest.raises(ValueError, match="lacks advantage, completion"):
        list(trl_completions.groups(tmp_path))
    for step in (1.5, None):
        pd.DataFrame({"step": [step], "prompt": ["a"], "completion": ["b"], "advantage": [1.0]}).to_parquet(path)
        with pytest.raises(ValueError, match=r"completions_00005\.parquet has a step that is no whole number"):
            list(trl_completions.groups(tmp_path))
    path.write_bytes(b"PAR1 cut off")
    with pytest.raises(ValueError, match=r"completions_00005\.parquet cannot be read as parquet"):
        list(trl_completions.groups(tmp_path))


# -- the command


def test_the_command_writes_the_page_into_the_run(tmp_path, capsys):
    run = synthetic_traces.write_run(tmp_path / "run", steps=2)
    assert main(["view", str(run)]) == 0
    page = run / "report.html"
    assert f"{page}: 12 groups, 48 attempts, {page.stat().st_size / 1e6:.1f} MB" in capsys.readouterr().out
    assert main(["view", str(run), "-o", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").read_text() == page.read_text()


@pytest.mark.parametrize(
    ("name", "line", "problem"),
    [
        ("train-00000000.jsonl", '{"broken', "line 2 is no JSON object (Invalid control"),
        ("train-00000000.jsonl", "[1]", "line 2 is no JSON object (list): '[1]'"),
        ("train-00000000.jsonl", '{"step": 1}', "line 2 is no attempt: it has no batch, group, round, size."),
        ("metrics.jsonl", "-", "line 2 is no JSON object (Expecting value"),
        ("run.json", "{", "is not JSON"),
    ],
)
def test_the_command_says_which_line_is_broken(tmp_path, capsys, name, line, problem):
    run = synthetic_traces.write_run(tmp_path)
    path = run / "rollouts" / name
    lines = path.read_text().splitlines() if path.exists() else ["{}"]
    path.write_text("\n".join([lines[0], line, *lines[2:], ""]))
    assert main(["view", str(run)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}")
    assert problem in error


def test_the_command_says_what_has_no_room_and_what_it_cannot_show(tmp_path, capsys):
    run = synthetic_traces.write_run(tmp_path / "run", steps=6, length=4000)
    assert main(["view", str(run), "--max-mb", "0.35"]) == 0
    assert re.search(
        r"^\d+ groups did not fit in the page\. Raise --max-mb to include them\.$", capsys.readouterr().out, re.M
    )
    (run / "report.html").unlink()
    assert main(["view", str(run), "--max-mb", "0.01"]) == 2
    assert "leaves no room" in capsys.readouterr().err
    assert not (run / "report.html").exists()
    assert main(["view", str(tmp_path / "typo")]) == 2
    assert "is not a folder. Give the output_dir of a run" in capsys.readouterr().err


def test_a_folder_without_attempts_says_what_to_give_in_its_place(tmp_path, capsys):
    def told(folder):
        assert main(["view", str(folder)]) == 2
        return capsys.readouterr().err

    assert "For stock TRL: trl_grpo_plus.attach(trainer)" in told(tmp_path)
    (tmp_path / "first" / "rollouts").mkdir(parents=True)
    assert f"holds the folders of runs: first. Give one of them, such as {tmp_path / 'first'}." in told(tmp_path)
    (tmp_path / "first" / "rollouts" / "run.json").write_text("{}")
    assert "the run ended before its first batch was finished." in told(tmp_path / "first")
    (tmp_path / "first" / "race_settings.json").write_text("{}")
    assert "finished, or it is the run of stock TRL in a race, which keeps no attempts." in told(tmp_path / "first")


@pytest.mark.parametrize("size", ["nan", "inf", "0", "1e308"])
def test_a_size_of_the_page_that_is_no_possible_number_is_refused(tmp_path, capsys, size):
    assert main(["view", str(tmp_path), "--max-mb", size]) == 2
    assert "must be a finite number and > 0 and <= 1000000." in capsys.readouterr().err


def test_every_verdict_has_a_colour_on_light_and_on_dark():
    viewer = Path(view.__file__).parent / "viewer"
    css = "".join((viewer / f"{name}.css").read_text() for name in view.STYLES)
    for verdict in VERDICTS:
        assert css.count(f"--{verdict}: #") == 2, verdict
        assert css.count(f".{verdict} {{ --c: var(--{verdict}); }}") == 1, verdict
    # A group without a verdict looks like a tied one.
    for name, sets in (("key", "background: "), ("badge", "border-left: 5px solid "), ("spot", "fill: ")):
        assert re.search(rf"^\.{name} {{[^}}]*\b{sets}var\(--c, var\(--tied\)\);", css, re.M), name
    assert ".area { fill: var(--c); }" in css
