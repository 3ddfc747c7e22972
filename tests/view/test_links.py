"""No page shows the target of a link that leads out of the run's folder, or a file that is not what its name says.

A run may come from someone else, and its page may go to others: a link could make the page leak the reader's files.
"""

import base64
import json
import re
import shutil
import zlib

import pandas as pd
import pytest
import synthetic_traces
import test_thumbnails

from trl_grpo_plus.cli.main import main
from trl_grpo_plus.traces import images
from trl_grpo_plus.view.live_feed import Feed


SECRET = "the key of my other house"
NAME = f"{images.image_name(test_thumbnails.KEPT).replace(' ', '-')}.webp"
REAL = images.thumbnail(test_thumbnails.KEPT, 16)


def told_in(page):
    """Return all that a page holds: its text, its unpacked blocks, and the base64 pictures in both."""
    packed = re.findall(r'type="application/deflate" id="[^"]*">([^<]*)<', page)
    texts = [page, *(zlib.decompress(base64.b64decode(one), -zlib.MAX_WBITS).decode() for one in packed)]
    pictures = [
        base64.b64decode(one).decode("latin-1") for text in texts for one in re.findall(r"base64,([\w+/=]+)", text)
    ]
    return "\n".join([*texts, *pictures])


def served(run):
    """Return all that the live server would send about a run, with its base64 pictures decoded."""
    feed = Feed(run)
    news = feed.news()
    texts = list(feed.texts(0, 0, 99)) if news["live"]["groups"] else []
    found = [one for text in texts for one in re.findall(r"base64,([\w+/=]+)", json.dumps(text))]
    return json.dumps([news, feed.metrics(), texts]) + "".join(
        base64.b64decode(one).decode("latin-1") for one in found
    )


def shown(run, tmp_path):
    """Return all that the live server, the pages and an export of a run hold; a command may refuse the run."""
    other = synthetic_traces.write_run(tmp_path / "other")
    commands = {
        "one.html": ["view", run],
        "two.html": ["view", run, other],
        "hf": ["export", run, "--to", "hf"],
        "tried.html": ["rescore", run, "--reward", "exact_answer", "--args", '{"column": "answer"}'],
    }
    found = [served(run)]
    for name, command in commands.items():
        target = tmp_path / name
        if main([*map(str, command), "-o", str(target)]) == 0:
            files = [path for path in target.rglob("*") if path.is_file()] if target.is_dir() else [target]
            found += [told_in(path.read_bytes().decode("latin-1")) for path in files]
    return "\n".join(found)


@pytest.fixture
def run(tmp_path):
    return test_thumbnails.a_run(tmp_path / "run")


@pytest.fixture
def elsewhere(tmp_path):
    """Write a folder outside the run that has a file of each kind that a run has, with a secret in each."""
    folder = tmp_path / "elsewhere"
    (folder / "rollouts").mkdir(parents=True)
    row = synthetic_traces.row(size=1, completion=SECRET, prompt=SECRET, reference={"answer": SECRET})
    files = {
        "text": SECRET,
        "looks.webp": f"RIFF{SECRET}",
        "run.json": json.dumps({"rewards": {SECRET: 1.0}, "options": {"loss_type": SECRET}}),
        "race_settings.json": json.dumps({"model": SECRET}),
        "trainer_state.json": json.dumps({"global_step": 1, "log_history": [{"step": 1, SECRET: 0.5}]}),
        "metrics.jsonl": json.dumps({"step": 1, SECRET: 0.5}) + "\n",
        "alarms.jsonl": json.dumps({"step": 0, "name": SECRET, "message": SECRET, "groups": []}) + "\n",
        "train-00000000.jsonl": json.dumps(row) + "\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    shutil.copy(folder / "train-00000000.jsonl", folder / "rollouts")
    (folder / "real.webp").write_bytes(REAL + SECRET.encode())
    return folder


def test_a_whole_thumbnail_is_shown(run, tmp_path):
    assert REAL.decode("latin-1") in shown(run, tmp_path)


@pytest.mark.parametrize("target", ["text", "looks.webp", "real.webp"])
@pytest.mark.parametrize("how", ["link", "chain", "relative", "folder", "copy"])
def test_only_a_picture_inside_the_run_is_shown_as_thumbnail(run, tmp_path, elsewhere, target, how):
    folder = run / "rollouts" / "thumbnails"
    path = folder / NAME
    path.unlink()
    if how == "link":
        path.symlink_to(elsewhere / target)
    elif how == "relative":
        path.symlink_to(f"../../../elsewhere/{target}")
    elif how == "chain":
        (run / "rollouts" / "between").symlink_to(elsewhere)
        path.symlink_to(f"../between/{target}")
    elif how == "copy":
        shutil.copy(elsewhere / target, path)
    else:
        shutil.rmtree(folder)
        folder.symlink_to(elsewhere)
        (elsewhere / target).rename(elsewhere / NAME)
    text = shown(run, tmp_path)
    assert "What is it?" in text
    assert SECRET not in text


def test_a_link_to_a_valid_picture_outside_the_run_is_not_shown(run, tmp_path):
    path = run / "rollouts" / "thumbnails" / NAME
    path.rename(tmp_path / "mine.webp")
    path.symlink_to(tmp_path / "mine.webp")
    assert REAL.decode("latin-1") not in shown(run, tmp_path)


@pytest.mark.parametrize("name", ["train-00000000.jsonl", "metrics.jsonl", "alarms.jsonl", "run.json"])
def test_a_file_of_traces_that_leads_out_of_the_run_is_refused(run, tmp_path, elsewhere, capsys, name):
    path = run / "rollouts" / name
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere / name)
    assert SECRET not in shown(run, tmp_path)
    assert f"error: {path} is a link to a file outside of" in capsys.readouterr().err
    assert f"{path} is a link to a file outside of" in Feed(run).news()["live"]["problem"]


@pytest.mark.parametrize(
    "name", ["rollouts", "completions", "race_settings.json", "trainer_state.json", "checkpoint-1"]
)
def test_other_links_that_lead_out_of_the_run_are_not_followed(run, tmp_path, elsewhere, name):
    path = run / name
    if path.exists():
        shutil.rmtree(path)
    if name == "completions":
        shutil.rmtree(run / "rollouts")
        columns = {"step": [1], "prompt": [SECRET], "completion": [SECRET], "advantage": [0.0]}
        pd.DataFrame(columns).to_parquet(elsewhere / "completions_00001.parquet")
    whole = name in ("completions", "checkpoint-1")
    path.symlink_to(elsewhere if whole else elsewhere / name)
    assert SECRET not in shown(run, tmp_path)


def test_links_that_stay_in_the_run_are_followed_and_a_run_may_be_one(run, tmp_path):
    path = run / "rollouts" / "thumbnails" / NAME
    path.rename(run / "rollouts" / "kept.webp")
    path.symlink_to("../kept.webp")
    (tmp_path / "latest").symlink_to(run)
    assert REAL.decode("latin-1") in shown(tmp_path / "latest", tmp_path)
