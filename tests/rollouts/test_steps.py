"""Tests of step rewards: from characters to tokens, from steps to advantages, and in training."""

import itertools
import json
import math
import random
import re
import statistics
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from accelerate.logging import MultiProcessAdapter
from advantages_by_keyword import compute
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.config.compatibility import check_model
from trl_grpo_plus.objective import padding
from trl_grpo_plus.objective.credit import of_steps
from trl_grpo_plus.registry import Step
from trl_grpo_plus.rollouts.groups import Attempt, judge_batch
from trl_grpo_plus.rollouts.steps import StepMarks, last_tokens, marked, steps_of_group
from trl_grpo_plus.scoring import RewardError
from trl_grpo_plus.traces import reader
from trl_grpo_plus.traces.token_runs import runs
from trl_grpo_plus.trainer.batch import _marked


# -- from steps to advantages


def naive(steps, lengths, process, ddof, eps, scale="group"):
    """Compute advantages token by token, as the formulas read."""
    rewards = [reward for of_one in steps for _, reward in of_one]
    mean = statistics.fmean(rewards)
    spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - ddof)) + eps if scale == "group" else 1

    def earns(of_one, token):
        starts = [0, *(last + 1 for last, _ in of_one)]
        if process == "to_go":
            mine = [reward for last, reward in of_one if last >= token]
        else:
            mine = [
                r for start, (last, r) in zip(starts, of_one, strict=False) if start <= token <= last or token == last
            ]
        return sum((reward - mean) / spread for reward in mine)

    return [[earns(of_one, token) for token in range(n)] for of_one, n in zip(steps, lengths, strict=True)]


def listed(advantages):
    return [values.tolist() for values in advantages]


def test_the_worked_example():
    """Each attempt has one step. DeepSeekMath's rewards (1, 1, 1, 0) are normalised by the population std."""
    values = of_steps([[(0, 1.0)], [(1, 1.0)], [(0, 1.0)], [(2, 0.0)]], [1, 2, 1, 3], ddof=0, eps=0.0)
    expected = [[0.577], [0.577, 0.577], [0.577], [-1.732] * 3]
    assert listed(values) == [pytest.approx(of_one, abs=1e-3) for of_one in expected]


def test_steps_of_all_attempts_are_normalised_together():
    """The rewards are 1, 0, 1, 1, 1, 0: mean 2/3, population std sqrt(2)/3. So a step earns +0.707 or -1.414."""
    steps, lengths = [[(1, 1.0), (2, 0.0)], [(0, 1.0), (2, 1.0)], [(0, 1.0), (1, 0.0)]], [4, 3, 2]
    to_go = [[-0.707, -0.707, -1.414, 0.0], [1.414, 0.707, 0.707], [-0.707, -1.414]]
    assert listed(of_steps(steps, lengths, ddof=0, eps=0.0)) == [pytest.approx(one, abs=1e-3) for one in to_go]
    own = [[0.707, 0.707, -1.414, 0.0], [0.707, 0.707, 0.707], [0.707, -1.414]]
    values = of_steps(steps, lengths, "own", ddof=0, eps=0.0)
    assert listed(values) == [pytest.approx(one, abs=1e-3) for one in own]


@pytest.mark.parametrize("process", ["to_go", "own"])
def test_step_advantages_equal_the_formulas(process):
    rng = random.Random(3)
    for _ in range(300):
        lengths = [rng.randrange(0, 7) for _ in range(rng.randrange(1, 5))]
        steps = [
            [(last, rng.choice([0.0, 0.5, 1.0, -2.0])) for last in sorted(rng.choices(range(n), k=rng.randrange(4)))]
            if n
            else []
            for n in lengths
        ]
        rewards = {reward for of_one in steps for _, reward in of_one}
        ddof, eps, scale = rng.choice([0, 1]), rng.choice([0.0, 1e-4]), rng.choice(["group", "none"])
        values = listed(of_steps(steps, lengths, process, ddof, eps, scale=scale))
        if len(rewards) < 2:
            assert values == [[0.0] * n for n in lengths]
        else:
            expected = naive(steps, lengths, process, ddof, eps, scale)
            assert values == [pytest.approx(of_one, abs=1e-9) for of_one in expected]


