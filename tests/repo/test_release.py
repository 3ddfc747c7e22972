"""A release has one version everywhere, and workflows run the Makefile's targets on all supported versions."""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import trl_grpo_plus
from trl_grpo_plus.utils.optional_packages import EXTRAS


try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pytest and mypy install tomli, which has the same functions
    import tomli as tomllib


ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[1].split())
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
JOBS = [(file, name, job) for file, workflow in WORKFLOWS.items() for name, job in workflow["jobs"].items()]
STEPS = [(f"{file} {name}", step) for file, name, job in JOBS for step in job.get("steps", [])]


def test_the_version_stands_in_one_place_and_the_citation_and_the_changelog_have_it():
    assert "version" not in PROJECT
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == trl_grpo_plus.__version__
    newest = re.search(
        r"^## (\S+) \((?:unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert newest[1] == trl_grpo_plus.__version__


def test_each_extra_that_a_message_names_exists_and_installs_the_module():
    extras = PROJECT["optional-dependencies"]
    for module, extra in EXTRAS.items():
        assert re.search(rf"\b{module}\b", " ".join(extras[extra]).replace("-", "_")), (module, extra)


def test_each_installed_version_runs_on_every_python_that_it_is_pinned_for():
    pythons = re.findall(r"Python :: (3\.\d+)'", str(PROJECT["classifiers"]))
    assert len(pythons) >= 4
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    for pin in map(Requirement, pins):
        try:
            installed = distribution(pin.name)
        except PackageNotFoundError:  # it belongs into another environment
            continue
        if pin.specifier.contains(installed.version):
            runs_on = SpecifierSet(installed.metadata["Requires-Python"] or "")
            pinned_for = [one for one in pythons if not pin.marker or pin.marker.evaluate({"python_version": one})]
            assert not [one for one in pinned_for if f"{one}.99" not in runs_on], pin


def test_workflows_run_targets_of_the_makefile_alone():
    commands = [(where, step["run"]) for where, step in STEPS if "run" in step]
    assert len(commands) > 5
    for where, command in commands:
        target = re.fullmatch(r"make ([\w-]+)( [A-Z_]+=(\$\{\{ matrix\.\w+ \}\}|\w+))*", command)
        assert target, (where, command)
        assert target[1] in TARGETS, (where, command)


def test_workflows_name_actions_by_their_major_version():
    for where, step in STEPS:
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@(v\d+|release/v\d+)", step["uses"]), (where, step["uses"])


MORE = {
    "release.yml": {"publish": {"id-token": "write"}},
    "docs.yml": {"deploy": {"pages": "write", "id-token": "write"}},
}


@pytest.mark.parametrize("file", WORKFLOWS)
def test_workflows_may_read_and_only_the_jobs_that_publish_may_do_more(file):
    workflow = WORKFLOWS[file]
    assert workflow["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert more == MORE.get(file, {})
    assert "group" in workflow["concurrency"]


def test_the_tests_run_on_each_python_and_each_trl_that_is_supported():
    jobs = WORKFLOWS["test.yml"]["jobs"]
    pythons = jobs["test"]["strategy"]["matrix"]["python"]
    named = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert pythons == named
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    older = re.search(r"^TRL_VERSIONS := (.+)$", MAKEFILE, re.MULTILINE)[1].split()
    assert jobs["test-trl"]["strategy"]["matrix"]["trl"] == older


def test_the_projects_addresses_are_one():
    urls = PROJECT["urls"]
    home = urls["Homepage"]
    assert all(urls[name].startswith(f"{home}/") for name in ("Changelog", "Issues"))
    site = (ROOT / "mkdocs.yml").read_text()
    assert f"\nrepo_url: {home}\n" in site
    assert f"\nsite_url: {urls['Documentation']}\n" in site
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["repository-code"] == home
    assert f"{home}/security/advisories/new" in (ROOT / "SECURITY.md").read_text()
    links = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text())["contact_links"]
    assert all(link["url"].startswith(home) for link in links)
