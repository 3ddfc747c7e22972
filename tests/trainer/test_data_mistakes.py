"""Tests of the errors for data that cannot be trained on, most of them raised when the trainer is made."""

import copy
import functools
import json
import re
import sys
import tracemalloc

import numpy
import pyarrow
import pytest
import tiny_models
import torch
from datasets import Dataset, DatasetDict, Features, Image, Value
from transformers import IntervalStrategy
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.config import evaluation_checks
from trl_grpo_plus.objective.baselines import reads_columns
from trl_grpo_plus.scoring import check_prompts, check_tokens, wrong_prompts
from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.utils.patching import temporarily
from trl_grpo_plus.utils.validation import ConfigError


def made(folder, data, **options):
    return tiny_models.trainer(folder, by_place, **{"data": data, **options})


def by_place(completions, **columns):
    return [float(i % 4) for i in range(len(completions))]


def test_a_dataset_without_columns_has_no_rows(tmp_path):
    with pytest.raises(ConfigError, match="train_dataset has no columns, as a dataset without rows has"):
        made(tmp_path, Dataset.from_list([]))


def test_a_list_of_evaluation_sets_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="eval_dataset is a list"):
        made(tmp_path, tiny_models.prompts(8), extra={"eval_dataset": [tiny_models.prompts(4)]})


BELIEF = {"advantage_baseline": "belief", "scale_rewards": "prior"}
FEW = [{}, {"zero_variance_groups": "drop"}, {"prompt_selection": "belief"}, BELIEF]


@pytest.mark.parametrize("options", FEW)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_training_on_too_few_rows_for_a_step_is_refused_in_every_mode(tmp_path, rows, options):
    data, extra = tiny_models.prompts(30).select(range(rows)), {"eval_dataset": tiny_models.prompts(8)}
    trainer = made(tmp_path, data, per_device_train_batch_size=16, extra=extra, **options)
    with pytest.raises(
        ConfigError, match=rf"the training set has {rows} rows?, and a generation batch takes 4 prompts"
    ):
        trainer.train()
    assert not (tmp_path / "run" / "rollouts").exists()


@pytest.mark.parametrize(
    ("evaluated", "options"),
    [
        (None, {}),
        (tiny_models.prompts(8), {"eval_strategy": "epoch"}),
        (tiny_models.prompts(8), {"eval_on_start": True}),
    ],
)
def test_a_trainer_that_is_surely_to_train_is_refused_too_few_rows_before_its_model_is_loaded(
    tmp_path, evaluated, options
):
    args = GRPOPlusConfig(str(tmp_path / "run"), **{**tiny_models.BASE, "per_device_train_batch_size": 16}, **options)
    with pytest.raises(ConfigError, match="the training set has 3 rows, and a generation batch takes 4 prompts"):
        GRPOPlusTrainer(str(tmp_path / "no model"), by_place, args, tiny_models.prompts(3), evaluated)


def test_training_that_resamples_needs_more_prompts_than_those_of_a_batch(tmp_path):
    with pytest.raises(ConfigError, match="more prompts than the 2 of one generation batch, but the dataset has 2"):
        made(tmp_path, tiny_models.prompts(2), zero_variance_groups="resample")


@pytest.mark.parametrize("options", [*FEW, {"zero_variance_groups": "resample"}])
@pytest.mark.parametrize("rows", [0, 1])
def test_a_trainer_with_too_few_rows_for_a_step_evaluates(tmp_path, rows, options):
    data, extra = tiny_models.prompts(30).select(range(rows)), {"eval_dataset": tiny_models.prompts(8)}
    trainer = made(tmp_path, data, per_device_train_batch_size=16, extra=extra, **options)
    assert trainer.evaluate()["eval_reward"] == 1.5