def test_one_step_per_attempt_equals_a_reward_of_the_whole():
    rewards = torch.tensor([[0.1, 0.9, 0.4, 0.4]])
    values = of_steps([[(2, reward)] for reward in rewards[0].tolist()], [3] * 4)
    torch.testing.assert_close(torch.stack(values), compute(rewards.double()).view(4, 1).expand(4, 3))


@pytest.mark.parametrize("steps", [[(1, 1.0), (0, 1.0)], [(3, 1.0)], [(-1, 1.0), (0, 0.0)]])
def test_steps_that_are_not_in_order_are_refused(steps):
    with pytest.raises(ValueError, match=r"must end in order, at tokens from 0 to 2"):
        of_steps([steps], [3])


def test_beside_steps_a_whole_score_is_one_step_and_no_score_is_none():
    marks = [
        StepMarks(3, (((1, 1.0),), None)),
        StepMarks(2, (None, None)),
        StepMarks(2, (None, None)),
        StepMarks(2, ((), None)),
    ]
    rewards = torch.tensor([[1.0, 0.0], [torch.nan, 1.0], [0.5, 1.0], [0.0, 0.0]])
    assert steps_of_group(rewards, marks) == {0: [((1, 1.0),), [], [(1, 0.5)], ()]}


def test_advantages_are_as_wide_as_the_completions_of_their_rank():
    """Advantages are cut or padded. Completions of other ranks may be longer, and TRL may pad."""
    ids = torch.ones(2, 3, dtype=torch.long)
    assert padding.fitting(torch.ones(2, 2), ids).tolist() == [[1.0, 1.0, 0.0]] * 2
    assert padding.fitting(torch.ones(2, 4), ids).tolist() == [[1.0, 1.0, 1.0]] * 2
    assert padding.fitting(torch.ones(2), ids).tolist() == [1.0, 1.0]


# -- from characters to tokens

CORPUS = ["3 * 4 = 12\n", "so naïve 12 + 5 = 17 👍🏽\n", "日本語 and 👩‍👩‍👧 are the same: the end"] * 4
TEXTS = ["3 * 4 = 12\n12 + 5 = 17\n", "naïve 👍🏽👩‍👩‍👧 日本", "👍", " a", "x\ufffd\ufffdé", ""]


def byte_level():
    """Make a tokenizer like GPT-2's, which merges bytes across characters."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    return made


def byte_fallback():
    """Make a tokenizer like Llama 2's, which has a token for each byte of an unknown character."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pieces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(pieces)
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    made.train_from_iterator(["abc 12 = "], trainers.BpeTrainer(vocab_size=280, special_tokens=special))
    vocabulary = json.loads(made.to_str())
    vocabulary["added_tokens"] = []  # special tokens would not be decoded
    return Tokenizer.from_str(json.dumps(vocabulary))


def word_pieces():
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=True)
    made.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"]))
    return made


KINDS = {kind.__name__: kind for kind in (byte_level, byte_fallback, word_pieces)}


@pytest.fixture(scope="module", params=KINDS)
def fast(request):
    return PreTrainedTokenizerFast(tokenizer_object=KINDS[request.param](), eos_token="<eos>", pad_token="<pad>")


def decoder(tokenizer):
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


def in_turn(ids, text, end, decode):
    """Return the first token such that the text decoded up to it agrees with `text` up to `end`."""
    return next(i for i in range(len(ids)) if decode(ids[: i + 1])[:end] == text[:end])


