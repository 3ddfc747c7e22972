"""Tests of resampling: fresh prompts replace dead groups within the allowed rounds, and live groups are kept."""

import copy
import itertools

import numpy as np
import peft
import pytest
import tiny_models
import torch
from accelerate.logging import MultiProcessAdapter
from datasets import Dataset
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusTrainer
from trl_grpo_plus.rollouts import exchange
from trl_grpo_plus.rollouts.groups import Attempt
from trl_grpo_plus.traces import reader as traces


pytestmark = pytest.mark.long


class Recorder:
    """A reward that remembers each call's prompt numbers. A group is alive where `script(call, number)` is true."""

    __name__ = "recorder"

    def __init__(self, script):
        self.script = script
        self.batches = []  # a list of calls per generation batch; each call is a list of prompt numbers, in order
        self.step = None

    def __call__(self, completions, number, trainer_state, **kwargs):
        if self.step != trainer_state.global_step:
            self.step = trainer_state.global_step
            self.batches.append([])
        calls = self.batches[-1]
        calls.append(list(dict.fromkeys(number)))
        shares = tiny_models.digits(completions)
        alive = [self.script(len(calls) - 1, n) for n in number]
        return [share + 0.01 * i if ok else 0.3 for i, (ok, share) in enumerate(zip(alive, shares, strict=True))]


def resample(tmp_path, reward=tiny_models.dead_for_most, **options):
    options = {"per_device_train_batch_size": 16, "zero_variance_groups": "resample", **options}
    return tiny_models.trained(tmp_path, reward, **options)


def train(tmp_path, script, **options):
    reward = Recorder(script)
    return resample(tmp_path, reward, **options), reward.batches


def never(call, n):
    return False


def flat(calls):
    return list(itertools.chain.from_iterable(calls))


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_makes_exactly_the_rounds_allowed(tmp_path, rounds):
    trained, batches = train(tmp_path, never, max_resample_rounds=rounds)
    assert [len(calls) for calls in batches] == [1 + rounds] * 3
    assert tiny_models.logged(trained, "groups/rounds") == [rounds] * 3
    assert tiny_models.logged(trained, "groups/generated") == [4 * (1 + rounds)] * 3
    trained, _ = train(tmp_path, lambda call, n: call == rounds, max_resample_rounds=rounds)
    assert tiny_models.logged(trained, "groups/trained") == [4] * 3, "the last round is examined"


def test_only_the_deficit_is_generated(tmp_path):
    trained, batches = train(tmp_path, lambda call, n: n % 2 == 0, max_resample_rounds=8)
    for calls in batches:
        missing = 4
        for numbers in calls:
            assert len(numbers) == missing
            missing -= sum(n % 2 == 0 for n in numbers)
        assert missing == 0
    assert tiny_models.logged(trained, "groups/trained") == [4] * 3
    assert tiny_models.logged(trained, "tokens/generated")[0] > tiny_models.logged(trained, "tokens/trained")[0]


def test_stops_when_nothing_is_missing(tmp_path):
    trained, batches = train(tmp_path, lambda call, n: True)
    assert [len(calls) for calls in batches] == [1] * 3
    assert tiny_models.logged(trained, "groups/rounds") == [0] * 3


def test_no_prompt_twice_in_a_step(tmp_path):
    _, batches = train(tmp_path, never, max_resample_rounds=5, max_steps=6)
    for calls in batches:
        assert len(flat(calls)) == len(set(flat(calls))) == 24


def test_a_small_dataset_ends_the_rounds_early_and_says_so(tmp_path, caplog):
    """With 7 prompts and 4 per step, the first round finds 3 fresh prompts and the second finds none."""
    MultiProcessAdapter.warning_once.cache_clear()
    trained, batches = train(tmp_path, never, data=tiny_models.prompts(7), max_resample_rounds=5)
    assert [[len(call) for call in calls] for calls in batches] == [[4, 3]] * 3
    assert tiny_models.logged(trained, "groups/rounds") == [1] * 3
    assert caplog.text.count("found no row that is new in this step") == 1