def test_rows_for_one_batch_are_enough(tmp_path):
    trainer = made(tmp_path, tiny_models.prompts(4), per_device_train_batch_size=16, max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2


def test_a_subclass_with_its_own_sampler_needs_fewer_rows(tmp_path):
    class Repeating(GRPOPlusTrainer):
        def _get_train_sampler(self, dataset=None):
            return [0] * 16

    trainer = made(tmp_path, tiny_models.prompts(1), per_device_train_batch_size=16, max_steps=1, cls=Repeating)
    trainer.train()
    assert trainer.state.global_step == 1


TWO = {"extra": {"eval_dataset": tiny_models.prompts(2)}}
BEST_OF_TWO = {"eval_strategy": "steps", "eval_steps": 1}
BEST_OF_TWO |= {"extra": {"eval_dataset": {"some": tiny_models.prompts(2), "none": tiny_models.prompts(0)}}}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**BEST_OF_TWO, "metric_for_best_model": "none_loss"}, "metric_for_best_model='none_loss': .* no rows"),
        ({"eval_on_start": True, "extra": {}}, "eval_on_start=True needs an eval_dataset"),
        (
            {
                "eval_on_start": True,
                "per_device_eval_batch_size": 6,
                "extra": {"eval_dataset": tiny_models.prompts(2)},
            },
            r"\(4\)\. Set per_device_eval_batch_size to 4\.",
        ),
        (
            {"eval_strategy": "steps", "dataloader_drop_last": True},
            "metric_for_best_model='reward': eval_dataset has 1 row,",
        ),
    ],
)
def test_an_evaluation_that_would_end_the_run_is_refused(tmp_path, options, words):
    one = {"eval_dataset": tiny_models.prompts(1)}
    options = {"eval_steps": 1, "metric_for_best_model": "reward", "extra": one, **options}
    with pytest.raises(ConfigError, match=words):
        made(tmp_path, None, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"per_device_eval_batch_size": 6, **TWO}, "Otherwise evaluate() fails"),
        ({"per_device_eval_batch_size": 8, **TWO}, None),
        ({"per_device_eval_batch_size": 6, "eval_on_start": True}, None),  # one batch holds all attempts
        ({"eval_strategy": "steps", "metric_for_best_model": "loss", "extra": {"eval_dataset": {}}}, None),
        ({**BEST_OF_TWO, "metric_for_best_model": "reward"}, "eval_dataset none has no rows"),
        ({**BEST_OF_TWO, "metric_for_best_model": "eval_some_loss"}, "eval_dataset none has no rows"),
        (
            {"eval_on_start": True, "dataloader_drop_last": True},
            "eval_dataset has 1 row, fewer than the 2 of a batch",
        ),
        ({"eval_on_start": True, "dataloader_drop_last": True, "per_device_eval_batch_size": 4}, None),
        (
            {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_rewards/by_plaice/mean"},
            "names none of the reward functions, 'by_place'. Did you mean by_place? Unless a reward logs this metric",
        ),
    ],
)
def test_an_evaluation_that_may_fail_or_measures_nothing_is_warned_of(tmp_path, caplog, options, words):
    made(tmp_path, None, **{"extra": {"eval_dataset": tiny_models.prompts(1)}, **options})
    said = [record.message for record in caplog.records if record.name == evaluation_checks.__name__]
    assert [words in text for text in said] == [True] * (words is not None)


