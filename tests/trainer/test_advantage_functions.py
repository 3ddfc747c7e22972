"""Tests of `advantage_estimator`: the arguments and results of a function, and its advantages in training."""

import functools
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_models
import torch
import user_advantages
from slow_cases import covering
from test_drop import EIGHT, IN_FOUR, assert_close, first_three_of_eight, live_alone, train
from trl import GRPOTrainer

from trl_grpo_plus import registry
from trl_grpo_plus.objective import advantage_functions
from trl_grpo_plus.objective.advantage_functions import AdvantageEstimator, estimator_of
from trl_grpo_plus.objective.group_batch import GroupBatch
from trl_grpo_plus.objective.variants import VARIANTS, Variant, pairwise
from trl_grpo_plus.registry import list_advantages, register_advantage
from trl_grpo_plus.rollouts.groups import Round
from trl_grpo_plus.rollouts.verdicts import DEAD
from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.trainer.batch import Batch
from trl_grpo_plus.utils import distributed


pytestmark = pytest.mark.long


FILE = Path(user_advantages.__file__)
RAMP = {"advantage_estimator": {"name": f"{FILE}:ramp", "args": {"slope": 0.25}}}
NAN = float("nan")

# P = 2 groups of G = 2 attempts of up to T = 3 tokens. There are two rewards and a monitor.
REWARDS = torch.tensor([[[1.0, NAN, 9.0], [0.0, 2.0, 9.0]], [[1.0, 1.0, 9.0], [NAN, NAN, 9.0]]])
WEIGHTS = torch.tensor([1.0, 0.5, 0.0])
MASK = torch.tensor([[[1, 1, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 0]]]).bool()
ABOUT = GroupBatch(MASK, ("alive", "alive"), step=3, seed="1 2")


def made(function, whole_only="", **args):
    return AdvantageEstimator("mine.py:f", Variant(function), args, whole_only).advantages(REWARDS, WEIGHTS, ABOUT)


# -- arguments and results of a function


def test_a_function_gets_all_arguments_and_returns_advantages_of_attempts():
    def f(rewards, weights, batch, shift=0.0):
        torch.testing.assert_close(rewards, REWARDS, equal_nan=True)
        assert torch.equal(weights, WEIGHTS)
        assert batch is ABOUT
        rewards.zero_()  # the function has its own copy
        return torch.tensor([[1.0, 2.0], [3.0, NAN]], dtype=torch.float64, requires_grad=True) + shift

    values = made(f, shift=0.5)
    assert values.tolist() == [[1.5, 2.5], [3.5, 0.0]]  # only the monitor scores the last attempt
    assert values.dtype == REWARDS.dtype
    assert not values.requires_grad
    assert REWARDS.nansum() > 0


def test_a_function_may_return_advantages_of_tokens():
    values = made(lambda rewards, weights, about: torch.where(about.mask, 2.0, NAN))
    assert values.tolist() == [[[2.0, 2.0, 0.0], [2.0, 0.0, 0.0]], [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]]]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "it returned a NoneType, and must return a float tensor of shape"),
        ([[0.0, 0.0]] * 2, "it returned a list"),
        (torch.zeros(2, 2).long(), "it returned a tensor of torch.int64"),
        (torch.zeros(2, 3), r"shape \(2, 3\), and must return .*\(P, G\) = \(2, 2\) or \(P, G, T\) = \(2, 2, 3\)"),
        (torch.zeros(4), r"shape \(4,\)"),
        (torch.tensor([[0.0, NAN], [0.0, 0.0]]), r"returned nan for group, attempt \(0, 1\)"),
        (torch.full((2, 2, 3), torch.inf), r"returned inf for group, attempt, token \(0, 0, 0\)"),
    ],
    ids=["none", "list", "int", "shape", "flat", "nan", "inf"],
)
def test_the_returned_tensor_is_checked(returned, words):
    with pytest.raises(ValueError, match=rf"advantage_estimator='mine.py:f': .*{words}"):
        made(lambda *told: returned)


