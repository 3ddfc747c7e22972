"""Opening the files of a run that somebody else may have made, or may be changing."""

import os
import re
from pathlib import Path

import pytest
from file_limit import no_room

from trl_grpo_plus.cli.export.writers import _replacing_folder
from trl_grpo_plus.utils.files import Unreadable, open_within, replace


@pytest.fixture
def run(tmp_path):
    """Make a run with a file and a subfolder. Beside it are files of the reader that do not belong to the run."""
    (tmp_path / "secret.txt").write_text("the reader's own")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "inner.txt").write_text("the reader's own")
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "run" / "file.txt").write_text("of the run")
    (tmp_path / "run" / "sub" / "inner.txt").write_text("of the run")
    return tmp_path / "run"


def read(path, folder):
    with open_within(path, folder) as file:
        return file.read().decode()


def test_files_of_the_run_are_opened(run, monkeypatch):
    (run / "link.txt").symlink_to("sub/inner.txt")
    (run.parent / "alias").symlink_to(run)
    monkeypatch.chdir(run)
    paths = [run / "file.txt", run / "sub" / "inner.txt", run / "link.txt", Path("file.txt"), Path("sub/../file.txt")]
    assert [read(path, run) for path in paths] == ["of the run"] * 5
    assert read(run.parent / "alias" / "sub" / "inner.txt", run.parent / "alias") == "of the run"
    with open_within(run / "link.txt", run) as file:
        assert Path(file.name) == run / "link.txt"
    with pytest.raises(FileNotFoundError):
        open_within(run / "missing.txt", run)


def test_what_lies_elsewhere_or_is_no_file_is_refused(run):
    (run / "out.txt").symlink_to("../secret.txt")
    os.mkfifo(run / "pipe.txt")
    for name, why in {
        "out.txt": "is a link to a file outside of",
        "pipe.txt": "is no plain file",
        "sub": "is a folder",
        "": "is a folder",
    }.items():
        with pytest.raises(Unreadable, match=why):
            open_within(run / name, run)


@pytest.mark.parametrize(
    ("name", "swapped"), [("file.txt", "file.txt"), ("sub/inner.txt", "sub/inner.txt"), ("sub/inner.txt", "sub")]
)
def test_a_link_that_is_put_there_after_the_check_is_not_followed(run, monkeypatch, name, swapped):
    targets = {"file.txt": "secret.txt", "sub/inner.txt": "elsewhere/inner.txt", "sub": "elsewhere"}
    is_file = Path.is_file

    def then_swapped(path):
        answer = is_file(path)
        (run / swapped).rename(run / "old")
        (run / swapped).symlink_to(run.parent / targets[swapped])
        return answer

    monkeypatch.setattr(Path, "is_file", then_swapped)
    with pytest.raises(OSError, match=r"links|directory"):
        read(run / name, run)


def test_no_descriptor_stays_open(run):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        read(run / "sub" / "inner.txt", run)
        with pytest.raises(FileNotFoundError):
            open_within(run / "sub" / "missing.txt", run)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_write_that_fails_names_the_file_and_leaves_the_old_one(tmp_path):
    (tmp_path / "page").write_text("before")
    with no_room(), pytest.raises(OSError, match=re.escape(f"File too large: '{tmp_path}/page'")):
        replace(tmp_path / "page", [b"x" * 5000])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"page": "before"}


def test_a_folder_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "first").touch()
    with no_room(), pytest.raises(OSError, match=re.escape(f"File too large: '{tmp_path}/rows'")):  # noqa: SIM117
        with _replacing_folder(tmp_path / "rows") as folder, open(folder / "first", "wb") as file:
            file.write(b"x" * 5000)
    assert [path.name for path in tmp_path.rglob("*")] == ["rows", "first"]