def test_a_step_ends_in_the_first_token_that_holds_all_of_it(fast):
    rng, decode, multiple = random.Random(0), decoder(fast), 0
    for text in [*TEXTS, *(" ".join(rng.choices(TEXTS, k=3)) for _ in range(20))]:
        ids = fast(text).input_ids
        cut = ids[: rng.randrange(len(ids) + 1)]  # sometimes within a character
        for tokens in (ids, [*ids, fast.eos_token_id], [*cut, fast.eos_token_id, fast.pad_token_id], cut):
            whole = decode(tokens)
            ends = list(range(1, len(whole) + 1))
            expected = [in_turn(tokens, whole, end, decode) for end in ends]
            assert last_tokens(tokens, whole, ends, decode) == expected, (text, tokens)
            multiple += any(before + 1 < after for before, after in itertools.pairwise(expected))
    assert multiple or fast.decode(fast("é").input_ids) != "é"  # some characters had several tokens


def stretches(tokens, whole, decode):
    """Return stretches as (end, token): each character belongs to the token of `in_turn`."""
    of_each = [in_turn(tokens, whole, end, decode) for end in range(1, len(whole) + 1)]
    return [
        (end + 1, float(token))
        for end, token in enumerate(of_each)
        if end + 1 == len(of_each) or of_each[end + 1] != token
    ]