def test_an_error_of_the_function_is_raised_with_its_name():
    with pytest.raises(ValueError, match=r"advantage_estimator='mine.py:f': KeyError: 'level'") as caught:
        made(lambda *told: {}["level"])
    assert isinstance(caught.value.__cause__, KeyError)


def ranks_made(monkeypatch, *others):
    """Compute advantages on this rank, as if other ranks sent `others`: (error, weighted sum, absolute sum)."""
    monkeypatch.setattr(distributed, "gather_object", lambda mine: [*mine, *others])
    return made(lambda rewards, weights, about: torch.tensor([[1.0, -1.0], [2.0, 0.0]]))


def test_ranks_agree_or_all_stop(monkeypatch):
    mine = 1 - 4 / 3 + 2 * 5 / 3
    assert ranks_made(monkeypatch, ("", mine + 1e-6, 4.0)).count_nonzero() == 3
    with pytest.raises(ValueError, match=r"processes came to different advantages.*batch.generator"):
        ranks_made(monkeypatch, ("", mine + 0.1, 4.0))
    with pytest.raises(ValueError, match=r"mine.py:f': OSError: of the second"):
        ranks_made(monkeypatch, ("OSError: of the second", 0.0, 0.0))
    # This rank is near to both others, but they are far from each other. Every rank must stop, also this one.
    size = 4.0 * distributed.AGREEMENT
    with pytest.raises(ValueError, match="processes came to different advantages"):
        ranks_made(monkeypatch, ("", mine + 0.8 * size, 4.0), ("", mine - 0.8 * size, 4.0))


def test_advantages_of_tokens_are_refused_with_sequence_level_ratios():
    reason = advantage_functions.whole_only(config("grpo", importance_sampling_level="sequence"))
    assert "one ratio for a whole completion" in reason
    with pytest.raises(ValueError, match="it returned advantages of tokens, which cannot be used with importance"):
        made(lambda rewards, weights, about: torch.ones(*rewards.shape[:2], about.mask.shape[-1]), whole_only=reason)
    assert not advantage_functions.whole_only(config("grpo", importance_sampling_level="sequence", loss_type="cispo"))


# -- names that the option takes


def config(name, args=None, **changes):
    named = {"name": name, "args": args} if args else name
    options = {"importance_sampling_level": "token", "loss_type": "dapo", "off_policy_mask_threshold": None}
    return SimpleNamespace(
        advantage_estimator=named, num_generations=4, filters_groups=False, dead=DEAD, **options | changes
    )


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(advantage_functions, "_REGISTERED", {})
    return register_advantage


def test_a_registered_function_is_named_listed_and_found_at_its_path(registered):
    function = registered("rising", entropies=True)(user_advantages.ramp)
    assert function is user_advantages.ramp
    assert registry.register_advantage is register_advantage
    for name in ("rising", f"{FILE}:ramp", function):
        found = estimator_of(config(name, {"slope": 2}))
        assert (found.variant.function, found.variant.entropies, found.args) == (function, True, {"slope": 2})
    assert list_advantages()["rising"] == user_advantages.ramp.__doc__
    registered("rising")(user_advantages.ramp)  # allowed: the same function, as when its module is imported again
    with pytest.raises(
        ValueError, match=r"named 'rising' exists already: .*user_advantages:ramp. Choose another name"
    ):
        registered("rising")(user_advantages.like_grpo)
    for name in ("grpo", "pkpo"):
        with pytest.raises(ValueError, match=f"named '{name}' exists already, which ships"):
            registered(name)(user_advantages.like_grpo)
    with pytest.raises(ValueError, match=r"'risin' is not one of 'grpo', .*'rising', .* Did you mean rising?"):
        estimator_of(config("risin"))


