"""Tests of subclasses that override TRL's methods: they train as with TRL's, and all options use their results."""

import itertools
import math
from pathlib import Path

import pytest
import tiny_models
import torch
from slow_cases import one_in
from transformers import TrainerCallback
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusTrainer, attach
from trl_grpo_plus.traces import reader
from trl_grpo_plus.utils.patching import temporarily


def adding(cls):
    """Make a subclass that adds the completion's length in tokens, modulo 3, to TRL's rewards."""

    class Adding(cls):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
            return rewards + torch.tensor([[len(ids) % 3.0] for ids in completion_ids_list])

    return Adding


def scoring(cls):
    """Make a subclass that scores without its reward functions."""

    class ScoringItself(cls):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            return self.accelerator.gather(torch.tensor([[len(text) % 3.0] for text in completions]))

    return ScoringItself


def judging(cls):
    """Make a subclass whose model generates again, and scores by the second completion's tokens."""

    class JudgingItself(cls):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            judgements = self._generate(list(prompts))[1]
            return self.accelerator.gather(torch.tensor([[sum(ids) % 3.0] for ids in judgements]))

    return JudgingItself


def choosing(cls):
    """Make a subclass that samples a batch again if the mean reward is at most 0.5."""

    class Choosing(cls):
        def _generate(self, prompts):
            generated = super()._generate(prompts)
            inputs = [{"prompt": prompt} for prompt in prompts]
            rewards = self._calculate_rewards(inputs, prompts, generated[3], generated[1])
            return generated if rewards.mean() > 0.5 else super()._generate(prompts)

    return Choosing


def writing(cls):
    """Make a subclass whose completions do not come from a model."""

    class WritingItself(cls):
        def _generate(self, prompts):
            made = [[5, 15, 1] if i % 2 else [5, 1] for i in range(len(prompts))]  # the texts are "2a" and "2"
            asked = self.processing_class(list(prompts))["input_ids"]
            texts = self.processing_class.batch_decode(made, skip_special_tokens=True)
            return asked, made, None, texts, None, {}, None, []

    return WritingItself


@pytest.mark.parametrize("subclass", one_in(2, [judging, adding, choosing, scoring, writing]))
def test_with_all_options_off_it_trains_as_on_trls(tmp_path, subclass):
    ours, theirs = (
        tiny_models.trained(tmp_path, tiny_models.digits, subclass(cls)) for cls in (GRPOPlusTrainer, GRPOTrainer)
    )
    tiny_models.assert_same(ours, theirs)
    assert any(tiny_models.losses(ours))


def composing(cls, factor=1.0):
    """Make a subclass that makes the batch itself: it has the inputs of TRL's loss, and nothing of this package."""

    class Composing(cls):
        def _generate_and_score_completions(self, inputs):
            made = super()._generate_and_score_completions(inputs)
            names = [f"{part}_{kind}" for part in ("prompt", "completion") for kind in ("ids", "mask")]
            batch = {name: made[name] for name in (*names, "num_items_in_batch")}
            return {**batch, "advantages": factor * made["advantages"]}

    return Composing


def test_a_subclass_may_make_the_batch_itself(tmp_path):
    ours, theirs = (
        tiny_models.trained(tmp_path, tiny_models.digits, composing(cls)) for cls in (GRPOPlusTrainer, GRPOTrainer)
    )
    tiny_models.assert_same(ours, theirs)
    with pytest.raises(FloatingPointError, match="from a batch that a subclass made"):
        tiny_models.trained(tmp_path / "nan", tiny_models.digits, composing(GRPOPlusTrainer, factor=math.nan))