def test_advantages_of_tokens_lie_on_the_characters_that_they_end(fast):
    decode, multiple = decoder(fast), 0
    for text in [*TEXTS, *CORPUS[:3], " ".join(CORPUS[:3])]:
        ids = [*fast(text).input_ids, fast.eos_token_id, fast.pad_token_id]
        whole, numbers = decode(ids), [float(token) for token in range(len(ids))]
        expected = stretches(ids, whole, decode)
        found = runs(ids, whole, numbers, decode)
        assert found == expected or ("\ufffd" in text and found[-1] == expected[-1]), (text, ids)
        multiple += any(before + 1 < after for (_, before), (_, after) in itertools.pairwise(expected))
        cut = ids[: len(ids) // 2]  # sometimes within a character
        found = runs(cut, decode(cut), numbers[: len(cut)], decode)
        assert found is None or [end for end, _ in found][-1:] == [len(decode(cut))] * bool(found)
    assert multiple or fast.decode(fast("é").input_ids) != "é"


def test_a_run_of_emoji_that_is_not_complete_is_not_skipped():
    """With 2 bytes of a third character, a byte decoder gives less of the text than for 2 whole characters."""
    fast = PreTrainedTokenizerFast(tokenizer_object=byte_fallback())
    decode, ids = decoder(fast), fast("👍👍👍👍👍").input_ids
    assert len(ids) >= 20
    assert decode(ids[: len(ids) - 1]) != "👍👍👍👍"
    first = len(ids) - 20
    assert last_tokens(ids, "👍👍👍👍👍", [1, 2, 3, 4, 5], decode) == [first + 4 * n - 1 for n in range(1, 6)]


def test_the_text_must_be_the_end_of_what_the_tokens_decode_to():
    fast = tiny_models.tokenizer()
    ids = fast("12=a12").input_ids
    assert last_tokens(ids, "12", [1, 2], decoder(fast)) == [4, 5]
    with pytest.raises(
        ValueError, match=re.escape("'13' is not a part of the text that its 6 tokens decode to, '12=a12'")
    ):
        last_tokens(ids, "13", [1], decoder(fast))


def test_stretches_have_equal_advantages_and_cover_the_text():
    fast = tiny_models.tokenizer()
    ids = [*fast("12=a12").input_ids, fast.eos_token_id]
    values = [9.0, 9.0, 9.0, 0.5, 0.50001, -0.00001, 7.0]
    assert runs(ids, "a12", values, decoder(fast)) == [(2, 0.5), (3, 0.0)]
    assert math.copysign(1, runs(ids, "2", values, decoder(fast))[0][1]) == 1
    assert runs(ids, "13", values, decoder(fast)) is None
    assert runs(ids[-1:], "", [1.0], decoder(fast)) == []


def test_only_tokens_near_a_character_of_several_are_decoded_with_their_neighbours():
    """With neighbours for every token, a batch of 64 attempts of 32,768 tokens took 50 s."""
    fast, decoded = PreTrainedTokenizerFast(tokenizer_object=byte_level()), []

    def counting(ids):
        decoded.append(len(ids))
        return fast.decode(ids)

    ids = fast("👍🏽 é " + "3 * 4 = 12 " * 300).input_ids
    assert len(runs(ids, fast.decode(ids), list(range(len(ids))), counting)) > 600
    assert sum(decoded) < 2 * len(ids)  # one decode of all tokens, and few short ones


def test_text_that_a_later_token_changes_belongs_to_it():
    """A later token may change earlier text, as when a decoder removes the spaces around an apostrophe."""
    words = ["don", "'", "t", "go"]
    found = runs([0, 1, 2, 3], "don't go", [1.0, 2.0, 3.0, 4.0], lambda ids: mended(words[i] for i in ids))
    assert found == [(3, 1.0), (5, 3.0), (8, 4.0)]


def mended(words):
    return " ".join(words).replace(" ' ", "'")


@pytest.mark.parametrize("count", [100, 400])
def test_few_prefixes_are_decoded(count):
    """The decoding work per token does not grow with the completion. With whole prefixes, 700 steps of 32,768 tokens
    took 14 s."""
    fast, decoded = tiny_models.tokenizer(), []

    def counting(ids):
        decoded.append(len(ids))
        return fast.decode(ids)

    text = "12+34=46 " * count
    ends = [9 * n for n in range(1, count + 1)]
    assert last_tokens(fast(text).input_ids, text, ends, counting) == [end - 1 for end in ends]
    assert sum(decoded) < 25 * 9 * count


# -- verdicts


def judged(steps, rewards=None, weights=(1.0,), metric="total", **changes):
    """Return the verdict on one group, whose attempts have 9 tokens each. `steps` are those of the first reward."""
    marks = [StepMarks(9, (of_one, *[None] * (len(weights) - 1))) for of_one in steps]
    sums = [[sum(r for _, r in of_one) if of_one is not None else 0.0] for of_one in steps]
    rewards = torch.tensor(sums if rewards is None else rewards)
    config = {"filter_metric": metric, "multi_objective_aggregation": "sum_then_normalize"}
    config |= {"zero_variance_tolerance": 1e-6, "solved_reward": 1.0, "failed_reward": 0.0}
    names = ["steps", "whole"][: len(weights)]
    (verdict,) = judge_batch(
        SimpleNamespace(**config), rewards, torch.tensor(weights), names, len(steps), marks=marks, **changes
    )
    return verdict


RIGHT_WRONG, WRONG_RIGHT = [(3, 1.0), (7, 0.0)], [(3, 0.0), (7, 1.0)]


def test_a_group_is_alive_where_its_steps_differ():
    assert judged([RIGHT_WRONG, WRONG_RIGHT]) == "alive"  # though their sums are equal
    assert judged([[(3, 0.5)], [(4, 0.5)]]) == "tied"
    assert judged([[(3, 0.0)], [(4, 0.0)]]) == "all_bad"
    assert judged([[(3, 1.0)], [(3, 1.0), (7, 1.0)]]) == "tied"  # all steps earn the same
    assert judged([[(3, 1.0)], None]) == "alive"  # the second attempt has 0 as a whole
    assert judged([RIGHT_WRONG, WRONG_RIGHT], trainable=torch.tensor([False, False])) == "truncated"


def test_a_group_is_alive_where_another_reward_differs():
    alike, both = [[(3, 1.0)], [(3, 1.0)]], {"weights": (1.0, 1.0)}
    assert judged(alike, [[1.0, 0.0], [1.0, 0.5]], **both) == "alive"
    assert judged(alike, [[1.0, 0.5], [1.0, 0.5]], **both) == "all_good"
    assert judged(alike, [[1.0, 0.0], [1.0, 0.5]], metric="steps", **both) == "all_good"
    assert judged([RIGHT_WRONG, WRONG_RIGHT], [[1.0, 0.5], [1.0, 0.5]], metric="whole", **both) == "tied"
    assert judged([RIGHT_WRONG, WRONG_RIGHT], [[1.0, 0.5], [1.0, 0.5]], weights=(0.0, 1.0)) == "tied"  # a monitor's
    assert judged([RIGHT_WRONG, WRONG_RIGHT], [[1.0, 0.5], [1.0, 0.5]], weights=(0.0, 1.0), metric="steps") == "alive"


def test_marks_are_of_the_policys_last_message_and_of_each_reward():
    fast = tiny_models.tokenizer()
    ids = [*fast("12=3").input_ids, fast.eos_token_id]
    steps = [None, (Step(2, 0.5), Step(4, 1.0)), ()]
    assert marked(ids, "12=3", steps, decoder(fast)) == StepMarks(5, (None, ((1, 0.5), (3, 1.0)), ()))


def test_a_text_with_its_special_tokens_has_steps_too():
    """A response template parses a text with its special tokens."""
    fast = tiny_models.tokenizer()
    ids = [*fast("12=3").input_ids, fast.eos_token_id]
    text = fast.decode(ids)
    assert text.endswith(fast.eos_token)
    attempts = [Attempt({}, "", [], ids, written, steps=((Step(2, 0.5),),)) for written in (text, "another")]
    scoring = SimpleNamespace(failures=[])
    assert _marked(attempts, scoring, fast.decode) == [StepMarks(5, (((1, 0.5),),))]
    assert "sample 1 cannot be credited" in scoring.failures[0]
    assert "Leave step_reward_credit out" in scoring.failures[0]


# -- in training


def by_characters(completions, number, **kwargs):
    """Reward each character as a step: 1 for a digit, else 0. An empty text gets 0 as a whole.

    For two of three prompts each step earns 0.3.
    """
    return [
        [Step(i + 1, 0.3 if n % 3 else float(c.isdigit())) for i, c in enumerate(text)] or 0.0
        for text, n in zip(completions, number, strict=True)
    ]


def halved(completions, number, **kwargs):
    """Reward as `by_characters` does, with every second pair of prompts dead."""
    return by_characters(completions, [0 if n % 4 < 2 else 1 for n in number])


def live_ones(completions, **kwargs):
    return by_characters(completions, [0] * len(completions))


def test_tokens_get_the_advantages_of_steps_and_of_other_rewards(tmp_path):
    options = {
        **tiny_models.EXACT,
        "max_steps": 1,
        "reward_weights": [2.0, 0.5],
        "step_reward_credit": "own",
        "std_ddof": 0,
    }
    made = tiny_models.trained(tmp_path, [live_ones, tiny_models.digits], **options)
    (batch,) = made._buffered_inputs
    texts = made.processing_class.batch_decode(batch["completion_ids"], skip_special_tokens=True)
    rows = {}
    for i, text in enumerate(texts):  # TRL shuffles the rows
        prompt = made.processing_class.decode(batch["prompt_ids"][i], skip_special_tokens=True)
        rows.setdefault(prompt, []).append((i, text))
    assert len(rows) == 2
    traced = [row for group in reader.groups(tmp_path / "run") for row in group]
    for of_prompt, group in rows.items():
        steps = [[(at, float(c.isdigit())) for at, c in enumerate(text)] for _, text in group]
        lengths = [len(text) + 1 for _, text in group]
        wholes = tiny_models.digits([text for _, text in group])
        spread = 0.5 * statistics.pstdev(wholes) + 1e-4  # the std of the weighted total without the steps
        own = naive(steps, lengths, "own", 0, 1e-4)
        for (i, text), of_tokens, whole in zip(group, own, wholes, strict=True):
            shared = 0.5 * (whole - statistics.fmean(wholes)) / spread
            expected = [2.0 * value + shared for value in of_tokens]
            assert batch["advantages"][i, : len(text) + 1].tolist() == pytest.approx(expected, abs=1e-4)
            row = next(row for row in traced if (row["prompt"], row["completion"]) == (of_prompt, text))
            assert by_character(row) == pytest.approx(expected[:-1], abs=1e-4)
            assert len(row["advantages"]) == len(list(itertools.groupby(by_character(row))))


@pytest.mark.parametrize(
    ("process", "loss_type", "batching"),
    [
        ("to_go", "dapo", {}),
        ("own", "grpo", {"num_iterations": 2, "steps_per_generation": 2}),
        pytest.param("own", "bnpo", {}, marks=pytest.mark.full),
        pytest.param("to_go", "cispo", {"importance_sampling_level": "sequence"}, marks=pytest.mark.full),
    ],
)
def test_dropping_is_training_on_the_live_groups_alone(tmp_path, process, loss_type, batching):
    options = {**tiny_models.EXACT, "step_reward_credit": process, "loss_type": loss_type, **batching}
    ours = tiny_models.trained(
        tmp_path, halved, zero_variance_groups="drop", per_device_train_batch_size=16, **options
    )
    live = tiny_models.prompts(40).filter(lambda row: row["number"] % 4 < 2)
    alone = tiny_models.trained(tmp_path, live_ones, per_device_train_batch_size=8, data=live, **options)
    assert set(tiny_models.logged(ours, "groups/trained")) == {2 * batching.get("steps_per_generation", 1)}
    for name, value in tiny_models.weights(alone).items():
        torch.testing.assert_close(tiny_models.weights(ours)[name], value, rtol=1e-5, atol=2e-6)
    assert tiny_models.losses(ours) == pytest.approx(tiny_models.losses(alone), rel=1e-5, abs=2e-6)
    kept = tiny_models.trained(tmp_path, halved, per_device_train_batch_size=16, **options)  # the comparison can fail
    assert not tiny_models.same_weights(tiny_models.weights(kept), tiny_models.weights(ours))


def test_filler_rows_change_nothing(tmp_path):
    """3 of 8 groups of 2 are live, on 4 micro-batches: two filler rows make the batch divide evenly."""

    def three_live(completions, number, **kwargs):
        return by_characters(completions, [0 if n % 8 < 3 else 1 for n in number])

    options = {**tiny_models.EXACT, "num_generations": 2, "step_reward_credit": "to_go"}
    batching = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "data": tiny_models.prompts(40)}
    ours = tiny_models.trained(tmp_path, three_live, zero_variance_groups="drop", **batching, **options)
    live = tiny_models.prompts(40).filter(lambda row: row["number"] % 8 < 3)
    alone = tiny_models.trained(tmp_path, live_ones, per_device_train_batch_size=6, data=live, **options)
    assert tiny_models.logged(ours, "groups/trained") == [3, 3]
    for name, value in tiny_models.weights(alone).items():
        torch.testing.assert_close(tiny_models.weights(ours)[name], value, rtol=1e-5, atol=2e-6)