def test_every_name_is_listed_with_a_sentence(registered):
    listed = list_advantages()
    assert list(listed) == ["grpo", *VARIANTS]
    assert all(len(line.split()) > 4 and line.endswith(".") for line in listed.values()), listed


def two_arguments(rewards, weights):
    return rewards[..., 0]


def needs_more(rewards, weights, batch, level, *, power=1):
    return rewards[..., 0]


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        (f"{FILE}:rump", None, "rump'.* has no function 'rump'. Did you mean ramp"),
        ("nowhere_at_all:f", None, "there is no module nowhere_at_all"),
        (f"{FILE}:ramp", {"slop": 1.0}, "there is no argument 'slop'; it takes slope, noise. Did you mean slope?"),
        (f"{FILE}:ramp", {"slope": "1"}, "slope='1' must be a number"),
        (two_arguments, None, r"two_arguments': it must take \(rewards, weights, batch, \*\*args\): too many"),
        (needs_more, None, 'needs_more\': it needs level: {"name": ..., "args": {"level": ...}}'),
        (needs_more, {"level": 1, "powr": 2}, "'powr'; it takes level, power. Did you mean power"),
    ],
    ids=["function", "module", "argument", "type", "two", "needed", "unknown"],
)
def test_a_function_that_cannot_be_called_is_refused(name, args, message):
    with pytest.raises(ValueError, match=message):
        estimator_of(config(name, args))
    assert estimator_of(config(needs_more, {"level": 1})).args == {"level": 1}
    assert estimator_of(config("grpo")) is None


def test_a_wrong_name_is_refused_before_the_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(GRPOTrainer, "__init__", lambda *args, **kwargs: pytest.fail("too late"))
    with pytest.raises(ValueError, match="has no function 'rump'"):
        tiny_models.trainer(tmp_path, advantage_estimator=f"{FILE}:rump")


# -- in training


def by_group(trained):
    """Return the last batch's advantages at the first token, (P, G)."""
    return torch.tensor(trained._logs["advantages"]).view(-1, trained.num_generations)


def test_the_trainer_uses_the_functions_advantages(tmp_path):
    trained = tiny_models.trained(tmp_path, tiny_models.digits, advantage_estimator="pairwise", max_steps=1)
    (rewards,) = trained._logs["rewards"].values()
    torch.testing.assert_close(by_group(trained), pairwise(torch.tensor(rewards).view(2, 4)))
    used = trained._buffered_inputs[0]["advantages"]
    assert sorted(used.tolist()) == pytest.approx(sorted(by_group(trained).flatten().tolist()))
    clipped = tiny_models.trained(
        tmp_path, tiny_models.digits, advantage_estimator="pairwise", max_steps=1, advantage_clip=0.01
    )
    assert by_group(clipped).abs().max() == pytest.approx(0.01)


def test_grpo_by_name_is_trl(tmp_path):
    ours = tiny_models.trained(tmp_path, tiny_models.digits, advantage_estimator="grpo")
    tiny_models.assert_same(ours, tiny_models.trained(tmp_path, tiny_models.digits, cls=GRPOTrainer))


ALONE = {
    "drop": (tiny_models.half_dead, {"per_device_train_batch_size": 16}, 8, lambda n: n % 4 < 2),
    "iterations": (
        tiny_models.half_dead,
        {"per_device_train_batch_size": 16, "num_iterations": 2},
        8,
        lambda n: n % 4 < 2,
    ),
    "filler": (first_three_of_eight, {**EIGHT, **IN_FOUR}, 6, lambda n: n % 8 <= 2),
    "filler, iterations": (first_three_of_eight, {**EIGHT, **IN_FOUR, "num_iterations": 2}, 6, lambda n: n % 8 <= 2),
}