@pytest.mark.parametrize(
    ("options", "subclass"),
    one_in(
        4,
        itertools.product(
            [{"zero_variance_groups": "drop"}, {"zero_variance_groups": "resample"}, {"std_ddof": 0}],
            [adding, scoring, judging],
        ),
    ),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_verdicts_advantages_and_traces_use_the_subclasss_rewards(tmp_path, subclass, options):
    """Groups are alive by the subclass's rewards. By the reward function alone, none would be."""
    trained = tiny_models.trained(tmp_path, tiny_models.always_dead, subclass(GRPOPlusTrainer), **options)
    assert tiny_models.logged(trained, "groups/alive")[0] > 0
    assert any(tiny_models.losses(trained))
    group = next(reader.groups(Path(trained.args.output_dir)))
    rewards = [row["reward"] for row in group]
    assert len(set(rewards)) > 1
    best, worst = (group[rewards.index(of(rewards))] for of in (max, min))
    assert best["advantage"] > 0 > worst["advantage"]
    # The batch's stand-ins for these methods are removed from the trainer.
    assert not {"_generate", "_calculate_rewards"} & vars(trained).keys()


def test_rewards_are_computed_once_per_round(tmp_path):
    class Counting(GRPOPlusTrainer):
        calls = 0

        def _calculate_rewards(self, *batch):
            self.calls += 1
            return super()._calculate_rewards(*batch)

    options = {"zero_variance_groups": "drop", "max_steps": 2}
    assert tiny_models.trained(tmp_path, tiny_models.half_dead, Counting, **options).calls == 2


def test_an_engine_that_ends_in_training_mode_can_evaluate(tmp_path):
    """TRL's continuous batching calls `model.train()` after it has generated, in evaluations too."""

    class EndsInTraining(GRPOPlusTrainer):
        def _generate_single_turn(self, *args, **kwargs):
            generated = super()._generate_single_turn(*args, **kwargs)
            self.model.train()
            return generated

    options = {"extra": {"eval_dataset": tiny_models.prompts(4)}, "eval_strategy": "steps", "eval_steps": 1}
    trained = tiny_models.trained(tmp_path, tiny_models.digits, cls=EndsInTraining, max_steps=2, **options)
    assert len(tiny_models.logged(trained, "eval_reward")) == 2
    assert {path.name.partition("-")[0] for path in (tmp_path / "run" / "rollouts").glob("*-*.jsonl")} == {
        "train",
        "eval",
    }


def evaluating(cls):
    """Make a subclass that evaluates while it scores a training batch."""

    class Evaluating(cls):
        def _calculate_rewards(self, *batch):
            rewards = super()._calculate_rewards(*batch)
            if self.model.training:
                self.evaluate(tiny_models.prompts(4))
                self.model.train()
            return rewards

    return Evaluating


@pytest.mark.parametrize("option", [None, "attach", *one_in(2, ["drop", "resample"])])
def test_it_can_evaluate_while_it_scores_a_batch(tmp_path, option):
    options = {} if option in (None, "attach") else {"zero_variance_groups": option}
    cls = GRPOTrainer if option == "attach" else GRPOPlusTrainer
    ours = tiny_models.trainer(tmp_path / "ours", tiny_models.half_dead, evaluating(cls), **options)
    if option == "attach":
        attach(ours)
    ours.train()
    if not options:
        theirs = tiny_models.trained(tmp_path / "theirs", tiny_models.half_dead, evaluating(GRPOTrainer))
        tiny_models.assert_same(ours, theirs)
    assert any(tiny_models.losses(ours))
    rows = {"train": [], "eval": []}
    for group in reader.groups(Path(ours.args.output_dir)):
        rows[group[0]["split"]] += group
    assert len(rows["eval"]) == ours.state.max_steps * 4 * ours.num_generations_eval
    assert len(rows["train"]) >= ours.state.max_steps * ours.args.generation_batch_size


class Hints(GRPOPlusTrainer):
    """A trainer that adds a column to the rows."""

    def _generate_and_score_completions(self, inputs):
        return super()._generate_and_score_completions([{**row, "hint": "1"} for row in inputs])


def test_a_subclass_may_add_a_column_that_a_reward_reads(tmp_path):
    def hinted(completions, hint):
        return [float(place % 4) for place in range(len(hint))]

    trained = tiny_models.trained(tmp_path, hinted, cls=Hints, max_steps=1)
    assert tiny_models.logged(trained, "reward") == [1.5]
    with pytest.raises(ValueError, match="needs the column 'hint'"):  # a row that is drawn would not have it
        tiny_models.trainer(tmp_path / "drawn", hinted, cls=Hints, zero_variance_groups="resample")


def splitting(cls):
    """Make a subclass that splits the batch itself. As in TRL's batches of texts, it expects tensors only."""

    class Splitting(cls):
        def _prepare_inputs(self, rows):
            if self._step % self.args.steps_per_generation == 0:
                made = self._generate_and_score_completions(rows)
                size = len(made["prompt_ids"]) // self.args.steps_per_generation
                self._buffered_inputs = [
                    {name: value[at : at + size] if value.dim() else value for name, value in made.items()}
                    for at in range(0, self.args.steps_per_generation * size, size)
                ]
            return self._buffered_inputs[self._step % self.args.steps_per_generation]

    return Splitting


def test_a_subclass_may_split_the_batch_itself(tmp_path):
    ours, theirs = (
        tiny_models.trained(tmp_path, tiny_models.digits, splitting(cls), steps_per_generation=2)
        for cls in (GRPOPlusTrainer, GRPOTrainer)
    )
    tiny_models.assert_same(ours, theirs)


def losing(cls):
    """Make a subclass with a loss of its own, as trainers of before TRL 0.20 had: a mean over rows."""

    class Losing(cls):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            ids, mask = (
                torch.cat([inputs[f"prompt_{of}"], inputs[f"completion_{of}"]], dim=1) for of in ("ids", "mask")
            )
            own = inputs["completion_mask"]
            logps = self._get_per_token_logps_and_entropies(model, ids, mask, own.shape[1])[0]
            gained = (logps - logps.detach()).exp() * inputs["advantages"].unsqueeze(1)
            return -((gained * own).sum(dim=1) / own.sum(dim=1).clamp(min=1)).mean()

    return Losing


def adding_to_the_loss(cls):
    """Make a subclass that adds a term to TRL's loss."""

    class AddingToTheLoss(cls):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs) + 0.01

    return AddingToTheLoss