def by_character(row):
    ends = [0, *(end for end, _ in row["advantages"])]
    return [
        value
        for (_, value), (a, b) in zip(row["advantages"], itertools.pairwise(ends), strict=True)
        for _ in range(a, b)
    ]


LONG = {
    "max_steps": 5,
    "save_strategy": "steps",
    "save_steps": 3,
    "steps_per_generation": 2,
    "step_reward_credit": "to_go",
}
LONG |= {"zero_variance_groups": "resample", "max_resample_rounds": 2}


def test_a_run_resumes_in_the_midst_of_a_batch_and_traces_its_steps(tmp_path):
    whole = tiny_models.trained(tmp_path, by_characters, **LONG)
    again = tiny_models.trainer(tmp_path, by_characters, **LONG)
    torch.manual_seed(99)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    tiny_models.assert_same(whole, again)
    assert max(tiny_models.logged(whole, "groups/rounds")) > 0
    rows = [row for group in reader.groups(tmp_path / "run") for row in group]
    assert len({row["round"] for row in rows}) > 1
    for row in rows:
        scored = by_characters([row["completion"]], [row["reference"]["number"]])[0]
        steps = [[step.end, step.reward] for step in scored] if scored else None
        assert row["steps"].get("by_characters") == steps
        assert row["reward"] == pytest.approx(sum(reward for _, reward in steps or []), abs=1e-5)
    kept = [group for group in reader.groups(tmp_path / "run") if group[0]["kept"]]
    assert {group[0]["round"] for group in kept} > {0}
    assert not any("advantages" in row for row in rows if row["reason"] in ("surplus", "zero_variance"))
    for group in kept:
        marks = [
            [(end - 1, reward) for end, reward in row["steps"].get("by_characters") or [(row["tokens"], 0.0)]]
            for row in group
        ]
        values = naive(marks, [row["tokens"] for row in group], "to_go", 1, 1e-4)
        for row, expected in zip(group, values, strict=True):
            assert by_character(row) == pytest.approx(expected[: len(row["completion"])], abs=1e-4)


