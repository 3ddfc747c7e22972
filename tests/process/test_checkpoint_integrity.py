"""Incomplete and damaged checkpoints: which checkpoint a run resumes from, and what the messages say."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
import torch
import warm_processes

from trl_grpo_plus.launch.train import _say_stopped
from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.trainer.checkpoint_integrity import _run_of, complete_checkpoint, lacking, last_complete, saving
from trl_grpo_plus.trainer.training_state import FORMAT
from trl_grpo_plus.utils.distributed import lost_process
from trl_grpo_plus.utils.validation import ConfigError


OPTIONS = {"zero_variance_groups": "drop", "save_strategy": "steps", "save_steps": 2, "max_steps": 6}
STATE = "grpo_plus_state_0.pt"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Train a run with checkpoints at steps 2, 4 and 6."""
    return tiny_models.trained(tmp_path_factory.mktemp("saved"), tiny_models.half_dead, **OPTIONS)


@pytest.fixture
def run(saved, tmp_path):
    """Copy the folder of that run, so that a test can damage it."""
    return Path(shutil.copytree(Path(saved.args.output_dir), tmp_path / "run"))


def resume(run, wanted=True, **options):
    trained = tiny_models.trainer(run.parent, tiny_models.half_dead, **{**OPTIONS, **options})
    trained.train(resume_from_checkpoint=wanted)
    return trained


def cut(path, share=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize(
    "name",
    ["trainer_state.json", "config.json", STATE, "optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"],
)
def test_a_file_that_is_cut_off_is_seen(run, name):
    folder = run / "checkpoint-4"
    assert lacking(folder) == ""
    for share in (0.99, 0.5, 0.0):
        cut(folder / name, share)
        assert lacking(folder) == f"{name} cut off"
        assert Path(last_complete(str(run))).name == "checkpoint-6"


WEIGHTS = [
    "pytorch_model.bin",
    "pytorch_model-00001-of-00002.bin",
    "pytorch_model_fsdp_rank0.bin",
    "adapter_model.bin",
]


@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.bin", "optimizer_1_rank0.bin", *WEIGHTS])
def test_a_file_of_torch_that_is_cut_off_is_seen_by_the_names_that_are_saved(run, name):
    path = run / "checkpoint-4" / name
    torch.save({"weight": torch.zeros(9)}, path)
    assert lacking(path.parent) == ""
    cut(path)
    assert lacking(path.parent) == f"{name} cut off"


def test_a_file_of_another_kind_beside_them_is_the_users_own(run):
    for name in ("model.bin", "notes.bin", "vectors.pt"):
        (run / "checkpoint-6" / name).write_bytes(b"no archive")
    assert lacking(run / "checkpoint-6") == ""


def test_a_run_resumes_from_the_last_complete_checkpoint(run, saved, caplog):
    (run / "checkpoint-6" / "trainer_state.json").unlink()
    cut(run / "checkpoint-4" / "optimizer.pt")
    resumed = resume(run)
    tiny_models.assert_same(resumed, saved)
    (warning,) = [record.message for record in caplog.records if "Not saved completely" in record.message]
    assert "checkpoint-6: trainer_state.json is missing" in warning
    assert "checkpoint-4: optimizer.pt cut off" in warning
    assert warning.endswith(f"resuming from {run / 'checkpoint-2'}.")
    assert lacking(run / "checkpoint-6") == ""  # saved anew


def test_without_a_complete_checkpoint_the_error_says_what_each_lacks(run):
    for step in (2, 4, 6):
        cut(run / f"checkpoint-{step}" / "model.safetensors")
    with pytest.raises(
        ConfigError, match=r"holds no checkpoint that is complete: .*checkpoint-6: model.*checkpoint-2: model"
    ):
        resume(run)
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        resume(run / "nowhere")


def test_auto_goes_on_from_the_last_whole_one_or_starts_anew(run):
    assert complete_checkpoint("auto", str(run)) == str(run / "checkpoint-6")
    cut(run / "checkpoint-6" / "model.safetensors")
    assert complete_checkpoint("Auto", str(run)) == str(run / "checkpoint-4")
    assert complete_checkpoint("auto", str(run / "nowhere")) is None


def test_auto_does_not_start_anew_where_a_disk_fails(run):
    for step in (2, 4, 6):
        path = run / f"checkpoint-{step}" / "trainer_state.json"
        path.unlink()
        path.mkdir()  # reading it is an OSError
    with pytest.raises(
        ConfigError, match=r"resume_from_checkpoint='auto': .*Make it readable. To start from step 0, move it away"
    ):
        complete_checkpoint("auto", str(run))


def test_a_named_checkpoint_that_is_incomplete_is_refused(run):
    cut(run / "checkpoint-4" / STATE)
    with pytest.raises(ConfigError, match=f"checkpoint-4 is incomplete: {STATE} cut off. Name an earlier checkpoint"):
        resume(run, str(run / "checkpoint-4"))


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("", "run is a run, not a checkpoint. Its last checkpoint is .*/run/checkpoint-6"),
        ("checkpoint-5", "checkpoint-5 is not a checkpoint. There is no such folder. Did you mean .*run/checkpoint-"),
        ("rollouts", "rollouts is incomplete: trainer_state.json is missing"),
    ],
)
def test_the_error_says_what_a_path_is_that_is_no_checkpoint(run, named, words):
    with pytest.raises(ConfigError, match=words):
        resume(run, str(run / named))


