"""What a newcomer does first: the quick start and the notebook, run as they stand, and the rewards in `trl grpo`."""

import functools
import gc
import html
import http.server
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import tiny_models
import torch
import transformers
import trl
from release_check import shorter
from test_docs import QUICK_START, ROOT, block, blocks
from trl.scripts import grpo

from trl_grpo_plus import registry
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.recipes import smollm2
from trl_grpo_plus.rewards.math_answer import math_answer


PAGE = ROOT / "docs" / "quick_start.md"
NOTEBOOK = ROOT / "docs" / "quick_start.ipynb"
FOR_TRL = ROOT / "docs" / "for_trl.md"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty folder, from which files can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("quick_")]:
        del sys.modules[name]


def test_the_quick_start_runs_as_it_stands_and_shows_what_it_says(here, capsys):
    for first_line in QUICK_START:
        Path(first_line.removeprefix("# ")).write_text(shorter(block(first_line, [PAGE])))
    commands = [line.split("#")[0].split() for _, text in blocks("bash", pages=[PAGE]) for line in text.splitlines()]
    asked = [words for words in commands if words[0] == "python" and words[1].startswith("quick_")]
    assert [f"# {words[1]}" for words in asked] == [name for name in QUICK_START if "reward" not in name]
    for words in commands:
        if words in asked:
            runpy.run_path(words[1], run_name="__main__")
        elif words[:1] == ["trl-grpo-plus"] and words[1] != "env":
            assert main(words[1:]) == 0
    printed = capsys.readouterr().out
    text = PAGE.read_text()
    assert json.loads(Path("quick_train.jsonl").read_text().splitlines()[0]) == {"prompt": "50+31=", "answer": "81"}
    assert "`The model is in outputs/quick_model/warm_start`" in text
    assert "The model is in outputs/quick_model/warm_start" in printed
    table = re.search(r"```text\n(quick_reward.py:right_sum  .*?)```", text, re.DOTALL)[1]
    for line in table.splitlines():
        assert line.partition(",")[0] in printed, line
    assert re.search(r"^step    0  eval: reward 0\.\d{3}$", printed, re.MULTILINE)
    assert re.search(r"^step    2  reward \d\.\d{3}  entropy \d\.\d{3}", printed, re.MULTILINE)
    assert re.search(r"^outputs/quick_run/report.html: \d+ groups, \d+ attempts, ", printed, re.MULTILINE)
    assert Path("outputs/quick_run/report.html").exists()


@pytest.fixture
def index(tmp_path):
    """Return the address of a server that has the page of an index of PyTorch's builds."""
    (tmp_path / "index" / "torch").mkdir(parents=True)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("case", ["no GPU", "GPU", "no route", "chosen"])
def test_make_installs_the_cpu_build_of_pytorch_without_a_gpu(tmp_path, index, case):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "id").symlink_to(shutil.which("id"))
    if case == "GPU":
        (tmp_path / "bin" / "nvidia-smi").symlink_to(shutil.which("true"))
    builds = "http://127.0.0.1:9" if case == "no route" else index
    words = [shutil.which("make"), "-n", "-B", ".venv/.installed", f"PYTHON={sys.executable}", f"CPU_BUILDS={builds}"]
    chosen = {"TORCH_INDEX": "https://mine"} if case == "chosen" else {}
    env = {"PATH": str(tmp_path / "bin"), "no_proxy": "*", **chosen}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    (command,) = [line for line in done.stdout.splitlines() if "constraints.txt torch" in line]
    taken = {"no GPU": f" --extra-index-url {index}", "chosen": " --extra-index-url https://mine"}.get(case, "")
    assert command.rstrip().endswith(f"-c constraints.txt torch{taken}")


def test_the_notebook_has_no_outputs_and_the_quick_starts_reward():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    (written,) = ["".join(cell["source"]) for cell in code if "%%writefile quick_reward.py" in "".join(cell["source"])]
    assert "@register_reward(" in written
    for link in re.findall(r"blob/main/([\w/.]+)", NOTEBOOK.read_text()):
        assert (ROOT / link).exists(), link