@pytest.mark.parametrize(("fallback", "trained_groups"), [("drop", 1), ("keep", 4)])
def test_live_groups_are_kept_when_rounds_run_out(tmp_path, fallback, trained_groups):
    """One group is alive in the last round. The three others stay dead."""
    first = []

    def script(call, n):
        first.extend([n] if call == 2 and not first else [])
        return call == 2 and n == first[0]

    options = {"max_resample_rounds": 2, "resample_fallback": fallback, "max_steps": 1, "scale_rewards": "none"}
    trained, _ = train(tmp_path, script, **options)
    assert tiny_models.logged(trained, "groups/trained") == [trained_groups]
    assert tiny_models.logged(trained, "groups/alive") == pytest.approx([1 / 12])
    advantages = list(trained._logs["advantages"])
    assert len(advantages) == 4 * trained_groups
    assert sum(a != 0 for a in advantages) >= 3


def test_fallback_raise_says_what_to_do(tmp_path):
    advice = r"4 of 4 groups of step 1 are still dead \(sampled: 100 % tied\).*max_resample_rounds"
    with pytest.raises(RuntimeError, match=advice):
        train(tmp_path, never, resample_fallback="raise")


def test_steps_and_schedule_end_where_they_should(tmp_path):
    """Two epochs of 12 prompts with 4 per step take 6 steps, whatever is resampled. The learning rate equals TRL's."""
    options = {"data": tiny_models.prompts(12), "num_train_epochs": 2, "max_steps": -1}
    ours, batches = train(tmp_path, lambda call, n: n % 3 == 0, **options)
    stock = tiny_models.trained(
        tmp_path, tiny_models.digits, cls=GRPOTrainer, per_device_train_batch_size=16, **options
    )
    assert ours.state.global_step == stock.state.global_step == 6
    for key in ("learning_rate", "epoch"):
        assert tiny_models.logged(ours, key) == tiny_models.logged(stock, key)
    # The dealt prompts of an epoch are each prompt once, whatever was resampled.
    dealt = [calls[0] for calls in batches]
    assert sorted(flat(dealt[:3])) == sorted(flat(dealt[3:])) == list(range(12))
    assert dealt[:3] != dealt[3:]


def test_resampled_prompts_do_not_repeat_within_a_pass(tmp_path):
    """Of 30 prompts each step deals 4 and resamples 4. In 6 steps the 24 resampled prompts are all different."""
    _, batches = train(tmp_path, lambda call, n: call == 1, max_steps=6)
    resampled = flat(calls[1] for calls in batches)
    assert len(resampled) == len(set(resampled)) == 24


def test_two_groups_with_one_prompt_stay_two(tmp_path):
    """Rows 0 and 1 have the same prompt text. One group is alive and the other is dead."""
    data = Dataset.from_dict({"prompt": ["1+1=", "1+1=", "2+2=", "3+3="], "number": [0, 1, 2, 3]})
    options = {"data": data, "zero_variance_groups": "drop", "shuffle_dataset": False, "max_steps": 1}
    trained, _ = train(tmp_path, lambda call, n: n != 1, **options)
    assert tiny_models.logged(trained, "groups/generated") == [4]
    assert tiny_models.logged(trained, "groups/trained") == [3]
    assert list(trained._logs["prompt"]).count("1+1=") == 4


def test_the_columns_follow_their_rows(tmp_path):
    """After groups are exchanged, a reward's logged value still stands beside its own prompt and completion."""

    def reward(completions, prompts, number, log_extra, **kwargs):
        log_extra("note", [f"{p}|{c}|{n}" for p, c, n in zip(prompts, completions, number, strict=True)])
        return tiny_models.dead_for_most(completions, number)

    logs = resample(tmp_path, reward)._logs
    assert len(logs["extra"]["note"]) == len(logs["prompt"]) > 0
    for note, prompt, completion in zip(logs["extra"]["note"], logs["prompt"], logs["completion"], strict=True):
        assert note == f"{prompt}|{completion}|{int(prompt[:2])}"