def logging_more(cls):
    """Make a subclass that adds a number to each log entry."""

    class LoggingMore(cls):
        def log(self, logs, start_time=None):
            super().log({**logs, "mine": 1.0}, start_time)

    return LoggingMore


OWN_LOSS = "Losing computes its own loss"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"zero_variance_groups": "skip"}, "zero_variance_groups='skip' this loss gets the rows of live groups alone"),
        ({"kl_estimator": "k2", "beta": 0.1}, "kl_estimator='k2' has no effect on this loss"),
        ({"beta": 0.1}, None),
    ],
    ids=["skip", "kl_estimator", "off"],
)
def test_a_loss_of_its_own_is_told_of_the_options_that_act_in_trls(tmp_path, caplog, options, told):
    tiny_models.trained(tmp_path / "own", tiny_models.half_dead, losing(GRPOPlusTrainer), **options)
    assert [OWN_LOSS in message and told in message for message in caplog.messages if OWN_LOSS in message] == (
        [True] if told else []
    )
    caplog.clear()
    tiny_models.trained(tmp_path / "term", tiny_models.half_dead, adding_to_the_loss(GRPOPlusTrainer), **options)
    assert not any("own loss" in message for message in caplog.messages)


def test_a_loss_of_its_own_trains_as_on_trls(tmp_path):
    ours, theirs = (
        tiny_models.trained(tmp_path, tiny_models.digits, losing(cls)) for cls in (GRPOPlusTrainer, GRPOTrainer)
    )
    tiny_models.assert_same(ours, theirs)


