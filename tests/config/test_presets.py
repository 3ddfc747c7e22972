"""Tests of presets: advantages and losses equal the formulas, worked by hand, and a user's own keys win."""

import dataclasses
import json
import pickle

import pytest
import tiny_models
import torch
from transformers import HfArgumentParser

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.config import presets
from trl_grpo_plus.config.presets import PRESETS
from trl_grpo_plus.config.validation import warn_of_no_effect
from trl_grpo_plus.curriculum.beliefs import Belief
from trl_grpo_plus.objective.credit import Credit
from trl_grpo_plus.objective.group_batch import GroupBatch
from trl_grpo_plus.utils.validation import ConfigError


@pytest.fixture
def preset(tmp_path):
    """Return `GRPOPlusConfig.preset` with options for a CPU."""
    where = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": "none"}
    return lambda name, **own: GRPOPlusConfig.preset(name, **where, **own)


# -- advantages and losses


# Two prompts with four attempts each: one is right on the first prompt, two on the second. On the first prompt the
# right attempt has 5 tokens, and the others have 1.
REWARDS = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 0])
LENGTHS = torch.tensor([5, 1, 1, 1, 2, 2, 2, 2])
HALF = 0.75**0.5  # (1 - 1/2) / the sample std of 1, 1, 0, 0
BATCH = (15 / 56) ** 0.5  # the sample std of all eight rewards
BY_STD = [1.5, -0.5, -0.5, -0.5, HALF, HALF, -HALF, -HALF]
CENTRED = [0.75, -0.25, -0.25, -0.25, 0.5, 0.5, -0.5, -0.5]
ADVANTAGES = {
    **dict.fromkeys(("grpo", "dapo", "gspo", "cispo", "sapo", "bnpo"), BY_STD),
    "dr_grpo": CENTRED,
    "lite_ppo": [value / BATCH for value in CENTRED],
    "rloo": [1, -1 / 3, -1 / 3, -1 / 3, 2 / 3, 2 / 3, -2 / 3, -2 / 3],
    "opo": [3 / 8, -5 / 8, -5 / 8, -5 / 8, 0.5, 0.5, -0.5, -0.5],
    "maxrl": [3.0, -1, -1, -1, 1, 1, -1, -1],
}


@pytest.mark.parametrize("name", ADVANTAGES)
def test_the_advantages_are_those_of_the_formula(preset, name):
    found = Credit(preset(name)).advantages(
        (2, 4), REWARDS.view(8, 1), torch.ones(1), GroupBatch(lengths=LENGTHS.view(2, 4))
    )
    torch.testing.assert_close(found, torch.tensor(ADVANTAGES[name]), atol=1e-3, rtol=0)


def test_gdpo_separates_attempts_that_grpo_does_not(preset):
    """GDPO separates what GRPO treats the same: (1, 1) beats (0, 0) by two rewards, but (0, 1) by one."""
    rewards = torch.tensor([[1.0, 1], [0, 0], [1, 1], [0, 1]])
    batch = ((2, 2), rewards, torch.ones(2), GroupBatch())
    two, one = 2**0.5, 0.5**0.5  # each normalised reward is +-sqrt(1/2)
    std = (5 / 3) ** 0.5  # the std of two, -two, one, -one
    expected = torch.tensor([two, -two, one, -one]) / std
    torch.testing.assert_close(Credit(preset("gdpo")).advantages(*batch), expected, atol=1e-3, rtol=0)
    alike = torch.tensor([one, -one, one, -one])
    torch.testing.assert_close(Credit(preset("grpo")).advantages(*batch), alike, atol=1e-3, rtol=0)


def test_ragen2_trains_on_the_groups_that_vary_most(tmp_path):
    def tenth_for_odd(completions, number, **columns):
        rewards = tiny_models.digits(completions)
        return [reward * (0.1 if n % 2 else 1.0) for reward, n in zip(rewards, number, strict=True)]

    trained = tiny_models.trained(tmp_path, tenth_for_odd, preset="ragen2", per_device_train_batch_size=16)
    low, alive = (sum(tiny_models.logged(trained, f"groups/{name}")) for name in ("low_variance", "alive"))
    assert low > 0
    assert alive > 0


def test_passk_pays_for_the_first_of_four(preset):
    """One of eight is right, so pass@4 is 1 - C(7, 4) / C(8, 4) = 1/2. Of the subsets of 4 with a given wrong attempt,
    C(6, 3) / C(7, 3) = 4/7 are wrong."""
    about = GroupBatch(torch.ones(1, 8, 1, dtype=torch.bool), ("alive",))
    rewards = torch.tensor([[1.0], *[[0.0]] * 7])
    found = Credit(preset("passk")).advantages((1, 8), rewards, torch.ones(1), about)
    torch.testing.assert_close(found, torch.tensor([1.0, *[-1 / 7] * 7]))