def test_a_column_without_a_value_for_each_completion_is_left_out_with_a_warning(tmp_path, caplog):
    def reward(completions, number, log_extra, **kwargs):
        log_extra("short", [1])
        log_extra("whole", list(number))
        return tiny_models.dead_for_most(completions, number)

    logs = resample(tmp_path, reward)._logs
    assert set(logs["extra"]) == {"whole"}
    assert caplog.text.count("log_extra('short', values): the values of a batch are not one for each completion") == 1


def test_extra_fields_of_a_rollout_func_reach_the_rewards(tmp_path):
    def rollout(prompts, trainer):
        return {
            **tiny_models.scripted(prompts, trainer),
            "length": [len(prompt) for prompt in prompts],
            "engine": "mine",
        }

    seen = []

    def reward(completions, prompts, number, length, engine, **kwargs):
        seen.append((length == [len(p) for p in prompts], set(engine if isinstance(engine, list) else [engine])))
        return tiny_models.dead_for_most(completions, number)

    resample(tmp_path, reward, extra={"rollout_func": rollout})
    assert len(seen) > 3
    assert all(entry == (True, {"mine"}) for entry in seen)


def test_a_rollout_func_of_another_length_is_refused(tmp_path):
    def rollout(prompts, trainer):
        return tiny_models.scripted(prompts[:8], trainer)

    with pytest.raises(ValueError, match="returned 8 completions for 16 prompts"):
        resample(tmp_path, zero_variance_groups="drop", extra={"rollout_func": rollout})


def test_evaluation_resamples_nothing(tmp_path):
    """Evaluation scores each row of its dataset once, resamples nothing and leaves the stream's position."""
    reward = Recorder(never)
    options = {"zero_variance_groups": "resample", "per_device_eval_batch_size": 8, "eval_strategy": "steps"}
    trained = tiny_models.trainer(tmp_path, reward, **options, extra={"eval_dataset": tiny_models.prompts(6)})
    before = trained._prompts.state_dict()
    metrics = trained.evaluate()
    assert sorted(flat(flat(reward.batches))) == list(range(6))
    assert trained._prompts.state_dict() == before
    assert not any(key.startswith("eval_groups") for key in metrics)


def test_several_iterations_on_a_resampled_batch(tmp_path):
    options = {"num_iterations": 2, "steps_per_generation": 2, "max_steps": 8, "beta": 0.1}
    trained, batches = train(tmp_path, lambda call, n: n % 3 == 0, **options)
    assert trained.state.global_step == 8
    assert len(batches) == 2


def test_asynchronous_rewards(tmp_path):
    async def reward(completions, number, **kwargs):
        return tiny_models.dead_for_most(completions, number)

    assert max(tiny_models.logged(resample(tmp_path, reward), "groups/rounds")) > 0


def chat_tokenizer(ending=""):
    tokenizer = copy.deepcopy(tiny_models.tokenizer())
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}" + ending
    return tokenizer


def chats(text, **columns):
    """Make a dataset of 30 conversations of one message each."""
    prompts = [[{"role": "user", "content": text.format(i)}] for i in range(30)]
    return Dataset.from_dict({"prompt": prompts, **columns})


def test_conversational_prompts(tmp_path):
    def reward(completions, number, **kwargs):
        return tiny_models.dead_for_most([messages[-1]["content"] for messages in completions], number)

    extra = {"processing_class": chat_tokenizer("{% if add_generation_prompt %}={% endif %}")}
    trained = resample(tmp_path, reward, data=chats("{:02d}+1", number=list(range(30))), extra=extra)
    assert max(tiny_models.logged(trained, "groups/rounds")) > 0
    assert trained.state.global_step == 3