def test_an_evaluation_in_which_nothing_is_scored_is_not_the_best(tmp_path, caplog):
    def scored_later(completions, trainer_state, **columns):
        return [1.0 if trainer_state.global_step > 1 else None] * len(completions)

    best = {"metric_for_best_model": "reward", "load_best_model_at_end": True}
    options = {**TWO, **best, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = tiny_models.trained(tmp_path, scored_later, max_steps=2, **options)
    assert trainer.state.best_global_step == 2
    (told,) = [record.message for record in caplog.records if record.name == evaluation_checks.__name__]
    assert "metric_for_best_model='reward': this evaluation has no value of it, so it cannot be the best" in told


def test_an_evaluation_set_without_rows_is_warned_of(tmp_path, caplog):
    for rows, split in ((0, "eval_dataset hard"), (1, None)):
        caplog.clear()
        sets = {"easy": tiny_models.prompts(2), "hard": tiny_models.prompts(2).select(range(rows))}
        made(tmp_path, None, eval_strategy="steps", eval_steps=1, extra={"eval_dataset": sets})
        said = [record.message for record in caplog.records if "has no rows" in record.message]
        assert [text.partition(" has no rows")[0] for text in said] == [split] * (split is not None)


def messages(content="1"):
    return [{"role": "user", "content": content}]


@reads_columns("level")
def easiest(values, scored, batch):
    return values


LEVELS = tiny_models.prompts(30).add_column("level", [1] * 30)
BAD = {
    "splits": DatasetDict(train=LEVELS),
    "a name": "openai/gsm8k",
    "no prompt": LEVELS.rename_column("prompt", "question"),
    "no prompts": LEVELS.map(lambda row: {"prompt": None}),
    "messages": LEVELS.map(lambda row: {"prompt": messages()}),
    "no column of the reward's": LEVELS.remove_columns("number"),
    "no column of the baseline's": tiny_models.prompts(30),
    "too few rows": LEVELS.select(range(1)),
}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    folder, options = tmp_path_factory.mktemp("data"), {"max_steps": 1, "advantage_baseline": easiest}
    return tiny_models.trainer(folder, data=LEVELS, **options)


@pytest.mark.parametrize("kind", BAD)
def test_datasets_that_a_script_sets_are_refused_as_when_the_trainer_is_made(tmp_path, trainer, monkeypatch, kind):
    both = kind in ("no prompt", "no prompts", "messages", "no column of the reward's")
    for name in ("train_dataset", "eval_dataset")[: 1 + both]:
        extra = {"train_dataset": LEVELS, name: BAD[kind]}
        with pytest.raises(ConfigError) as made:
            tiny_models.trainer(tmp_path, advantage_baseline=easiest, extra=extra)
        monkeypatch.setattr(trainer, name, BAD[kind])
        with pytest.raises(ConfigError) as trained:
            trainer.train()
        monkeypatch.undo()
        assert str(trained.value) == str(made.value)


STREAM = "_dataset is a stream, and this trainer was made with loaded rows"


@pytest.mark.parametrize(
    ("name", "rows", "options", "words"),
    [
        ("train_dataset", None, {}, "train_dataset is None"),
        ("train_dataset", LEVELS.to_iterable_dataset(), {}, STREAM),
        ("eval_dataset", LEVELS.to_iterable_dataset(), {}, STREAM),
        ("train_dataset", LEVELS.to_list(), BELIEF, r"is a list\. .*Dataset\.from_list"),
    ],
)
def test_what_a_trainer_takes_only_when_it_is_made_is_refused_later(trainer, monkeypatch, name, rows, options, words):
    monkeypatch.setattr(trainer, name, rows)
    for option, value in options.items():
        monkeypatch.setattr(trainer.args, option, value)
    with pytest.raises(ConfigError, match=words):
        trainer.train()


def test_an_evaluation_set_that_a_script_gives_later_is_checked(tmp_path, caplog):
    trainer = made(tmp_path, LEVELS, per_device_eval_batch_size=6, max_steps=1)
    for evaluate in (trainer.evaluate, trainer.predict):
        with pytest.raises(ConfigError, match=r"\(4\)\. Set per_device_eval_batch_size to 4\.$"):
            evaluate(tiny_models.prompts(2))
    assert trainer.evaluate(tiny_models.prompts(1))["eval_reward"] == 1.5  # one batch holds all attempts
    assert not caplog.records
    assert "eval_reward" not in trainer.evaluate({"none": tiny_models.prompts(0)})
    (told,) = [record.message for record in caplog.records if record.name == evaluation_checks.__name__]
    assert told == "this evaluation set has no rows, so an evaluation on it measures nothing. Give it rows."
    trainer.args.eval_strategy, trainer.args.metric_for_best_model = IntervalStrategy.STEPS, "loss"
    trainer.eval_dataset = {"easy": tiny_models.prompts(1)}
    with pytest.raises(ConfigError, match="each evaluation set has a metric of its own, such as eval_easy_loss"):
        trainer.train()


def test_a_subclass_with_its_own_batches_evaluates_on_parts_of_the_size_that_the_options_say(tmp_path):
    class WholeGroups(GRPOPlusTrainer):
        def get_eval_dataloader(self, eval_dataset=None):
            with temporarily(self.args, per_device_eval_batch_size=4):
                return super().get_eval_dataloader(eval_dataset)

    trainer = made(tmp_path, LEVELS, per_device_eval_batch_size=6, cls=WholeGroups)
    assert trainer.evaluate(tiny_models.prompts(3))["eval_reward"] == 1.5


def test_an_evaluation_whose_batches_are_not_known_or_hold_whole_groups_is_not_refused(tmp_path):
    trainer = made(tmp_path, LEVELS, per_device_eval_batch_size=6)
    assert trainer.evaluate(tiny_models.prompts(1).to_iterable_dataset())["eval_reward"] == 1.5
    loader = trainer.get_eval_dataloader(tiny_models.prompts(1))
    assert "eval_loss" in trainer.evaluation_loop(loader, "an own one").metrics
    trainer.num_generations_eval = 3
    assert "eval_reward" in trainer.evaluate(tiny_models.prompts(4))


def test_after_a_dataset_was_refused_another_one_is_trained_on(tmp_path):
    trainer = made(tmp_path, LEVELS, max_steps=1)
    trainer.train_dataset = BAD["no prompts"]
    with pytest.raises(ConfigError):
        trainer.train()
    trainer.train_dataset = LEVELS.select(range(4))
    trainer.train()
    assert trainer.state.global_step == 1


MESSAGES = [{"role": "system", "content": "[x]"}, {"role": "user", "content": "1\n+ 1"}]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (json.dumps(MESSAGES), "json.loads(row['prompt'])"),
        (json.dumps(MESSAGES, indent=2) + "\n", "json.loads(row['prompt'])"),
        (str(MESSAGES), "ast.literal_eval(row['prompt'])"),
        (
            str(numpy.array(MESSAGES)),
            "Save the messages as JSON lines",
        ),  # as pandas writes the lists of a parquet file
    ],
)
def test_texts_that_hold_messages_are_refused(text, advice):
    data = Dataset.from_dict({"prompt": [text]})
    with pytest.raises(ConfigError, match="the prompts are texts that hold lists of messages") as error:
        check_prompts(data, None)
    assert advice in str(error.value)
    assert wrong_prompts(data, "train_dataset") == str(error.value)