def test_belief_subtracts_the_believed_mean_and_divides_by_the_std(preset):
    """The belief is 1/2 on 2 attempts. The baseline is (0 + 2/2) / 3 for the reward 1 and (1 + 2/2) / 3 for the reward
    0. Both are divided by 1/2."""
    known = Belief(torch.tensor([0.5]), torch.tensor([0.25]), torch.tensor([2.0]))
    batch = (
        (1, 2),
        torch.tensor([[1.0], [0.0]]),
        torch.ones(1),
        GroupBatch(beliefs=(known,), teaching=torch.tensor([True])),
    )
    found = Credit(preset("belief")).advantages(*batch)
    torch.testing.assert_close(found, torch.tensor([4 / 3, -4 / 3]), atol=1e-3, rtol=0)


# Four answers: numbers of tokens, ratios of the policy's token probabilities to those when sampled, and advantages.
TOKENS = (3, 1, 2, 2)
RATIOS = torch.tensor([[1.25, 1.35, 0.7], [0.75, 1, 1], [1.0005, 1.0002, 1], [6.0, 0.9, 1]])
ADVANTAGE = (1.0, -1.0, 0.5, -0.5)
LONGEST = 3  # max_completion_length
REFERENCE = 0.3  # the reference's log-probability less the policy's


