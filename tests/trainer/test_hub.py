"""Tests of the files that go to the Hub, in pushes during training and at its end.

The code of transformers and of the Hub client runs up to the request, which is not sent.
"""

import types
from pathlib import Path

import huggingface_hub
import pytest
import tiny_models
import transformers
import trl

import trl_grpo_plus
from trl_grpo_plus.trainer import hub
from trl_grpo_plus.view import write_page


pytestmark = pytest.mark.long


PUSHING = {"push_to_hub": True, "hub_model_id": "someone/model"}


def intercept(patch):
    """Replace the Hub's requests; return a list that gets the paths of each commit."""
    commits: list[list[str]] = []

    def repo(name, **kwargs):
        return types.SimpleNamespace(repo_id=name)

    def commit(api, operations, **kwargs):
        commits.append([operation.path_in_repo for operation in operations])

    patch.setattr(huggingface_hub.HfApi, "create_repo", lambda api, name, **kwargs: repo(name))
    patch.setattr(huggingface_hub.HfApi, "create_commit", commit)
    patch.setattr(huggingface_hub.HfApi, "_validate_yaml", lambda *args, **kwargs: None)  # it would ask the Hub
    patch.setattr(huggingface_hub.hf_api, "is_xet_available", lambda: False, raising=False)
    if hasattr(transformers.trainer, "create_repo"):  # transformers bound the name on import
        patch.setattr(transformers.trainer, "create_repo", repo)
    return commits


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """Return a trainer that pushed at each of two checkpoints and at its end, and its commits."""
    with pytest.MonkeyPatch.context() as patch:
        commits = intercept(patch)
        options = {**PUSHING, "hub_strategy": "all_checkpoints", "hub_always_push": True, "max_steps": 2}
        options |= {"save_strategy": "steps", "save_steps": 1, "per_device_eval_batch_size": 8}
        extra = {"eval_dataset": tiny_models.prompts(4)}
        trained = tiny_models.trainer(tmp_path_factory.mktemp("pushed"), tiny_models.digits, **options, extra=extra)
        folder = Path(trained.args.output_dir)
        (folder / "earlier-1" / "rollouts").mkdir(parents=True)  # an earlier run, as launch moves it
        (folder / "earlier-1" / "rollouts" / "train-00000001.jsonl").write_text("{}\n")
        trained.train()
        trained.evaluate()
        write_page(folder, folder / "report.html")
        trained.save_model()
        trained.push_to_hub(dataset_name="someone/data")
        yield trained, commits


def test_the_model_is_uploaded(pushed):
    _, commits = pushed
    whole = [commit for commit in commits if "model.safetensors" in commit]
    assert len(whole) == 4  # after each checkpoint, and twice at the end
    assert all({"config.json", "tokenizer.json", "README.md", "training_args.bin"} <= set(commit) for commit in whole)


def test_prompts_and_completions_are_not_uploaded(pushed):
    _, commits = pushed
    paths = {path for commit in commits for path in commit}
    assert not [
        path for path in paths if path.startswith(("rollouts", "earlier", "report", "run.lock")) or "jsonl" in path
    ]


def test_checkpoints_that_are_pushed_are_whole(pushed):
    _, commits = pushed
    checkpoints = [commit for commit in commits if any(path.endswith("optimizer.pt") for path in commit)]
    assert len(checkpoints) == 2
    assert all(any(path.endswith("grpo_plus_state_0.pt") for path in commit) for commit in checkpoints)


def test_an_attached_trainer_uploads_no_prompts_and_completions(tmp_path, monkeypatch):
    commits = intercept(monkeypatch)
    options = {**PUSHING, "hub_strategy": "every_save", "hub_always_push": True, "max_steps": 2}
    options |= {"save_strategy": "steps", "save_steps": 1}
    trained = tiny_models.trainer(tmp_path, tiny_models.digits, trl.GRPOTrainer, **options)
    trl_grpo_plus.attach(trained)
    trained.train()
    trained.push_to_hub()
    assert (tmp_path / "run" / "rollouts" / "train-00000001.jsonl").exists()
    assert len([commit for commit in commits if "model.safetensors" in commit]) == 3
    assert [path for commit in commits for path in commit if path.startswith(("rollouts", "run.lock"))] == []


def test_transformers_hub_client_is_restored(pushed):
    names = [name for name in ("hf_api", "upload_folder") if hasattr(transformers.trainer, name)]
    assert names
    assert all(getattr(transformers.trainer, name).__module__ != hub.__name__ for name in names)


def test_a_transformers_release_that_uploads_differently_is_refused(tmp_path, monkeypatch):
    for name in ("hf_api", "upload_folder"):
        monkeypatch.delattr(transformers.trainer, name, raising=False)
    with pytest.raises(RuntimeError, match=r"would also upload rollouts/\*, .* of output_dir. Set push_to_hub=False"):
        tiny_models.trainer(tmp_path, tiny_models.digits, **PUSHING)


# -- the model card


def card(trained):
    return (Path(trained.args.output_dir) / "README.md").read_text()


def test_a_card_names_what_trained_the_model(pushed):
    trained, _ = pushed
    text, version = card(trained), trl_grpo_plus.__version__
    assert "None" not in text
    data = "[someone/data](https://huggingface.co/datasets/someone/data)"
    assert f"This model was fine-tuned on the {data} dataset." in text
    assert f"- trl_grpo_plus: {version}\n- TRL: {trl.__version__}" in text
    assert "- `digits`, weight 1" in text
    assert f"`GRPOPlusTrainer` of trl_grpo_plus {version} with its options at their defaults" in text
    assert 'model="someone/model"' in text


def test_a_card_of_a_run_with_options_and_a_base_model(tmp_path):
    rewards = [
        {"name": tiny_models.digits, "weight": 0.5},
        {"name": tiny_models.always_dead, "monitor": True, "label": "watched"},
    ]
    made = tiny_models.trainer(tmp_path, rewards, zero_variance_groups="drop", alarm_thresholds={"no_answer": None})
    made.model.config._name_or_path = "Qwen/Qwen2.5-0.5B"
    made.create_model_card(model_name="mine", tags="sums")
    text = card(made)
    assert "fine-tuned version of [Qwen/Qwen2.5-0.5B](https://huggingface.co/Qwen/Qwen2.5-0.5B)." in text
    assert "- `digits`, weight 0.5\n- `watched`, scored and logged only" in text
    assert "- `zero_variance_groups`: `'drop'`\n- `alarm_thresholds`: `{'no_answer': None}`" in text
    data = huggingface_hub.ModelCard.load(Path(made.args.output_dir) / "README.md").data
    assert {"sums", "trl", "grpo"} <= set(data.tags)
    assert data.base_model == "Qwen/Qwen2.5-0.5B"


@pytest.mark.parametrize("name", ["", None])
def test_a_card_of_a_model_without_a_name(tmp_path, name):
    made = tiny_models.trainer(tmp_path, tiny_models.digits)
    made.model.config._name_or_path = name
    made.create_model_card()
    text = card(made)
    assert "None" not in text
    assert "# Model Card for run\n\nThis model was fine-tuned.\n" in text
    assert 'model="run"' in text


def test_a_card_of_another_form_gets_our_parts():
    """Our parts are added to a model card whose template has none of the expected places."""
    text = hub.completed("# Mine\n", "run", {}, [("digits", 1.0)])
    assert text.startswith("# Mine\n")
    assert "### Rewards\n\n- `digits`, weight 1\n" in text
    assert f"trl_grpo_plus {trl_grpo_plus.__version__}" in text