def test_a_task_about_json_may_have_a_prompt_of_messages():
    check_prompts(Dataset.from_dict({"prompt": [json.dumps(MESSAGES), "Which role has the first message?"]}), None)


@pytest.mark.parametrize(
    "text",
    ["[1, 2]", '[{"name": "role"}]', f"Sum up: {json.dumps(MESSAGES)}", "[a] {'role': 1} [b]", '{"role": "user"}'],
)
def test_texts_of_another_kind_may_have_brackets(text):
    check_prompts(Dataset.from_dict({"prompt": [text]}), None)


def test_prompts_made_by_a_transform_are_not_checked():
    data = Dataset.from_dict({"question": ["1 ", "2 "]}).with_transform(lambda rows: {"prompt": rows["question"]})
    check_prompts(data, None)


def test_the_first_row_that_a_transform_makes_is_checked_in_a_recipe():
    data = Dataset.from_dict({"question": ["1 ", "2 "]})

    def found(make):
        return wrong_prompts(data.with_transform(make), "train_dataset")

    assert found(lambda rows: {"prompt": rows["question"]}) is None
    assert re.match("train_dataset, as its transform .* has no column 'prompt'.* It has 'text'", found(texts_alone))
    assert "The first one is 1" in found(lambda rows: {"prompt": [1 for _ in rows["question"]]})
    unknown = data.to_iterable_dataset().map(lambda row: {"text": ""}, remove_columns="question")
    assert unknown.column_names is None
    assert "It has 'text'" in wrong_prompts(unknown, "train_dataset")


def texts_alone(rows):
    return {"text": rows["question"]}


def test_messages_that_are_stored_as_json_are_messages():
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": "1", "extra": {"a": 1}}]},
            {"prompt": [{"role": "user", "content": 2}]},
        ],
        on_mixed_types="use_json",
    )
    assert "Json" in str(data.features["prompt"])
    check_prompts(data, None)


PROMPTS = {
    "None": (["1+1=", None] * 4, "4 of 8 prompts are empty, row 1, 3, 5, ..."),
    "None first": ([None, *["1+1="] * 7], "1 of 8 prompts is empty, row 0 "),
    "empty texts": (["1+1=", ""] * 4, "4 of 8 prompts are empty, row 1, 3, 5, ..."),
    "no messages": ([messages(), []] * 4, "4 of 8 prompts are empty, row 1, 3, 5, ..."),
    "numbers": ([1, 2] * 4, "a prompt must be a text or a list of messages .* The first one is 1"),
    "token ids": ([[4, 5]] * 8, r"The first one is \[4, 5\]"),
    # The tokenizer refuses one or three texts in TRL's first step. It takes two texts for a pair.
    "a list of one text": ([["1+1="]] * 8, r"The first one is \['1\+1='\]"),
    "a list of three texts": ([["1+", "1", "="]] * 8, r"The first one is \['1\+', '1', '='\]"),
    "no content": ([[{"role": "user"}]] * 8, r"The first one has a message without content: {'role': 'user'}"),
    "no role": ([[{"content": "1"}]] * 8, "The first one is"),
}