@pytest.mark.parametrize(
    ("loss_type", "case"),
    covering(
        lambda loss_type, case: (loss_type == "dapo") == (case in ("drop", "filler, iterations")),
        *(["dapo", "grpo"], ALONE),
    ),
)
def test_advantages_of_tokens_are_those_of_the_live_groups_alone(tmp_path, case, loss_type):
    reward, batching, rows, live = ALONE[case]
    options = {"loss_type": loss_type, "beta": 0.1}
    more = {name: batching[name] for name in ("num_generations", "num_iterations") if name in batching}
    data = {"data": EIGHT["data"]}
    drop = functools.partial(train, tmp_path, reward, zero_variance_groups="drop", **{**data, **batching, **options})
    # The function returns TRL's advantages, one per token. Compare with TRL on the live prompts alone.
    assert_close(
        drop(advantage_estimator=user_advantages.like_grpo), live_alone(tmp_path, rows, live, **options, **more)
    )
    # TRL cannot make advantages that differ by token. Compare with our trainer on the live prompts alone.
    alone = data["data"].filter(lambda row: live(row["number"]))
    alone = train(
        tmp_path, tiny_models.digits, data=alone, per_device_train_batch_size=rows, **RAMP, **options, **more
    )
    ours = drop(**RAMP)
    assert_close(ours, alone)
    for batch in ours._buffered_inputs:
        mask = batch["completion_mask"].bool() & batch.get("live", torch.tensor(True)).view(-1, 1)
        rise = batch["advantages"] / batch["advantages"][:, :1]
        at = (1 + 0.25 * torch.arange(mask.shape[1])).expand(mask.shape)
        shown = mask & (batch["advantages"][:, :1] != 0)
        torch.testing.assert_close(rise[shown], at[shown])
        assert batch["advantages"][~mask].count_nonzero() == 0
        if not batch.get("live", torch.tensor([True])).any():
            continue
        assert shown.any()


def test_a_batch_of_filler_alone_has_zero_loss(tmp_path):
    options = {"zero_variance_groups": "drop", "per_device_train_batch_size": 16}
    trained = train(tmp_path, tiny_models.always_dead, **RAMP, **options)
    assert tiny_models.losses(trained) == [0.0, 0.0]


TOLD = []


def numbered(completions, number, **kwargs):
    """Reward an attempt with its prompt's number plus up to 0.5. Every second pair of prompts is dead."""
    shares = tiny_models.digits(completions)
    return [n + (0.0 if n % 4 > 1 else share / 2) for n, share in zip(number, shares, strict=True)]


def listens(rewards, weights, about):
    TOLD.append((about, rewards))
    return rewards[..., 0] - rewards[..., 0].mean(dim=1, keepdim=True)


def test_the_mask_is_gathered_in_bytes():
    """The mask is gathered with one byte per token. TRL's has eight: 268 MB for 1024 completions of 32,768 tokens."""
    gathered = []
    accelerator = SimpleNamespace(
        pad_across_processes=lambda rows, dim: rows, gather=lambda rows: gathered.append(rows) or rows
    )
    batch = Batch(accelerator, 2, rounds=[Round((), REWARDS[0], ("alive",))])
    told = batch.group_batch(MASK[0].long(), SimpleNamespace(reads_mask=True, reads_lengths=True, columns=()))
    assert torch.equal(told.mask, MASK[:1])
    assert [rows.element_size() for rows in gathered] == [1]


@pytest.mark.parametrize("believes", [False, True])
def test_the_function_gets_the_batchs_facts(tmp_path, believes):
    TOLD.clear()
    options = {"advantage_estimator": listens, "per_device_train_batch_size": 16, "max_steps": 2}
    options |= {"prompt_selection": "belief"} if believes else {}
    trained = tiny_models.trained(tmp_path, numbered, zero_variance_groups="drop", **options)
    assert [about.step for about, _ in TOLD] == [0, 1]
    assert len({about.seed for about, _ in TOLD}) == 2
    about, rewards = TOLD[-1]
    groups = sum(verdict == "alive" for verdict in about.verdicts)
    assert about.verdicts == ("alive",) * groups
    assert groups == tiny_models.logged(trained, "groups/trained")[-1]
    assert about.mask.shape[:2] == about.lengths.shape == (groups, 4)
    assert about.lengths.sum() == trained._buffered_inputs[0]["num_items_in_batch"]
    assert about.entropies is None
    if believes:
        assert len(about.row_indices) == groups == len(about.belief.mean)
        assert list(about.row_indices) == rewards[..., 0].amax(dim=1).long().tolist()
        assert groups > 1
    else:
        assert about.row_indices is about.belief is None