@pytest.mark.parametrize("text", ["True", "false"])
def test_a_value_in_quotes_is_said_to_be_a_text(run, text):
    with pytest.raises(ConfigError, match=f"resume_from_checkpoint='{text}' is a text. Give True, None or 'auto'"):
        resume(run, text)


def rewritten(run, change):
    path = run / "checkpoint-4" / STATE
    torch.save(change(torch.load(path, weights_only=True)), path)
    return path


WRONG = {
    "of a newer release": (
        lambda state: {**state, "format": FORMAT + 1},
        f"has format {FORMAT + 1}, but this release reads format {FORMAT}",
    ),
    "something else": (lambda state: [1, 2], "cannot be read (AttributeError"),
    "of too old a release": (lambda state: {"step": 4, "beta": 0.0}, "it holds step, beta"),
    "without a part": (
        lambda state: {name: value for name, value in state.items() if name != "running_variance"},
        "does not hold the state that this release reads (KeyError: 'running_variance')",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_state_that_cannot_be_read_is_named_with_a_way_out(run, saved, kind):
    change, words = WRONG[kind]
    path = rewritten(run, change)
    with pytest.raises(ConfigError) as refused:
        resume(run, str(run / "checkpoint-4"))
    assert str(refused.value).startswith(str(path))
    assert words in str(refused.value)
    assert "or remove this file" in str(refused.value)
    path.unlink()
    assert resume(run, str(run / "checkpoint-4")).state.global_step == 6


def started_anew(run, **options):
    """Start a new run in the folder of an earlier one, and end it by an error at step 4."""
    with pytest.raises(RuntimeError, match="killed"):
        tiny_models.trainer(run.parent, killed, **{**OPTIONS, "save_steps": 4, **options}).train()


def killed(completions, trainer_state, **kwargs):
    if trainer_state.global_step == 3:
        raise RuntimeError("killed")
    return tiny_models.digits(completions)


def test_a_start_beside_old_checkpoints_is_warned_of_and_a_resume_takes_none_of_them(run, caplog):
    started_anew(run)
    warned = [record.message for record in caplog.records if "of an earlier run" in record.message]
    assert len(warned) == 1
    assert warned[0].startswith(f"{run} holds checkpoint-2, checkpoint-4, checkpoint-6 of an earlier run.")
    assert "Give this run another output_dir, or move them away" in warned[0]
    with pytest.raises(ConfigError, match="That run was started after an earlier run in the same folder") as refused:
        resume(run)
    assert f"resume_from_checkpoint={str(run / 'checkpoint-6')!r}" in str(refused.value)
    caplog.clear()
    assert resume(run, str(run / "checkpoint-6")).state.global_step == 6  # the name asks for the earlier run
    assert resume(run).state.global_step == 6
    assert "an earlier run" not in caplog.text


def test_a_checkpoint_of_the_run_itself_is_taken_before_a_later_one_of_an_earlier_run(run, caplog):
    started_anew(run, save_steps=2)
    assert last_complete(str(run)) == str(run / "checkpoint-2")
    assert f"The traces in {run} are of another run than {run}/checkpoint-6, {run}/checkpoint-4." in caplog.text


def test_without_traces_nobody_knows_whose_a_checkpoint_is(run):
    """The traces in the folder are of the earlier run. The later run, without traces, still finds its checkpoint."""
    for step in (4, 6):
        shutil.rmtree(run / f"checkpoint-{step}")
    started_anew(run, save_steps=2, trace_every=0)
    assert last_complete(str(run)) == str(run / "checkpoint-2")


def test_a_part_without_traces_does_not_make_a_run_another_one(run):
    """A run is resumed without traces and then with them. Its checkpoints from before are still its own."""
    resume(run, str(run / "checkpoint-4"), trace_every=0)
    assert _run_of(run / "checkpoint-6") == _run_of(run / "checkpoint-4") is not None
    resume(run, max_steps=8)
    for step in (6, 8):
        cut(run / f"checkpoint-{step}" / "model.safetensors")
    assert last_complete(str(run)) == str(run / "checkpoint-4")


def test_the_resume_of_a_finished_run_says_so(run, caplog):
    resume(run)
    assert "checkpoint-6 is at max_steps=6: no step is left to train." in caplog.text
    caplog.clear()
    resume(run, str(run / "checkpoint-4"))
    assert "is left to train" not in caplog.text


def test_bytes_that_changed_are_seen(run):
    path = run / "checkpoint-4" / STATE
    data = bytearray(path.read_bytes())
    data[: len(data) // 2] = bytes(len(data) // 2)
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=f"{STATE} cannot be read"):
        resume(run, str(run / "checkpoint-4"))


def test_a_file_that_cannot_be_read_is_not_said_to_be_cut_off(run):
    for name in ("model.safetensors", "optimizer.pt"):
        path = run / "checkpoint-4" / name
        path.rename(run / name)
        path.symlink_to(run / "moved" / name)  # to a disk that is not there
        assert lacking(run / "checkpoint-4").startswith(f"{name} cannot be read ([Errno 2] No such file")
        path.unlink()
        (run / name).rename(path)


def test_a_rank_whose_random_numbers_are_not_there_yet_is_seen(run):
    """A rank saves its random state last, and may be slower than the first rank, which writes trainer_state.json."""
    folder = run / "checkpoint-4"
    (folder / "rng_state.pth").rename(folder / "rng_state_0.pth")
    shutil.copy(folder / STATE, folder / "grpo_plus_state_1.pt")
    assert lacking(folder) == "rng_state_1.pth is missing"
    shutil.copy(folder / "rng_state_0.pth", folder / "rng_state_1.pth")
    assert lacking(folder) == ""


def test_the_error_tells_the_free_space_of_the_disk_of_the_checkpoint(run, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "shutil.disk_usage", lambda path: asked.append(Path(path)) or shutil._ntuple_diskusage(0, 0, 0)
    )
    with pytest.raises(RuntimeError, match="not saved completely"), saving(run / "new" / "checkpoint-8", rank=0):
        raise PermissionError(13, "Permission denied")
    assert asked == [run]


def test_a_value_that_is_not_json_is_not_blamed_on_the_disk(run):
    new = run / "checkpoint-8"
    with pytest.raises(RuntimeError, match="not saved completely") as failure, saving(new, rank=0):
        raise TypeError("Object of type float32 is not JSON serializable")
    assert "free" not in str(failure.value)
    assert "float(value)" in str(failure.value)
    assert str(failure.value).endswith("resumes from checkpoint-6.")


def test_no_checkpoint_of_an_earlier_run_is_promised(run):
    about = run / "rollouts" / "run.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "run": "another"}))
    with pytest.raises(RuntimeError, match="not saved completely") as failure, saving(run / "checkpoint-8", rank=0):
        raise OSError(28, "No space left on device")
    assert str(failure.value).endswith("MB free.")


def test_no_checkpoint_is_promised_where_none_is_complete(tmp_path):
    with pytest.raises(RuntimeError, match="not saved completely") as failure, saving(tmp_path / "run" / "c", rank=0):
        raise OSError(28, "No space left on device")
    assert str(failure.value).endswith("MB free.")


def test_an_earlier_checkpoint_of_the_step_does_not_count_while_it_is_written_over(run):
    folder = run / "checkpoint-4"

    def save():
        with saving(folder, rank=0):
            assert lacking(folder)
            raise OSError(28, "No space left on device")

    with pytest.raises(
        RuntimeError,
        match=r"checkpoint-4 was not saved completely: .*missing.*\(OSError: .*No space.* has \d+ MB free",
    ):
        save()
    assert lacking(folder)


def test_a_process_lost_during_a_save_is_not_blamed_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    collective = {"__name__": "torch.distributed.distributed_c10d"}
    with pytest.raises(RuntimeError) as failure, saving(tmp_path / "run" / "checkpoint-2", rank=1):
        exec("raise RuntimeError('Connection closed by peer')", collective)
    assert lost_process(failure.value) == "Connection closed by peer"


def test_an_error_after_a_complete_save_does_not_blame_the_checkpoint(run):
    folder = run / "checkpoint-4"
    state = (folder / "trainer_state.json").read_bytes()

    def save_and_rotate():
        with saving(folder, rank=0):
            (folder / "trainer_state.json").write_bytes(state)
            raise OSError(39, "Directory not empty", "checkpoint-2")

    with pytest.raises(OSError, match="Directory not empty: 'checkpoint-2'"):
        save_and_rotate()
    assert last_complete(str(run)).endswith("checkpoint-6")


def test_a_run_that_stops_does_not_say_that_it_resumes(run, caplog, capsys):
    (run / "checkpoint-6" / "trainer_state.json").unlink()
    _say_stopped(str(run))
    assert "The last checkpoint is" in capsys.readouterr().err
    assert caplog.text == ""


def test_a_file_in_the_place_of_a_folder_is_refused(run):
    with pytest.raises(ConfigError, match=r"trainer_state[.]json is not a checkpoint[.] It is a file"):
        resume(run, str(run / "checkpoint-4" / "trainer_state.json"))


# -- in processes of their own

KILLED = """
import hashlib, json, os, signal, sys
from pathlib import Path
import tiny_models, torch
from transformers import Trainer
from trl_grpo_plus.traces import writer
from test_checkpoint_integrity import OPTIONS

place, step = sys.argv[2], int(sys.argv[3])
trained = tiny_models.trainer(Path(sys.argv[1]), tiny_models.half_dead, **OPTIONS)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def kill_before(owner, name, step, when=lambda *args: True, first=lambda *args: None):
    function = getattr(owner, name)
    def deadly(*args, **kwargs):
        if step in (None, trained.state.global_step) and when(*args):
            first(*args)
            die()
        return function(*args, **kwargs)
    setattr(owner, name, deadly)

def half(path, data):
    with open(path, "ab") as file:
        file.write(data[: len(data) // 2])

if place == "optimizer":  # after the backward pass, and when the thread beside it has written the step's trace
    kill_before(torch.optim.AdamW, "step", step, first=lambda *args: trained._recorder.settle())
elif place == "trace":  # beside the step, which may be over by then
    kill_before(writer, "_append", None, lambda path, data: path.name == f"train-{step:08d}.jsonl", half)
elif place == "save":
    is_optimizers = lambda what, path: "optimizer" in str(path)
    kill_before(torch, "save", step, is_optimizers, lambda what, path: half(path, b"PK" * 99))
trained.train(resume_from_checkpoint=True if sys.argv[4:] else None)
"""


def python(code, *arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [Path(__file__).parent, Path(tiny_models.__file__).parent])),
    }
    return warm_processes.run([sys.executable, "-c", code, *map(str, arguments)], env=environment)