@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize("what", ["train_dataset", "eval_dataset"])
def test_prompts_that_would_stop_a_later_step_are_refused_with_their_rows(tmp_path, kind, what):
    prompts, words = PROMPTS[kind]
    data = Dataset.from_dict({"prompt": prompts})
    good = Dataset.from_dict({"prompt": [messages()] * 8 if isinstance(prompts[0], list) else ["1+1="] * 8})
    sets = {"train_dataset": good, what: data}
    extra = {name: rows for name, rows in sets.items() if name != "train_dataset"}
    with pytest.raises(ConfigError, match=f"^{what}: .*{words}"):
        made(tmp_path, sets["train_dataset"], extra={"processing_class": tiny_models.chat_tokenizer(), **extra})


def test_messages_without_a_template_for_them_are_refused(tmp_path):
    data = Dataset.from_dict({"prompt": [messages()] * 8})
    with pytest.raises(ConfigError, match=r"train_dataset: the prompts are messages, but .* has no chat template"):
        made(tmp_path, data)
    made(tmp_path, data, extra={"processing_class": tiny_models.chat_tokenizer()})


@pytest.mark.parametrize("prompts", [["1+1=", "  "] * 4, [messages("1"), messages(""), messages(None)] * 3])
def test_prompts_that_trl_trains_on_are_not_refused(tmp_path, prompts):
    trainer = made(
        tmp_path, Dataset.from_dict({"prompt": prompts}), extra={"processing_class": tiny_models.chat_tokenizer()}
    )
    trainer.train()
    assert trainer.state.global_step == 3


@pytest.mark.parametrize("mode", ["keep", "resample"])
def test_prompts_of_two_texts_are_trained_on_as_trl_trains_on_them(tmp_path, mode, caplog):
    """The tokenizer joins the two texts of a prompt. The run equals TRL's, and its traces hold both texts."""
    prompts = [[f"{number:02d}+", f"{number:02d}="] for number in range(30)]
    data = Dataset.from_dict({"prompt": prompts, "number": list(range(30))})
    ours = tiny_models.trained(tmp_path / "ours", data=data, zero_variance_groups=mode)
    if mode == "keep":
        tiny_models.assert_same(ours, tiny_models.trained(tmp_path / "theirs", data=data, cls=GRPOTrainer))
    rows = [row for group in traces.groups(tmp_path / "ours" / "run") for row in group]
    assert all(row["prompt"] in prompts for row in rows)
    assert "could not be kept" not in caplog.text


def test_empty_prompts_are_allowed_if_the_tokenizer_adds_a_first_token(tmp_path):
    class Begins(type(tiny_models.tokenizer())):
        def __call__(self, text, **options):
            return super().__call__([f"={one}" for one in text] if isinstance(text, list) else f"={text}", **options)

    tokenizer = copy.deepcopy(tiny_models.tokenizer())
    tokenizer.__class__ = Begins
    made(tmp_path, Dataset.from_dict({"prompt": [""] * 8}), extra={"processing_class": tokenizer}).train()


def test_rows_that_were_filtered_out_are_not_checked(tmp_path):
    data = Dataset.from_dict({"prompt": [None, "1+1=", "", *["2+2="] * 8]})
    made(tmp_path, data.filter(lambda row: row["prompt"]))
    with pytest.raises(ConfigError, match="1 of 8 prompts is empty, row 7 "):
        made(tmp_path, data.select([*range(3, 10), 0]))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["Prompt", "answer"], r"Rename it: dataset.rename_column\('Prompt', 'prompt'\)"),
        (["id", "messages"], r"rename_column\('messages', 'prompt'\)\. Remove the assistant's last message"),
        (["id", "PROMPT"], r"If it is 'PROMPT', rename it"),
        (
            ["id", "cost"],
            r"Rename the column that holds the prompts, as in dataset.rename_column\('question', 'prompt'\)",
        ),
    ],
)
def test_the_likeliest_column_is_named(tmp_path, columns, words):
    with pytest.raises(ConfigError, match=words):
        made(tmp_path, Dataset.from_dict(dict.fromkeys(columns, ["1+1="] * 8)))