def solved_or_not(completions, number, **kwargs):
    """Reward a prompt's attempts with 1, with 0, with 0.4 or by their digits, by the prompt's number modulo 4."""
    kinds = {0: 1.0, 1: 0.0, 2: 0.4}
    return [kinds.get(n % 4, share) for n, share in zip(number, tiny_models.digits(completions), strict=True)]


@pytest.mark.parametrize("mode", ["keep", "drop"])
def test_zvp_reads_the_policys_entropies(tmp_path, mode):
    """`zvp` uses entropies at the sampling temperature. Under "drop" the tied group leaves the batch."""
    options = {"zero_variance_groups": mode, "per_device_train_batch_size": 16, "learning_rate": 0.0, "max_steps": 1}
    options |= {"filtered_verdicts": ["tied", "unscored", "truncated"]} if mode == "drop" else {}
    options |= {"temperature": 0.7, "extra": {}}
    zvp = {"advantage_estimator": {"name": "zvp", "args": {"alpha": 0.5}}}
    trained = train(tmp_path, solved_or_not, **zvp, **options)
    assert tiny_models.logged(trained, "groups/trained") == [4 if mode == "keep" else 3]
    (batch,) = trained._buffered_inputs
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    with torch.no_grad():
        logits = trained.model(input_ids=ids, attention_mask=mask).logits[:, batch["prompt_ids"].shape[1] - 1 : -1]
    nats = torch.distributions.Categorical(logits=logits / 0.7).entropy() * batch["completion_mask"]
    texts = trained.processing_class.batch_decode(batch["prompt_ids"], skip_special_tokens=True)
    kinds = torch.tensor([int(text[:2]) % 4 for text in texts])
    used = batch["advantages"]
    torch.testing.assert_close(used[kinds == 0], 0.5 * nats[kinds == 0], rtol=1e-4, atol=1e-5)
    wrong = -0.5 * (nats.amax(dim=1, keepdim=True) - nats) * batch["completion_mask"]
    torch.testing.assert_close(used[kinds == 1], wrong[kinds == 1], rtol=1e-4, atol=1e-5)
    assert used[kinds == 2].count_nonzero() == 0
    differing = used[kinds == 3]
    grpo = differing[:, :1] * batch["completion_mask"][kinds == 3]
    torch.testing.assert_close(differing, grpo)
    assert differing.abs().max() > 0.5
    assert (kinds == 2).sum() == (4 if mode == "keep" else 0)
    assert {0, 1, 3} <= set(kinds.tolist())


def test_a_function_from_a_users_file_trains_and_is_traced(tmp_path):
    options = {"zero_variance_groups": "resample", "max_resample_rounds": 2, "beta": 0.1, "num_iterations": 2}
    ramp = {"advantage_estimator": {"name": f"{FILE}:ramp", "args": {"noise": 0.5}}}
    trained = tiny_models.trained(
        tmp_path, tiny_models.dead_for_most, **ramp, **options, gradient_accumulation_steps=2
    )
    assert by_group(trained).sum(dim=1).abs().max() < 1e-5
    assert any(tiny_models.logged(trained, "groups/rounds"))
    rows = list(itertools.chain(*traces.groups(tmp_path / "run")))
    kept = [row["advantage"] for row in rows if row["kept"] and row["step"] == max(row["step"] for row in rows)]
    assert sorted(kept) == pytest.approx(sorted(by_group(trained).flatten().tolist()), abs=1e-4)
    assert any(kept)