@pytest.mark.parametrize("attached", [False, True], ids=["ours", "attach"])
@pytest.mark.parametrize(
    ("subclass", "says"),
    [(losing, False), (adding_to_the_loss, False), (logging_more, True)],
    ids=["its own loss", "a term", "TRL's loss"],
)
def test_no_run_with_another_loss_is_told_to_skip_dead_groups(tmp_path, capsys, subclass, says, attached):
    """In another loss dead groups may have a part, such as in a bonus."""
    cls = subclass(GRPOTrainer if attached else GRPOPlusTrainer)
    made = tiny_models.trainer(tmp_path, tiny_models.half_dead, cls, per_device_train_batch_size=16)
    if attached:
        attach(made)
    made.train()
    assert ("with the same gradient" in capsys.readouterr().out) is says


class EasyFirst(GRPOPlusTrainer):
    """A trainer that deals the rows in their order."""

    def _get_train_sampler(self, dataset=None):
        self.shuffle_dataset = False
        return super()._get_train_sampler(dataset)


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({"zero_variance_groups": "resample"}, "the prompts that replace those of dead groups"),
        ({"prompt_selection": "belief"}, "all prompts"),
        ({"zero_variance_groups": "skip"}, None),
    ],
    ids=["resample", "belief", "skip"],
)
def test_a_sampler_of_its_own_is_told_of_prompts_that_are_drawn(tmp_path, options, drawn, caplog):
    tiny_models.trainer(tmp_path, cls=EasyFirst, **options)
    told = [message for message in caplog.messages if "EasyFirst overrides _get_train_sampler" in message]
    assert [drawn in message for message in told] == ([True] if drawn else [])


def seems_short(completions, **kwargs):
    return [float(len(text) < 5) for text in completions]


class OtherRewards(TrainerCallback):
    """A callback that evaluates with rewards of its own, more or fewer than those of the training."""

    def on_step_end(self, args, state, control, **kwargs):
        trainer, rewards = self.trainer, [tiny_models.digits, seems_short][: state.global_step]
        names = [reward.__name__ for reward in rewards]
        others = {"reward_funcs": rewards, "reward_func_names": names, "reward_weights": torch.ones(len(rewards))}
        with temporarily(trainer, reward_processing_classes=[None] * len(rewards), **others):
            trainer.evaluate(tiny_models.prompts(4))


@pytest.mark.parametrize("cls", [GRPOPlusTrainer, GRPOTrainer], ids=["ours", "attach"])
def test_a_callback_may_evaluate_with_other_rewards(tmp_path, cls):
    """The traces of each batch have the names of its own rewards."""
    callback = OtherRewards()
    callback.trainer = trainer = tiny_models.trainer(
        tmp_path, tiny_models.half_dead, cls, max_steps=2, extra={"callbacks": [callback]}
    )
    if cls is GRPOTrainer:
        attach(trainer)
    trainer.train()
    named = {(row["split"], row["step"]): row["rewards"] for group in reader.groups(tmp_path / "run") for row in group}
    assert {place: [*rewards] for place, rewards in named.items()} == {
        ("train", 1): ["half_dead"],
        ("train", 2): ["half_dead"],
        ("eval", 1): ["digits"],
        ("eval", 2): ["digits", "seems_short"],
    }