def test_no_image_is_decoded_and_no_transform_is_run(tmp_path):
    broken = [{"bytes": b"no picture", "path": None}] * 8
    rows = pyarrow.table({"prompt": ["1+1="] * 8, "image": broken})
    check_prompts(Dataset(rows).cast(Features({"prompt": Value("string"), "image": Image()})), None)

    def transform(rows):
        raise AssertionError("the transform was run")

    check_prompts(Dataset.from_dict({"prompt": [1] * 8}).with_transform(transform), None)


def test_checks_of_prompts_copy_no_text_and_run_no_python_for_each_row():
    rows = 30_000
    calls, memory = work_of_checks(rows, tiny_models.tokenizer())
    assert calls < rows
    assert memory < 50 * rows  # in bytes; a copy of the texts takes 150 and more for each row


def work_of_checks(rows, tokenizer):
    """Check that many prompts. Return the number of calls in Python, and the peak memory of Python and of Arrow."""
    texts = pyarrow.array([f"What is {i}+{i}? " * 10 for i in range(1000)])
    data = Dataset(pyarrow.table({"prompt": texts.take(pyarrow.array(numpy.arange(rows) % 1000))}))
    calls, usual = [], pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(usual)
    pyarrow.set_memory_pool(pool)
    tracemalloc.start()
    sys.setprofile(lambda frame, event, arg: calls.append(event) if event.endswith("call") else None)
    try:
        check_prompts(data, None)
        check_tokens(data, None, tokenizer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        sys.setprofile(None)
        tracemalloc.stop()
        pyarrow.set_memory_pool(usual)
    return len(calls), peak + pool.max_memory()


@pytest.mark.parametrize("entry", [False, True])
@pytest.mark.parametrize("column", ["prompts", "completions"])
def test_a_column_named_like_an_argument_of_trl_is_refused(tmp_path, column, entry):
    data = tiny_models.prompts(30).add_column(column, ["x"] * 30)
    for sets in ({"data": data}, {"extra": {"eval_dataset": data}}):
        with pytest.raises(
            ConfigError, match=rf"_dataset: TRL gives .*rename_column\('{column}', 'old_{column}'\), in a recipe"
        ):
            tiny_models.trainer(tmp_path, {"name": by_place} if entry else by_place, **sets)


@pytest.mark.parametrize("column", ["completion", "completion_ids", "log_extra", "trainer_state"])
def test_a_column_that_trl_leaves_out_or_replaces_is_not_refused(tmp_path, column):
    made(tmp_path, tiny_models.prompts(30).add_column(column, ["x"] * 30), max_steps=1).train()


@reads_columns("number")
def less_number(values, scored, batch):
    return values - torch.tensor(batch.columns["number"], dtype=values.dtype).unsqueeze(1)


@pytest.mark.parametrize(
    ("reward", "options"),
    [
        (tiny_models.half_dead, {}),
        (tiny_models.half_dead, {"data": tiny_models.prompts(30).to_iterable_dataset()}),
        (by_place, {"advantage_baseline": less_number}),
    ],
)
def test_a_column_that_is_read_and_removed_as_unused_is_refused(tmp_path, reward, options):
    options = {"remove_unused_columns": True, "max_steps": 1, **options}
    with pytest.raises(ConfigError, match=r"remove_unused_columns=True removes .* column 'number'") as failure:
        tiny_models.trainer(tmp_path, reward, **options)
    assert "Set it to False" in str(failure.value)
    assert tiny_models.trained(tmp_path, by_place, remove_unused_columns=True, max_steps=1).state.global_step == 1


def test_a_subclass_may_keep_a_column_that_is_unused(tmp_path):
    class Keeps(GRPOPlusTrainer):
        def _set_signature_columns_if_needed(self):
            super()._set_signature_columns_if_needed()
            self._signature_columns = [*self._signature_columns, "number"]

    options = {"cls": Keeps, "remove_unused_columns": True, "max_steps": 1}
    assert tiny_models.trained(tmp_path, tiny_models.half_dead, **options).state.global_step == 1


def test_a_column_that_is_missing_is_not_blamed_on_unused_columns(tmp_path):
    data = tiny_models.prompts(30).rename_column("number", "nummer")
    with pytest.raises(ConfigError) as failure:
        tiny_models.trainer(tmp_path, tiny_models.half_dead, data=data, remove_unused_columns=True)
    assert "remove_unused_columns" not in str(failure.value)


def test_a_best_metric_that_each_evaluation_set_has_is_refused_without_the_name_of_a_set(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    options |= {"load_best_model_at_end": True, "extra": {"eval_dataset": {"a": tiny_models.prompts(2)}}}
    with pytest.raises(ConfigError, match=r"^metric_for_best_model='loss' .* metric_for_best_model='eval_a_loss'"):
        made(tmp_path, None, **options)
    made(tmp_path, None, **options, metric_for_best_model="eval_a_loss")


@pytest.mark.parametrize(
    ("best", "refused"),
    [("eval_a_reward", True), ("a_rewards/digits/mean", True), ("eval_reward", False), ("eval_a_loss", False)],
)
def test_a_best_metric_of_one_evaluation_set_is_refused(tmp_path, best, refused):
    """transformers would stop at the first evaluation, since TRL's metrics do not have the name of a set."""
    sets = {"a": tiny_models.prompts(4), "b": tiny_models.prompts(4)}
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "metric_for_best_model": best}

    def make():
        return tiny_models.trainer(tmp_path, extra={"eval_dataset": sets}, **options)

    if not refused:
        make()
        return
    with pytest.raises(ConfigError, match=r"the last set, now 'b', decides\. Put 'a' last") as failure:
        make()
    assert str(failure.value).endswith(f"'eval_{best.removeprefix('eval_').removeprefix('a_')}'.")


ENDS = (
    "must have one entry for each prompt in the list that it gets. "
    "The list holds a prompt once for each of its attempts."
)


@pytest.mark.parametrize("options", [{}, {"zero_variance_groups": "drop"}])
def test_what_a_rollout_func_returns_is_counted(tmp_path, options):
    """Each wrong result is an error that has both numbers; log-probs that TRL does not read may be anything."""

    def rollout(change, prompts, trainer):
        output = tiny_models.scripted(prompts, trainer)
        return change(output, [[1] * len(ids) for ids in output["completion_ids"]])

    wrong = {
        f"returned 7 completions for 8 prompts. completion_ids {ENDS}": lambda o, _: {
            name: values and values[:-1] for name, values in o.items()
        },
        "returned 9 completions for 8 prompts.": lambda o, _: {**o, "completion_ids": [*o["completion_ids"], [1]]},
        f"returned 7 prompt_ids for 8 prompts. prompt_ids {ENDS}": lambda o, _: {
            **o,
            "prompt_ids": o["prompt_ids"][1:],
        },
        "returned 7 logprobs for 8 prompts.": lambda o, ones: {**o, "logprobs": ones[1:]},
        "returned 1 env_mask for 8 prompts.": lambda o, ones: {**o, "env_mask": ones[:1]},
        "values in env_mask[7]. env_mask must have one value for each token.": lambda o, ones: {
            **o,
            "env_mask": [*ones[:-1], [1]],
        },
        "a completion without tokens, completion_ids[0]. Return at least one": lambda o, _: {
            **o,
            "completion_ids": [[], *o["completion_ids"][1:]],
        },
        "rollout_func returned a NoneType. It must return a dict": lambda o, _: None,
    }
    trainer = made(tmp_path, None, max_steps=1, extra={"rollout_func": tiny_models.scripted}, **options)
    for words, change in wrong.items():
        trainer.rollout_func = functools.partial(rollout, change)
        with pytest.raises(ConfigError, match=re.escape(words)):
            trainer.train()
    trainer.rollout_func = functools.partial(rollout, lambda o, ones: {**o, "logprobs": [[0.0]] * 8})
    trainer.train()
    trainer.args.off_policy_mask_threshold = 0.5
    with pytest.raises(ConfigError, match=re.escape("values in logprobs[0]. logprobs must have one value for each")):
        trainer.train()