def clipped(low, high):
    return lambda ratio, a, logp: -torch.min(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


def with_kl(ratio, a, logp):
    """Compute DeepSeekMath's loss, equation 4. The reference does not move with the policy."""
    away = (logp.detach() + REFERENCE) - logp
    return clipped(0.2, 0.2)(ratio, a, logp) + 0.04 * (away.exp() - away - 1)


def weighed(ratio, a, logp):
    """Compute MiniMax-M1's loss, equations 4 and 5, with ScaleRL's bound."""
    return -ratio.clamp(max=5.0).detach() * a * logp


def gated(ratio, a, logp):
    """Compute SAPO's loss, equations 5 to 7."""
    temperature = 1.0 if a > 0 else 1.05
    return -torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * a


def of_answers(values):
    return torch.stack([value.mean() for value in values]).mean()


def of_tokens(values):
    return torch.cat(values).mean()


def by_a_constant(values):
    return torch.cat(values).sum() / (len(values) * LONGEST)


# name -> loss of a token, how the tokens' losses are combined, whether the ratio is that of the whole answer
LOSSES = {
    "grpo": (with_kl, of_answers, False),
    "dapo": (clipped(0.2, 0.28), of_tokens, False),
    "dr_grpo": (clipped(0.2, 0.2), by_a_constant, False),
    "gspo": (clipped(3e-4, 4e-4), of_answers, True),
    "cispo": (weighed, of_tokens, False),
    "sapo": (gated, of_answers, False),
    "lite_ppo": (clipped(0.2, 0.2), of_tokens, False),
    "bnpo": (clipped(0.2, 0.2), of_tokens, False),
    # On-policy these are the sum of an answer's log-probabilities times its advantage.
    **dict.fromkeys(("rloo", "opo", "maxrl"), (lambda ratio, a, logp: -a * ratio, by_a_constant, False)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_and_its_gradient_are_those_of_the_formula(tmp_path, name, monkeypatch):
    of_token, together, whole = LOSSES[name]
    ratios = torch.ones_like(RATIOS) if name in ("rloo", "opo", "maxrl") else RATIOS
    logp = torch.linspace(-3.0, -0.5, 12).view(4, 3).requires_grad_()
    old = logp.detach() - ratios.log()
    mask = torch.tensor([[place < count for place in range(3)] for count in TOKENS])
    values = []
    for i, count in enumerate(TOKENS):
        difference = logp[i, :count] - old[i, :count]
        ratio = (difference.mean().expand(count) if whole else difference).exp()
        values.append(of_token(ratio, torch.tensor(ADVANTAGE[i]), logp[i, :count]))
    expected = together(values)

    trainer = tiny_models.trainer(
        tmp_path, tiny_models.digits, **presets.with_preset(name, {"max_completion_length": LONGEST})
    )
    trainer.model.eval()  # in evaluation mode TRL does not divide the loss by gradient accumulation
    theirs = trainer._get_per_token_logps_and_entropies
    monkeypatch.setattr(
        trainer, "_get_per_token_logps_and_entropies", lambda *a, **k: (logp * mask, *theirs(*a, **k)[1:])
    )
    rows = {"prompt_ids": torch.full((4, 2), 5), "prompt_mask": torch.ones(4, 2, dtype=torch.long)}
    rows |= {"completion_ids": torch.full((4, 3), 6), "completion_mask": mask.long(), "old_per_token_logps": old}
    rows |= {"advantages": torch.tensor(ADVANTAGE), "ref_per_token_logps": logp.detach() + REFERENCE}
    found = trainer._compute_loss(trainer.model, {**rows, "num_items_in_batch": mask.sum()})
    torch.testing.assert_close(found, expected)
    gradient, wanted = (torch.autograd.grad(loss, logp)[0] for loss in (found, expected))
    torch.testing.assert_close(gradient, wanted)
    assert gradient.abs().max() > 1e-2


def test_each_preset_has_an_example_here_and_a_description():
    others = {"gdpo", "belief", "passk", "ragen2"}
    assert set(ADVANTAGES) | others == set(PRESETS)
    assert set(LOSSES) | others == set(PRESETS)
    fields = {field.name for field in dataclasses.fields(GRPOPlusConfig)}
    for name, row in PRESETS.items():
        assert set(row.settings) <= fields - {"preset"}, name
        assert row.changes.endswith(".")
        assert row.leaves.endswith(".")
        assert row.source


# -- whose settings win


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_has_the_settings_and_the_name(preset, name):
    config = preset(name)
    assert {key: getattr(config, key) for key in PRESETS[name].settings} == dict(PRESETS[name].settings)
    assert (config.preset, json.loads(config.to_json_string())["preset"]) == (name, name)
    assert pickle.loads(pickle.dumps(config)).preset == name
    assert "your own" not in presets.describe(config)


def test_the_keyword_argument_applies_a_preset_below_the_users_own_settings(preset, tmp_path):
    own = {"use_cpu": True, "bf16": False, "report_to": "none", "epsilon_high": 0.3}
    config = GRPOPlusConfig(str(tmp_path), preset="dapo", **own)
    assert (config.output_dir, config.zero_variance_groups, config.epsilon_high) == (str(tmp_path), "resample", 0.3)
    assert presets.describe(config) == presets.describe(preset("dapo", epsilon_high=0.3))
    given = {"preset": "dapo", "beta": 0.1}
    assert "epsilon" not in presets.apply(given, ["epsilon"], ["epsilon", "preset", "beta", "loss_type"])


def test_a_users_own_settings_win_and_are_described(preset):
    config = preset("dapo", epsilon_high=0.3, zero_variance_groups="keep", beta=0.0)
    assert (config.epsilon_high, config.zero_variance_groups, config.loss_type) == (0.3, "keep", "dapo")
    said = presets.describe(config)
    assert "your own: epsilon_high=0.3 (not 0.28), zero_variance_groups='keep' (not 'resample')." in said
    assert said.startswith("dapo sets loss_type='dapo', epsilon=0.2, advantage_baseline='mean'")
    assert "beta=0.0" in said.partition(";")[0]
    assert "overlong" in said.partition("Left to you: ")[2]
    assert presets.describe(preset_free := GRPOPlusConfig(use_cpu=True, bf16=False)) == ""
    assert preset_free.preset is None


def test_stock_trl_warns_of_settings_without_effect_but_not_of_the_name(preset, recwarn):
    configs = [preset("dr_grpo"), preset("dapo")]
    recwarn.clear()  # drop transformers' own warnings
    for config in configs:
        warn_of_no_effect(config)
    (warned,) = recwarn
    assert str(warned.message).startswith("zero_variance_groups='resample' has no effect: ")


def test_a_subclass_makes_its_own(tmp_path):
    @dataclasses.dataclass
    class Mine(GRPOPlusConfig):
        extra: int = 1

    mine = Mine.preset("dr_grpo", extra=2, use_cpu=True, bf16=False, output_dir=str(tmp_path))
    assert (type(mine), mine.extra, mine.scale_rewards) == (Mine, 2, "none")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: GRPOPlusConfig.preset("drgrpo"),
            "preset='drgrpo' is not one of 'grpo', 'dapo', .*Did you mean dr_grpo",
        ),
        (
            lambda: GRPOPlusConfig(preset="dap", use_cpu=True, bf16=False),
            "preset='dap' is not one of .*Did you mean dapo",
        ),
        (lambda: GRPOPlusConfig(preset=7, use_cpu=True, bf16=False), "preset=7 is not one of"),
        (
            lambda: dataclasses.make_dataclass("Mine", [], bases=(GRPOPlusConfig,))(
                preset="dapo", use_cpu=True, bf16=False
            ),
            r"cannot tell your own options from defaults.*call the class's \.preset\('dapo', \.\.\.\)",
        ),
        (
            lambda: HfArgumentParser(GRPOPlusConfig).parse_args_into_dataclasses(
                ["--preset", "dapo", "--use_cpu", "--bf16", "false"]
            ),
            "In a script with a parser, set the preset's options themselves: loss_type='dapo', epsilon=0.2, ",
        ),
    ],
    ids=["unknown", "unknown to the class", "no text", "a subclass", "from a parser"],
)
def test_an_unknown_or_unapplied_preset_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