def cell(words):
    """Return the source of the notebook's code cell that contains `words`."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    (found,) = [source for cell in cells if words in (source := "".join(cell["source"]))]
    return found


@pytest.mark.parametrize(
    ("gpu", "bfloat16", "hub", "form", "model", "precision"),
    [
        (False, False, True, "small", None, None),
        (True, True, True, "gpu", "Qwen/Qwen2.5-0.5B-Instruct", "bf16"),
        (True, False, True, "gpu", "Qwen/Qwen2.5-0.5B-Instruct", "fp16"),
        (True, False, False, "real", "outputs/SmolLM2-135M-Instruct", None),
    ],
    ids=["no GPU", "GPU", "GPU without bfloat16", "GPU without the Hub"],
)
def test_the_notebook_takes_the_form_that_the_machine_allows(
    here, monkeypatch, gpu, bfloat16, hub, form, model, precision
):
    pytest.importorskip("IPython", reason="the notebook needs the extra docs")
    monkeypatch.delenv("QUICK_START", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bfloat16)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    if hub:
        monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda name: None)
    made = []
    monkeypatch.setattr(smollm2, "make", made.append)
    names = {"importlib": importlib}
    exec(cell("FORM = "), names)
    assert names["FORM"] == form
    if model:
        exec(re.sub(r"^ *%pip .*", "        pass", cell("smollm2.make"), flags=re.MULTILINE), names)
        assert names["MODEL"] == model
        assert made == ([Path(model)] if form == "real" else [])
    exec(cell("SAME = ").replace("from quick_reward import right_number", ""), names)
    assert {name for name in ("bf16", "fp16") if names["SAME"].get(name)} == ({precision} if precision else set())


def test_the_notebooks_race_leaves_no_model_in_memory(here):
    """Otherwise the second run would find the memory of a small GPU taken."""
    trainers = []

    class Watched(trl.GRPOTrainer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs, processing_class=tiny_models.tokenizer())
            trainers.append(weakref.ref(self.model))

    names = {"gc": gc, "torch": torch, "FORM": "small", "CHAT": False, "MODEL": tiny_models.model_path(here)}
    names["data"] = {"train": tiny_models.prompts(16), "test": tiny_models.prompts(4)}
    exec(cell("SAME = ").replace("from quick_reward import right_number", "right_number = None"), names)
    names["right_number"] = tiny_models.digits
    names["SAME"] |= {"use_cpu": True, "max_steps": 1, "eval_steps": 1, "logging_steps": 1}
    names["SAME"] |= {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 16}
    result = names["race"](Watched, trl.GRPOConfig, "out", num_generations=8)
    assert set(result) == {"held-out before", "held-out after", "seconds of training"}
    assert [trainer() for trainer in trainers] == [None]


@pytest.mark.full
def test_the_notebook_runs_from_top_to_bottom_on_a_cpu(here, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="the notebook needs the extra docs")
    pytest.importorskip("ipykernel", reason="the notebook needs the extra docs")
    import nbformat

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    book = nbformat.read(NOTEBOOK, as_version=4)
    in_this_folder = {"metadata": {"path": str(here)}}
    nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources=in_this_folder).execute()
    told = "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", ()))
    assert re.search(r"right_number +ok +gold 200/200,", told)
    scores = dict(re.findall(r"^(stock TRL|this trainer).*held-out after (\S+)", told, re.MULTILINE))
    before = float(re.search(r"held-out before (\S+)", told)[1])
    assert set(scores) == {"stock TRL", "this trainer"}
    assert float(scores["this trainer"]) > before + 0.05
    assert (here / "outputs" / "ours" / "report.html").stat().st_size > 100_000
    frames = [output for cell in book.cells for output in cell.get("outputs", ()) if "data" in output]
    page = (here / "outputs" / "ours" / "report.html").read_text()
    assert f'<iframe srcdoc="{html.escape(page)}"' in frames[-1]["data"]["text/html"]


@pytest.mark.parametrize("shown", re.findall(r"`(trl_grpo_plus\.rewards\.\w+\.\w+)`", FOR_TRL.read_text()))
def test_paths_of_rewards_that_are_shown_are_there(shown):
    module, name = shown.rsplit(".", 1)
    assert callable(getattr(__import__(module, fromlist=[name]), name))


def test_trls_command_line_trains_on_rewards_by_their_path(here, monkeypatch):
    """The command of docs/for_trl.md trains a tiny model on eight rows."""
    (shown,) = [text for _, text in blocks("bash", pages=[FOR_TRL]) if "trl grpo" in text]
    words = shown.replace("\\\n", " ").split()
    assert words[:2] == ["trl", "grpo"]
    paths = words[words.index("--reward_funcs") + 1 :]
    assert paths[0] == "trl_grpo_plus.rewards.math_answer.math_answer"
    made = []

    class Watched(trl.GRPOTrainer):
        def __init__(self, *args, **kwargs):
            kwargs["processing_class"] = tiny_models.tokenizer()
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(trl, "GRPOTrainer", Watched)
    if hasattr(grpo, "GRPOTrainer"):  # older releases of TRL import it at the top of the module
        monkeypatch.setattr(grpo, "GRPOTrainer", Watched)
    Path("data").mkdir()
    rows = [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(1, 9)]
    Path("data/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = block("# my_rewards.py").replace("ending", "answer").replace("ends_well", "ends_so")  # a new name
    # Remove the time limit: another test may have started the workers of this process, in another folder.
    Path("quick_rewards_of_mine.py").write_text(own.replace(", timeout=2.0", ""))
    options = {"model_name_or_path": tiny_models.model_path(here), "dataset_name": "data", "output_dir": "out"}
    options |= {"max_steps": 2, "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 6}
    options |= {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "logging_steps": 1}
    options |= {"dtype": "float32", "gradient_checkpointing": False, "dataloader_pin_memory": False}
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    parser = grpo.make_parser()
    parsed = parser.parse_args_and_config([*given, "--reward_funcs", *paths, "quick_rewards_of_mine.ends_so"])
    grpo.main(*parsed)
    (trainer,) = made
    assert trainer.reward_funcs[0] is math_answer
    assert trainer.reward_func_names == ["math_answer", "think_format", "ends_so"]
    logged = {key for entry in trainer.state.log_history for key in entry}
    assert {"rewards/math_answer/mean", "rewards/think_format/mean", "rewards/ends_so/mean"} <= logged
    assert os.path.exists("out/model.safetensors")