def test_without_step_reward_credit_the_sum_is_trained_on(tmp_path, caplog):
    def summed(completions, number, **kwargs):
        scored = by_characters(completions, number)
        return [sum(step.reward for step in steps) if steps else 0.0 for steps in scored]

    tiny_models.assert_same(tiny_models.trained(tmp_path, by_characters), tiny_models.trained(tmp_path, summed))
    both = []
    for reward, told in ((tiny_models.digits, 1), (by_characters, 0)):
        caplog.clear()
        MultiProcessAdapter.warning_once.cache_clear()
        both.append(tiny_models.trained(tmp_path, reward, step_reward_credit="to_go"))
        assert caplog.text.count("no reward returned steps") == told
    tiny_models.assert_same(
        both[0], tiny_models.trained(tmp_path, tiny_models.digits, std_floor=1e-12)
    )  # without steps the option changes nothing
    assert not tiny_models.same_weights(
        tiny_models.weights(both[1]), tiny_models.weights(tiny_models.trained(tmp_path, by_characters))
    )


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([Step(3, 1.0), Step(2, 0.0)], "Step 1 of 2, Step(end=2, reward=0.0), must end after step 0, which ends at 3"),
        ([Step(99, 1.0)], "Step 0 of 1, Step(end=99, reward=1.0), ends beyond the text, which has"),
    ],
)
def test_bad_steps_stop_the_run_and_are_named(tmp_path, steps, words):
    def careless(completions, **kwargs):
        return [steps if i == 3 else 0.0 for i in range(len(completions))]

    with pytest.raises(RewardError, match=re.escape(words)) as caught:
        tiny_models.trained(tmp_path, careless, step_reward_credit="to_go", extra=tiny_models.EXACT["extra"])
    assert "reward 'careless' failed on sample 3 of 8" in str(caught.value)


def test_steps_and_tools_are_refused_together(tmp_path):
    args = GRPOPlusConfig(str(tmp_path), bf16=False, use_cpu=True, step_reward_credit="own")
    nothing = {"environments": None, "images": False, "rollouts": None, "tools": None, "trl_version": "1.11.0"}
    check_model(args, **nothing)
    for kinds in ({"tools": [print]}, {"environments": {"a": 1}}):
        with pytest.raises(
            ValueError, match=r"step_reward_credit='own' does not work with tools or environment_factory\."
        ):
            check_model(args, **nothing | kinds)