def test_killed_in_a_step_in_tracing_and_in_saving_it_goes_on_exactly(tmp_path, saved):
    """A run is killed three times, each time at a delicate place, and resumed each time."""
    run = tmp_path / "run"
    kills = [("optimizer", 3, {1, 2, 3, 4}), ("trace", 5, {1, 2, 3, 4, 5}), ("save", 6, {1, 2, 3, 4, 5, 6})]
    for number, (place, step, traced) in enumerate(kills):
        done = python(KILLED, tmp_path, place, step, *["resume"] * (number > 0))
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
        assert {group[0]["step"] for group in traces.groups(run)} >= traced - {6}
        assert all(len(group) == 4 for group in traces.groups(run))
    assert lacking(run / "checkpoint-6")
    resumed = resume(run)
    tiny_models.assert_same(resumed, saved)
    ours, whole = (list(traces.groups(folder)) for folder in (run, saved.args.output_dir))
    assert ours == whole


FULL = """
import json, resource, sys
from pathlib import Path
import tiny_models
from transformers import PrinterCallback, TrainerCallback
from test_checkpoint_integrity import OPTIONS

folder, ballast = Path(sys.argv[1]), Path(sys.argv[1], "ballast")

class Full(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 3 and sys.argv[2] == "limit":  # no file may grow beyond this
            resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))
        elif state.global_step == 3:
            try:
                with ballast.open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))
            except OSError as error:
                assert "No space left on device" in str(error)

trained = tiny_models.trainer(folder, tiny_models.half_dead, **{**OPTIONS, "per_device_train_batch_size": 32})
trained.add_callback(Full())
trained.remove_callback(PrinterCallback)  # what is printed goes to a file, too
try:
    trained.train()
except RuntimeError as error:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ballast.unlink(missing_ok=True)
    print(json.dumps([trained.state.global_step, str(error)]))
"""


