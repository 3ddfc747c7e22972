"""The package as it is installed: the contents of the wheel and the source archive, and the commands of the wheel.

The wheel is built from the source archive and installed in a virtual environment of its own, outside the repository.
It shares the other packages of this environment, but not its trl_grpo_plus. Nothing is downloaded.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import trl_grpo_plus
from trl_grpo_plus.launch import accelerate as launch
from trl_grpo_plus.rewards import LIBRARY
from trl_grpo_plus.traces import reader as traces


pytestmark = pytest.mark.long


REPOSITORY = Path(__file__).parents[2]
FOLDERS = {"trl_grpo_plus": "trl_grpo_plus", "rewards": "trl_grpo_plus/rewards", "recipes": "trl_grpo_plus/recipes"}
NOT_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "outputs", "wandb")
OPTIONS = ["--output_dir", "out", "--per_device_train_batch_size", "32", "--max_steps", "2", "--save_steps", "2"]
OPTIONS += ["--eval_on_start", "false", "--prepare_args", '{"warm_steps": 20}']
RUN = ["arithmetic_cpu", "--accelerate_config", "multi_gpu", "--num_processes", "2", *OPTIONS]


def run(*command, cwd, path=os.environ["PATH"]):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": path}
    environment.pop("PYTHONPATH", None)
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return done.stdout


def build(kind, source, target):
    target.mkdir()
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    run(sys.executable, "-c", code, target, cwd=source)
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Build the source archive."""
    folder = tmp_path_factory.mktemp("build")
    shutil.copytree(REPOSITORY, folder / "source", ignore=NOT_SOURCES)  # building leaves files behind
    return build("sdist", folder / "source", folder / "sdist")


@pytest.fixture(scope="module")
def wheel(archive):
    folder = archive.parents[1]
    with tarfile.open(archive) as file:
        file.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    return build("wheel", source, folder / "wheel")


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Return the Python of an environment with trl_grpo_plus from the wheel and all other packages from this one."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    others = [path for path in sys.path if path.endswith("-packages")]
    # Python reads no .pth files in these paths, so it does not find the repository through them.
    (site / "others.pth").write_text("\n".join(others))
    command = folder / "bin" / "accelerate"  # the command of this environment would run its Python
    main = "import sys\nfrom accelerate.commands.accelerate_cli import main\nsys.exit(main())\n"
    command.write_text(f"#!{python}\n{main}")
    command.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def commands(python, tmp_path_factory):
    """Return an empty folder, and a function that runs `trl-grpo-plus ...` in it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    path = f"{python.parent}:/usr/bin:/bin"
    return folder, lambda *words: run(python.parent / "trl-grpo-plus", *words, cwd=folder, path=path)


def sources():
    """Return the path of each file of the package by its name in the wheel."""
    return {
        f"{package}/{path.relative_to(REPOSITORY / folder)}": path
        for folder, package in FOLDERS.items()
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_each_file_of_the_package_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
        assert names == set(sources())
        assert all(file.read(name) == path.read_bytes() for name, path in sources().items())
    for name in ("py.typed", "view/viewer/page.html", "recipes/arithmetic_cpu.yaml", "recipes/README.md"):
        assert f"trl_grpo_plus/{name}" in names
    assert any(name.startswith("trl_grpo_plus/cli/check/samples/") for name in names)


def test_the_source_archive_has_what_building_needs_and_no_tests(archive):
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {str(path.relative_to(REPOSITORY)) for path in sources().values()} <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not any(name.startswith(("tests", "benchmarks", ".")) for name in names)


def test_the_package_is_the_wheels(python, tmp_path):
    code = (
        "import importlib.metadata, importlib.util; find = importlib.util.find_spec;"
        "print(find('trl_grpo_plus.recipes.grpo').origin, find('trl_grpo_plus.rewards').origin);"
        "print(importlib.metadata.distribution('trl-grpo-plus').locate_file(''))"
    )
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    places = [Path(path) for path in run(python, "-c", code, cwd=tmp_path).split()]
    assert [path.is_relative_to(site) for path in places] == [True] * 3


def test_a_script_in_the_root_of_a_clone_imports_the_clone(python):
    code = "import trl_grpo_plus.recipes.grpo as recipe, trl_grpo_plus.rewards; print(recipe.__file__)"
    assert Path(run(python, "-c", code, cwd=REPOSITORY).strip()) == REPOSITORY / "recipes" / "grpo.py"


@pytest.mark.full
def test_the_installed_commands_list_and_copy(commands):
    folder, trl_grpo_plus_command = commands
    assert trl_grpo_plus_command("--version").strip() == trl_grpo_plus.__version__
    listed = trl_grpo_plus_command("ls")
    assert all(f"\n  {name} " in listed for name in (*launch.recipes(), *LIBRARY))
    trl_grpo_plus_command("cp", "arithmetic_cpu", "mine.yaml")
    assert (folder / "mine.yaml").read_text() == launch.recipes()["arithmetic_cpu"].read_text()
    assert ["trl-grpo-plus", trl_grpo_plus.__version__] in map(str.split, trl_grpo_plus_command("env").splitlines())


@pytest.fixture(scope="module")
def printed(commands):
    """Return the output of `run` and of `check --smoke`, which run at the same time."""
    _, trl_grpo_plus_command = commands
    words = {"run": RUN, "check": ["arithmetic_cpu", "--smoke"]}
    with ThreadPoolExecutor() as pool:
        started = {name: pool.submit(trl_grpo_plus_command, name, *rest) for name, rest in words.items()}
        return {name: future.result() for name, future in started.items()}


@pytest.mark.full
def test_a_recipe_runs_on_two_processes_of_a_cpu_and_is_viewed(commands, printed):
    folder, trl_grpo_plus_command = commands
    first, _, _ = printed["run"].partition("\n")
    assert re.fullmatch(r"accelerate launch --config_file \S+multi_gpu\.yaml --num_processes 2 .*", first)
    assert first.endswith(f" -m trl_grpo_plus.recipes.grpo --config {shlex.join(['arithmetic_cpu', *OPTIONS])}")
    sampled = [group[0] for group in traces.groups(folder / "out")]
    assert sum((row["split"], row["step"], row["round"]) == ("train", 1, 0) for row in sampled) == 2 * 32 / 2
    assert printed["run"].count("attempts     out/report.html") == 1
    assert (folder / "out" / "checkpoint-2").is_dir()
    page = folder / "page.html"
    assert " groups, " in trl_grpo_plus_command("view", "out", "-o", page)
    assert page.stat().st_size > 50_000


@pytest.mark.full
def test_a_recipe_is_checked_and_smoked(printed):
    lines = [line.split() for line in printed["check"].splitlines()]
    fine = {words[0] for words in lines if words[1:2] == ["ok"]}
    assert fine >= {"keys", "data", "rewards", "model", "smoke", "traces"}
    assert "FAILED" not in printed["check"]