def test_resampled_rows_have_the_columns_that_dealt_rows_have(tmp_path):
    seen = []

    def reward(completions, **columns):
        seen.append(sorted(columns))
        return [0.3] * len(completions)

    options = {"zero_variance_groups": "resample", "remove_unused_columns": True, "max_steps": 1}
    tiny_models.trained(tmp_path, reward, **options)
    assert seen == [seen[0]] * 4
    assert "number" not in seen[0]


def test_lora(tmp_path):
    """Resampling trains only the adapter. The reference of its KL is the model without the adapter."""
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    options = {"beta": 0.1, "kl_estimator": "k2", "zero_variance_groups": "resample", "learning_rate": 0.1}
    options |= {"per_device_train_batch_size": 16, "extra": {"peft_config": lora}}
    trained = tiny_models.trainer(tmp_path, **options)
    before = tiny_models.weights(trained)
    trained.train()
    changed = {name for name, value in tiny_models.weights(trained).items() if not torch.equal(value, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert tiny_models.logged(trained, "kl")[-1] > 0


def test_rows_that_share_a_prompt_are_fresh(tmp_path):
    """Rows with one prompt text are different rows: they may differ in a column that a rollout function reads."""
    data = Dataset.from_dict({"prompt": ["1+1="] * 30, "number": list(range(30))})
    trained, batches = train(tmp_path, lambda call, n: n % 2 == 0, data=data, max_steps=2)
    assert min(tiny_models.logged(trained, "groups/rounds")) > 0
    assert all(len(flat(calls)) == len(set(flat(calls))) for calls in batches)


def test_each_attempt_has_objects_of_its_own(tmp_path):
    """If a rollout appends to its prompt, or a reward pops from a list column, no sibling sees the change."""
    lengths, taken = [], []

    def rollout(prompts, trainer):
        texts = [prompt[0]["content"] for prompt in prompts]
        for prompt in prompts:
            prompt += [{"role": "assistant", "content": "1"}, {"role": "user", "content": "2"}]
        lengths.extend(len(prompt) for prompt in prompts)
        return tiny_models.scripted(texts, trainer)

    def reward(completions, left, **kwargs):
        taken.extend(column.pop() for column in left)
        return [0.3] * len(completions)

    extra = {"processing_class": chat_tokenizer(), "rollout_func": rollout}
    data = chats("{:02d}+1=", left=[[i] for i in range(30)])
    trained = resample(tmp_path, reward, data=data, extra=extra, max_steps=2)
    assert tiny_models.logged(trained, "groups/rounds") == [3, 3]
    assert set(lengths) == {3}
    assert len(lengths) == len(taken) == 2 * 4 * 16
    assert [len(set(taken[i : i + 4])) for i in range(0, len(taken), 4)] == [1] * 32


# -- rows are identified by their index in the dataset


class Picture:
    """A value that equals only itself."""


def odd_columns(rows):
    """Transform rows: add columns that JSON cannot hold, that print an address, or whose order differs by process."""
    return {
        **rows,
        "tags": [{f"tag {n}", "a", "b", "c"} for n in rows["number"]],
        "picture": [Picture() for _ in rows["number"]],
        "table": [{(n, 1): b"x", b"key": n} for n in rows["number"]],
        "shared": [ODD] * len(rows["number"]),
    }


ODD = ["one list for all rows"]
DATA = {
    "plain": tiny_models.prompts(30),
    "a transform": tiny_models.prompts(30).with_transform(odd_columns),
    "some columns": tiny_models.prompts(30).with_format("numpy", columns=["number"], output_all_columns=True),
    "tensors": tiny_models.prompts(30).with_format("torch"),
    "vectors": tiny_models.prompts(30).add_column("vector", [[n, n + 1] for n in range(30)]).with_format("torch"),
    "chosen rows": tiny_models.prompts(40).select(range(39, 9, -1)),
}


class Columns(Recorder):
    """A `Recorder` that also keeps the columns that it was called with."""

    def __call__(self, completions, number, **columns):
        number = [int(n) for n in number]
        self.columns = {**getattr(self, "columns", {}), **{tuple(columns): columns}}
        return super().__call__(completions, number, **columns)


@pytest.mark.parametrize("data", DATA.values(), ids=DATA.keys())
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_no_row_comes_twice_and_no_index_is_added_for_any_columns(tmp_path, data, workers):
    reward = Columns(never)
    options = {"max_resample_rounds": 4, "dataloader_num_workers": workers, "steps_per_generation": 2, "max_steps": 4}
    resample(tmp_path, reward, data=data, dataloader_prefetch_factor=2 if workers else None, **options)
    assert len(reward.batches) == 2
    for calls in reward.batches:
        assert len(flat(calls)) == len(set(flat(calls))) == 4 * 8 - 2  # all 30 rows
    (columns,) = reward.columns
    of_trl = {"prompts", "completion_ids", "trainer_state", "log_extra", "log_metric"}
    assert set(columns) - of_trl == set(data[0]) - {"prompt", "number"}


@pytest.mark.parametrize("remove", [False, True])
def test_equal_rows_of_a_dataset_are_different_rows(tmp_path, remove):
    """Rows with equal contents count as different rows, as they do for TRL's sampler."""
    data = Dataset.from_dict({"prompt": ["1+1="] * 30, "number": [1] * 30})
    trained = resample(tmp_path, tiny_models.always_dead, data=data, remove_unused_columns=remove)
    assert tiny_models.logged(trained, "groups/generated") == [16] * 3


@pytest.mark.parametrize("data", ["plain", "some columns", "tensors", "vectors"])
def test_rows_of_another_dataloader_are_identified_by_content(tmp_path, data):
    class WithoutIndices(GRPOPlusTrainer):
        def get_train_dataloader(self):
            return GRPOTrainer.get_train_dataloader(self)

    reward = Columns(never)
    resample(tmp_path, reward, cls=WithoutIndices, data=DATA[data], max_resample_rounds=9)
    assert [sorted(flat(calls)) for calls in reward.batches] == [list(range(30))] * 3


def test_a_sampler_may_read_the_dataset(tmp_path):
    """A sampler that orders rows by a column can read the column from the dataset that it is given."""

    class Ordered(GRPOPlusTrainer):
        def _get_train_sampler(self, dataset=None):
            order = sorted(range(len(dataset)), key=lambda i: -dataset["number"][i])
            assert dataset.column_names == ["prompt", "number"]
            return list(itertools.chain.from_iterable([np.int64(i)] * 4 for i in order))

    _, batches = train(tmp_path, never, cls=Ordered, data=tiny_models.prompts(10), max_steps=2)
    assert [calls[0] for calls in batches] == [[9, 8, 7, 6], [5, 4, 3, 2]]
    assert [sorted(flat(calls)) for calls in batches] == [list(range(10))] * 2


@pytest.mark.parametrize("mode", ["keep", "drop"])
def test_without_resampling_the_dataloader_reads_the_dataset_itself(tmp_path, mode):
    trained = tiny_models.trainer(tmp_path, zero_variance_groups=mode)
    assert trained.get_train_dataloader().dataset is trained.train_dataset


# -- fields that only some rollouts return


def one_round_brings(which, extra, tokens="ab"):
    """Make a `rollout_func` whose completions in round r begin with `tokens[r]`. Round `which` returns `extra` too."""
    came = []

    def rollout(prompts, trainer):
        output = tiny_models.scripted(prompts, trainer)
        letter = tiny_models.tokenizer().convert_tokens_to_ids(tokens[len(came)])
        output["completion_ids"] = [[letter, *ids] for ids in output["completion_ids"]]
        brings = len(came) == which
        came.append(brings)
        return {**output, **extra(output["completion_ids"])} if brings else output

    return rollout


def one_batch(tmp_path, rollout, **options):
    """Train one step on a batch of two rounds with two live groups each.

    Return the trainer, the batch and each completion's first token.
    """
    options = {"max_steps": 1, "extra": {"rollout_func": rollout}, "shuffle_dataset": False, **options}
    trained, _ = train(tmp_path, lambda call, n: call == 1 or n % 2 == 0, **options)
    assert tiny_models.logged(trained, "groups/trained") == [4]
    (batch,) = trained._buffered_inputs
    letters = batch["completion_ids"][:, 0]
    assert sorted(letters.tolist()) == sorted(tiny_models.tokenizer().convert_tokens_to_ids(list("a" * 8 + "b" * 8)))
    return trained, batch, letters


@pytest.mark.parametrize("which", [0, 1])
def test_an_env_mask_of_one_round_is_kept(tmp_path, which):
    rollout = one_round_brings(which, lambda ids: {"env_mask": [[0] + [1] * (len(row) - 1) for row in ids]})
    _, batch, letters = one_batch(tmp_path, rollout)
    masked = letters == tiny_models.tokenizer().convert_tokens_to_ids("ab"[which])
    assert torch.equal(batch["tool_mask"][:, 0] == 0, masked)
    assert batch["tool_mask"][:, 1:].all()
    assert batch["num_items_in_batch"] == batch["completion_mask"].sum() - 8


def test_fields_of_another_rank_are_carried_on_this_rank_too(monkeypatch):
    monkeypatch.setattr(exchange, "gather_object", lambda own: [*own, (True, {True}, True, {"note"})])
    assert exchange.carried([Attempt({}, "p", [1], [2], "c")], "1.14.2") == (True, True, True, {"note"})


@pytest.mark.skipif(not tiny_models.KNOWS_NAN, reason="TRL 1.10 trains on NaN; see the next test")
@pytest.mark.parametrize("which", [0, 1])
def test_log_probs_of_one_round_are_kept_and_the_others_are_nan(tmp_path, which):
    rollout = one_round_brings(which, lambda ids: {"logprobs": [[-1.0] * len(row) for row in ids]})
    options = {"off_policy_mask_threshold": 0.5, "num_iterations": 2, "max_steps": 2}
    trained, batch, letters = one_batch(tmp_path, rollout, **options)
    known = letters == tiny_models.tokenizer().convert_tokens_to_ids("ab"[which])
    logps = batch["sampling_per_token_logps"][batch["completion_mask"].bool()]
    rows = known.unsqueeze(1).expand_as(batch["completion_mask"])[batch["completion_mask"].bool()]
    assert (logps[rows] == -1.0).all()
    assert logps[~rows].isnan().all()
    assert all(loss == loss for loss in tiny_models.losses(trained))
    assert all(weight.isfinite().all() for weight in tiny_models.weights(trained).values())


def test_log_probs_of_one_round_are_refused_if_trl_would_train_on_nan(tmp_path, monkeypatch):
    monkeypatch.setattr("trl.__version__", "1.10.0")
    rollout = one_round_brings(1, lambda ids: {"logprobs": [[-1.0] * len(row) for row in ids]})
    with pytest.raises(
        ValueError, match=r"logprobs for only some attempts.* TRL 1\.10\.0 cannot .*for all attempts or for none"
    ):
        one_batch(tmp_path, rollout)


class Marks(GRPOPlusTrainer):
    """A trainer with a collator that marks the prompts that it is given."""

    def get_train_dataloader(self):
        self.data_collator = lambda rows: [{"prompt": f"a{row['prompt']}", "number": row["number"]} for row in rows]
        return super().get_train_dataloader()


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({"zero_variance_groups": "resample"}, "the prompts that replace those of dead groups"),
        ({"prompt_selection": "belief"}, "all prompts"),
    ],
    ids=["resample", "belief"],
)
def test_rows_that_are_drawn_pass_the_collator(tmp_path, options, drawn, caplog):
    trained = tiny_models.trained(tmp_path, tiny_models.dead_for_most, cls=Marks, max_steps=2, **options)
    prompts = {row["prompt"][:1] for group in traces.groups(trained.args.output_dir) for row in group}
    assert prompts == {"a"}
    (option,) = options
    told = f"Marks overrides get_train_dataloader, and {option}="
    assert any(told in message and drawn in message for message in caplog.messages)