@pytest.fixture(params=["limit", pytest.param("disk", marks=pytest.mark.full)])
def small_disk(request, tmp_path):
    """Give a folder and its kind: "limit" (no file may grow beyond a limit) or "disk" (a disk of 8 megabytes)."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "limit":
        yield folder, "limit"
        return
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder, "disk"
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_is_reported_and_costs_only_the_traces_that_did_not_fit(small_disk):
    """The kernel refuses to write more. Traces are lost first, while the run goes on; then a checkpoint fails."""
    folder, kind = small_disk
    done = python(FULL, folder, kind)
    assert done.returncode == 0, done.stderr[-3000:]
    step, error = json.loads(done.stdout.splitlines()[-1])
    assert step == 4
    assert "checkpoint-4 was not saved completely" in error
    assert error.endswith("resume_from_checkpoint=True skips it and resumes from checkpoint-2.")
    assert done.stderr.count("Traces could not be kept; training goes on. OSError") == 1
    run = folder / "run"
    assert {group[0]["step"] for group in traces.groups(run)} == {1, 2, 3}
    assert all(len(group) == 4 for group in traces.groups(run))
    for path in (run / "rollouts").glob("*.jsonl"):
        assert path.read_bytes()[-1:] in (b"", b"\n")
    assert Path(last_complete(str(run))).name == "checkpoint-2"
    assert resume(run, per_device_train_batch_size=32).state.global_step == 6
    assert {group[0]["step"] for group in traces.groups(run)} == {1, 2, 3, 4, 5, 6}