def making(cls, scores=False):
    """Make a subclass that samples without TRL's methods; with `scores` it calls the method that computes rewards."""

    class Making(cls):
        def _generate_and_score_completions(self, rows):
            size = len(rows)
            asked = torch.tensor(self.processing_class([row["prompt"] for row in rows])["input_ids"])
            made = torch.tensor([[5, 5 + row % 3, 1] for row in range(size)])
            ones = {"prompt_mask": torch.ones_like(asked), "completion_mask": torch.ones_like(made)}
            gained = torch.tensor([row % 3 - 1.0 for row in range(size)])
            if scores:
                texts = self.processing_class.batch_decode(made, skip_special_tokens=True)
                self._calculate_rewards(rows, [row["prompt"] for row in rows], texts, made.tolist())
            batch = {"prompt_ids": asked, "completion_ids": made, "advantages": gained, **ones}
            return {**batch, "num_items_in_batch": torch.tensor(made.numel())}

    if scores:
        Making.__name__ = "Scoring"  # a warning for each name is logged once in a process
    return Making


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "for the page and the alarms."),
        ({"zero_variance_groups": "skip"}, "These options have no effect on them: zero_variance_groups."),
    ],
    ids=["off", "skip"],
)
def test_batches_that_a_subclass_makes_alone_are_told_of(tmp_path, caplog, options, told):
    ours = tiny_models.trained(tmp_path / "ours", tiny_models.digits, making(GRPOPlusTrainer), **options)
    assert [message.endswith(told) for message in caplog.messages if "Making makes its batches" in message] == [True]
    tiny_models.assert_same(ours, tiny_models.trained(tmp_path, tiny_models.digits, making(GRPOTrainer)))


def test_a_subclass_with_its_own_batches_and_its_own_loss_is_told_of_all_options(tmp_path, caplog):
    options = {"zero_variance_groups": "skip", "kl_estimator": "k2", "beta": 0.1}
    tiny_models.trained(tmp_path, tiny_models.digits, losing(making(GRPOPlusTrainer)), **options)
    told = [message for message in caplog.messages if "Losing" in message]
    assert told[0].endswith("These options have no effect on them: zero_variance_groups.")
    assert told[1].endswith("kl_estimator='k2' has no effect on this loss.")  # no word of groups: none are filtered


@pytest.mark.parametrize("scores", [False, True])
def test_attach_does_not_stop_a_run_that_makes_its_batches_alone(tmp_path, caplog, scores):
    watched = tiny_models.trainer(tmp_path / "watched", tiny_models.digits, making(GRPOTrainer, scores))
    attach(watched)
    watched.train()
    assert any("attach cannot keep its attempts" in message for message in caplog.messages)
    tiny_models.assert_same(watched, tiny_models.trained(tmp_path, tiny_models.digits, making(GRPOTrainer)))


def halving(cls):
    """Make a subclass that trains on the second half of each batch alone."""

    class Halving(cls):
        def _generate_and_score_completions(self, rows):
            made = super()._generate_and_score_completions(rows)
            half = len(made["completion_ids"]) // 2
            return {name: value[half:] if value.dim() else value for name, value in made.items()}

    return Halving


def doubling(cls):
    """Make a subclass that samples each batch twice, and trains on the first one."""

    class Doubling(cls):
        def _generate_and_score_completions(self, rows):
            made = super()._generate_and_score_completions([{**row} for row in rows])
            super()._generate_and_score_completions([{**row} for row in rows])
            return made

    return Doubling


@pytest.mark.parametrize("subclass", [halving, doubling])
def test_attach_shows_trls_advantages_where_a_subclass_trains_on_other_rows(tmp_path, caplog, subclass):
    """An advantage is never beside an attempt of another row."""
    evaluation = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "per_device_eval_batch_size": 16,
    }  # more rows than TRL logs
    extra = {"eval_dataset": tiny_models.prompts(4)}
    watched = tiny_models.trainer(
        tmp_path / "watched", tiny_models.digits, subclass(GRPOTrainer), extra=extra, **evaluation
    )
    attach(watched)
    watched.train()
    assert sum("trains on other rows" in message for message in caplog.messages) == 1
    tiny_models.assert_same(
        watched,
        tiny_models.trained(tmp_path, tiny_models.digits, subclass(GRPOTrainer), extra=extra, **evaluation),
    )
    shown = 0
    for group in reader.groups(tmp_path / "watched" / "run"):
        rewards = torch.tensor([row["reward"] for row in group])
        own = [row["advantage"] for row in group]
        if group[0]["split"] == "train":
            assert own == pytest.approx(((rewards - rewards.mean()) / (rewards.std() + 1e-4)).tolist(), abs=1e-4)
            shown += 1
    assert shown == 6
