"""Tests of the ridge on data with known pass rates, and of the prompt states against the model's own."""

import copy
import io
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from trl_grpo_plus.curriculum import prompt_states
from trl_grpo_plus.curriculum.belief_head import MARGIN, WINDOW, Ridge
from trl_grpo_plus.curriculum.state_cache import StateCache
from trl_grpo_plus.utils.validation import ConfigError


GROUP = 4


def truth(width, seed=0):
    """Make a pass rate that is linear in the state: 0.5 on average, mostly within [0.1, 0.9]."""
    slope = torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    slope *= 0.2 / slope.norm()
    return lambda rows: (0.5 + rows @ slope).clamp(0, 1)


def batches(rate, count, width, prompts=32, seed=1):
    """Yield batches of states (P, width), rewards (P, GROUP) and true pass rates (P,)."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        rows = torch.randn(prompts, width, generator=generator, dtype=torch.float64)
        p = rate(rows)
        wins = torch.bernoulli(p[:, None].expand(-1, GROUP), generator=generator)
        yield rows, wins, p


def taught(ridge, data):
    for rows, rewards, _ in data:
        ridge.learn(rows, rewards)
    return ridge


def mean(ridge, rows):
    return ridge.predict(rows)[0]


def explained(ridge, rate, width):
    ((rows, _, p),) = batches(rate, 1, width, prompts=500, seed=99)
    return 1 - ((mean(ridge, rows) - p).square().mean() / p.var()).item()


def test_the_ridge_finds_a_linear_rate_and_its_skill_is_right():
    rate = truth(24)
    ridge = taught(Ridge(), batches(rate, 40, 24))
    assert explained(ridge, rate, 24) > 0.9
    assert abs(ridge.skill - explained(ridge, rate, 24)) < 0.15


def test_the_ridge_follows_a_rate_that_changes():
    old, new = truth(24, seed=0), truth(24, seed=5)
    data = [*batches(old, 60, 24, seed=1), *batches(new, 60, 24, seed=2)]
    forgets = taught(Ridge(), data)
    keeps = taught(Ridge(decay=1.0), data)
    assert explained(forgets, new, 24) > 0.8 > 0.6 > explained(keeps, new, 24)
    assert forgets.skill > keeps.skill


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rate", [lambda rows: torch.full((len(rows),), 0.3), lambda rows: torch.rand(len(rows))])
def test_noise_gives_no_skill(rate, seed):
    torch.manual_seed(seed)
    ridge = taught(Ridge(), batches(rate, 60, 64, seed=seed))
    assert ridge.skill < 0.02


def test_early_luck_is_no_skill():
    """Prompts do not differ, so there is no skill. In 5 of these 120 short runs the head predicts well by luck."""

    def rate(rows):
        return torch.full((len(rows),), 0.5)

    runs = [(width, count, seed) for width, count in ((2, 4), (2, 8), (1, 6)) for seed in range(40)]
    skills = [taught(Ridge(), batches(rate, count, width, seed=seed)).skill for width, count, seed in runs]
    assert sum(skill > 0 for skill in skills) <= 2


def test_a_few_right_predictions_are_no_skill():
    """A few right predictions give little skill, and many give much. A batch may have only one prompt with a state."""
    ridge, slope = Ridge(), torch.ones(1, 2)
    first = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    ridge.learn(first * slope, first)
    ridge.learn(slope, slope[:, :1])  # the prediction is right
    assert ridge.skill < 0.2
    for value in torch.arange(64).double() % 2:
        rows = value * slope
        ridge.learn(rows, rows[:, :1])
    assert ridge.skill > 0.5


@pytest.mark.parametrize("unit", [0.01, 100.0])
def test_the_unit_of_rewards_changes_no_skill(unit):
    data = [*batches(truth(24), 20, 24)]
    plain = taught(Ridge(), data)
    other = taught(Ridge(high=unit), [(rows, unit * rewards, p) for rows, rewards, p in data])
    assert other.skill == pytest.approx(plain.skill, rel=1e-6)
    assert plain.skill > 0.3


def test_before_anything_is_learned():
    ridge = Ridge(low=-1.0, high=0.0)
    assert mean(ridge, torch.randn(3, 5)).tolist() == [-0.5] * 3
    assert ridge.skill == 0.0


def test_predictions_stay_within_the_range_of_the_reward():
    ridge = Ridge(low=-1.0, high=3.0)
    rows = torch.linspace(-1, 1, 50)[:, None]
    ridge.learn(rows, 1.0 + 2.0 * rows)
    lowest, highest = mean(ridge, torch.tensor([[-9.0], [9.0]])).tolist()
    assert (lowest, highest) == (-1.0 + 4 * MARGIN, 3.0 - 4 * MARGIN)


def test_a_reward_outside_widens_the_range():
    """The range widens as that of beliefs does, because the total of several rewards may exceed 1."""
    ridge, rate = Ridge(), truth(8)
    for rows, _, p in batches(rate, 20, 8):
        ridge.learn(rows, 4 * p[:, None] - 1)
    rows = torch.randn(500, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(mean(ridge, rows), 4 * rate(rows) - 1, atol=0.3, rtol=0)
    assert ridge.skill > 0.9
    resumed = Ridge()
    resumed.load_state_dict(ridge.state_dict())
    assert torch.equal(mean(resumed, rows), mean(ridge, rows))


def test_equal_states_teach_only_the_mean():
    ridge = Ridge()
    ridge.learn(torch.ones(8, 3), torch.linspace(0, 1, 8)[:, None])
    assert mean(ridge, torch.ones(2, 3)).tolist() == pytest.approx([0.5, 0.5])
    one = Ridge()
    one.learn(torch.randn(1, 3), torch.tensor([[0.25]]))
    assert mean(one, torch.randn(2, 3)).tolist() == pytest.approx([0.25, 0.25])


@pytest.mark.parametrize("change", [lambda x: 1000 * x, lambda x: x + 300, lambda x: torch.cat([x, 0 * x + 5], dim=1)])
def test_norm_and_width_do_not_change_the_penalty(change):
    data = list(batches(truth(24), 10, 24))
    plain = taught(Ridge(penalties=[3.0]), data)
    changed = taught(Ridge(penalties=[3.0]), [(change(rows), *rest) for rows, *rest in data])
    torch.testing.assert_close(mean(changed, change(data[0][0])), mean(plain, data[0][0]), atol=1e-7, rtol=0)


def test_dimensions_that_are_much_larger_drown_no_others():
    data = list(batches(truth(24), 20, 24))
    sizes = torch.ones(24, dtype=torch.float64)
    sizes[3] = 1000.0
    grown = [(rows * sizes, *rest) for rows, *rest in data]
    plain, large = taught(Ridge(), data), taught(Ridge(), grown)
    torch.testing.assert_close(mean(large, grown[0][0]), mean(plain, data[0][0]), atol=1e-7, rtol=0)


def test_the_penalty_that_predicts_best_is_in_use():
    for rate, best in ((truth(24), 0.003), (lambda rows: torch.full((len(rows),), 0.3), 30.0)):
        data = list(batches(rate, 30, 24))
        chooses, alone = taught(Ridge(penalties=[30.0, 0.003]), data), Ridge(penalties=[best])
        torch.testing.assert_close(mean(chooses, data[0][0]), mean(taught(alone, data), data[0][0]))
    assert taught(Ridge(penalties=[1e9, 0.003]), batches(truth(24), 30, 24)).skill > 0.8


def test_more_penalty_is_nearer_to_the_mean():
    data = list(batches(truth(24), 5, 24))
    spreads = [mean(taught(Ridge(penalties=[p]), data), data[0][0]).std() for p in (0.01, 1.0, 100.0, 1e9)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] < 1e-6


def test_without_forgetting_batches_add_up():
    rows, rewards, _ = next(batches(truth(6), 1, 6))
    order = rewards.mean(dim=1).argsort()  # make the means of the two halves differ
    at_once, halves = Ridge(decay=1.0, penalties=[1.0]), Ridge(decay=1.0, penalties=[1.0])
    at_once.learn(rows, rewards)
    halves.learn(rows[order][:9], rewards[order][:9])
    halves.learn(rows[order][9:], rewards[order][9:])
    torch.testing.assert_close(mean(halves, rows), mean(at_once, rows))


def test_the_mean_is_forgotten_too():
    ridge, rows = Ridge(decay=0.5), torch.ones(4, 2)
    for reward in (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.9):
        ridge.learn(rows, torch.full((4, 1), reward))
    assert mean(ridge, rows).tolist() == pytest.approx([0.5] * 4, abs=0.01)


def test_the_variance_within_a_prompt_is_predicted_too():
    """Of three kinds of prompts only the second has attempts that differ, which the means do not show."""
    generator, ridge = torch.Generator().manual_seed(0), Ridge()
    earns = torch.tensor([[1.0, 1.0], [2 / 3, 1.0], [2 / 3, 2 / 3]])  # the two rewards of each kind, equally likely
    for _ in range(40):
        kind = torch.randint(3, (32,), generator=generator)
        rewards = earns[kind].gather(1, torch.randint(2, (32, 2), generator=generator))
        ridge.learn(torch.eye(3)[kind] + 0.1 * torch.randn(32, 3, generator=generator), rewards)
    means, variances = ridge.predict(torch.eye(3))
    assert means.tolist() == pytest.approx([0.98, 5 / 6, 2 / 3], abs=0.04)
    assert variances.tolist() == pytest.approx([0.0, 1 / 36, 0.0], abs=0.01)
    one = Ridge()
    one.learn(torch.randn(9, 3), torch.rand(9, 1))  # single attempts show no variance
    assert one.predict(torch.randn(3, 3))[1].tolist() == [0.0] * 3
    one.learn(torch.randn(9, 3), torch.rand(9, 2).round())
    assert one.predict(torch.randn(3, 3))[1].min() > 0


def test_rows_that_are_not_finite_are_left_out():
    rows, rewards, _ = next(batches(truth(6), 1, 6))
    bad_rows = torch.cat([rows, rows[:3]])
    bad_rows[-1, 2] = float("inf")
    bad_rewards = torch.cat([rewards, torch.tensor([[float("nan")], [0.5], [0.5]]).expand(-1, GROUP)])
    bad_rows[-2, 0] = float("nan")
    clean, other = Ridge(), Ridge()
    for _ in range(2):
        clean.learn(rows, rewards)
        other.learn(bad_rows, bad_rewards)
    torch.testing.assert_close(mean(other, rows), mean(clean, rows))
    assert other.skill == pytest.approx(clean.skill)
    other.learn(rows[:2], torch.full((2, 3), float("nan")))
    torch.testing.assert_close(mean(other, rows), mean(clean, rows))
    predicted = mean(other, torch.cat([rows[:1], bad_rows[-2:]]))
    assert predicted.isfinite().all()
    assert predicted[1] == predicted[2]  # both get the mean


def test_nothing_is_learned_before_a_state_is_finite():
    readings = iter([torch.full((4, 3), float("nan")), torch.randn(4, 3)])
    cache, ridge, rows = StateCache(lambda rows: next(readings), seed=0), Ridge(), [0, 1, 2, 3]
    for _ in range(2):
        cache.read_due(rows)
        mean(ridge, cache.of(rows))
        ridge.learn(cache.of(rows), torch.eye(4))
        cache.end_step(rows, 4.0)
    assert mean(ridge, cache.of(rows)).isfinite().all()
    assert ridge.state_dict()["mean"].shape == (3 + 2,)


def test_a_resumed_ridge_goes_on_bit_for_bit():
    data = list(batches(truth(30), 40, 30))
    whole = taught(Ridge(), data)
    first = taught(Ridge(), data[:23])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    taught(first, data[23:30])  # later learning must not change the saved state
    file.seek(0)
    resumed = Ridge()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    taught(resumed, data[23:])
    assert torch.equal(mean(resumed, data[0][0]), mean(whole, data[0][0]))
    assert resumed.skill == whole.skill > 0
    ours, theirs = resumed.state_dict(), whole.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ("mean", "scatter", "errors"))
    assert ours["errors"][0].min() > 0
    fresh = Ridge()
    fresh.load_state_dict(Ridge().state_dict())
    assert mean(fresh, data[0][0]).tolist() == [0.5] * 32


def test_a_penalty_below_rounding_is_solved():
    rows = torch.randn(40, 3, dtype=torch.float64)
    ridge = Ridge(penalties=[1e-300])
    rewards, forty = (0.5 + rows[:, 0] / 10).clamp(0.1, 0.9), rows @ torch.randn(3, 40, dtype=torch.float64)
    assert torch.linalg.cholesky_ex(forty.T @ forty)[1] > 0
    ridge.learn(forty, rewards[:, None])
    torch.testing.assert_close(mean(ridge, forty), rewards, atol=0.02, rtol=0)


def test_options_out_of_their_bounds_are_refused():
    with pytest.raises(ConfigError, match=r"low=1\.0 must be below high=1\.0"):
        Ridge(low=1.0, high=1.0)
    with pytest.raises(ConfigError, match=r"decay=1\.5"):
        Ridge(decay=1.5)


def test_the_skill_forgets():
    rate = truth(12)
    ridge = taught(Ridge(), batches(rate, 40, 12))
    assert ridge.skill > 0.5
    taught(ridge, batches(lambda rows: torch.full((len(rows),), 0.5), WINDOW + 40, 12))
    assert ridge.skill < 0.1


# -- states

PROMPTS = ["12+34=", "7=", "0123456789+0123456789=", "12+34=", "ab ab ab", "3+4="]


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=20, attention_dropout=0.5, initializer_range=0.3, **sizes))


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def model(request, tmp_path_factory):
    if request.param == "llama":
        return llama()
    return AutoModelForCausalLM.from_pretrained(tiny_models.model_path(tmp_path_factory.mktemp("head")))


def ids():
    return tiny_models.tokenizer()(PROMPTS)["input_ids"]


def alone(model, rows):
    """Return the last layer's state at each prompt's end, (P, hidden). Forward each prompt alone, without padding."""
    training = model.training
    model.eval()
    with torch.no_grad():
        ends = [model(torch.tensor([row]), output_hidden_states=True).hidden_states[-1][0, -1] for row in rows]
    model.train(training)
    return torch.stack(ends).float()


def read(model, rows, max_tokens=99, batch_size=4):
    return prompt_states.prompt_states(model, rows, torch.device("cpu"), max_tokens, batch_size)


@pytest.mark.parametrize("batch_size", [1, 2, 4, 99])
def test_states_are_the_last_ones_whatever_the_padding(model, batch_size):
    found = read(model, ids(), batch_size=batch_size)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, alone(model, ids()), atol=1e-5, rtol=1e-5)


def test_a_state_does_not_hold_those_of_other_tokens(model):
    held = prompt_states._states(model, ids(), torch.device("cpu"))
    assert held.untyped_storage().nbytes() == held.numel() * held.element_size()


def test_evaluating_restores_each_mode_and_calls_neither_eval_nor_train(model, monkeypatch):
    """With `use_kernels`, `eval` loads kernels without a backward, until a `train` that changes modes."""
    model.train()
    model.lm_head.eval()
    before = [module.training for module in model.modules()]
    monkeypatch.setattr(type(model), "train", lambda *_: pytest.fail("train was called"))
    with prompt_states.evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before
    monkeypatch.undo()
    model.eval()


def test_states_of_a_compiled_model_are_the_models_own(model):
    compiled, widths = torch.compile(model, backend="eager"), []
    hook = model.lm_head.register_forward_pre_hook(lambda module, inputs: widths.append(inputs[0].shape[1]))
    found = read(compiled, ids())
    hook.remove()
    torch.testing.assert_close(found, alone(model, ids()), atol=1e-5, rtol=1e-5)
    assert set(widths) == {1}  # logits of the last token alone


def test_the_end_of_a_long_prompt_is_read(model):
    torch.testing.assert_close(
        read(model, ids(), max_tokens=5), alone(model, [row[-5:] for row in ids()]), atol=1e-5, rtol=1e-5
    )
    assert not torch.allclose(read(model, ids(), max_tokens=5)[2], read(model, ids())[2], atol=1e-2)


def test_positions_are_counted_from_the_first_token():
    """Positions count from a prompt's first token, not from the padding. Learned embeddings show an error that rotary
    ones hardly show."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    learned = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, initializer_range=0.3))
    torch.testing.assert_close(read(learned, ids()), alone(learned, ids()), atol=1e-5, rtol=1e-5)


def test_the_model_is_left_as_it_was():
    model = llama()
    model.gradient_checkpointing_enable()
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    before, checkpoints, logits = torch.get_rng_state(), [], []
    for layer in model.model.layers:
        layer._gradient_checkpointing_func = lambda *args, **kwargs: checkpoints.append(args)
    model.lm_head.register_forward_hook(lambda module, inputs, output: logits.append(output.shape))
    found = read(model, ids())
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    assert model.is_gradient_checkpointing
    assert checkpoints == []
    assert {shape[1] for shape in logits} == {1}  # the head ran at one position only
    assert len(model.lm_head._forward_pre_hooks) == 0
    assert not found.requires_grad
    assert torch.equal(found, read(model, ids()))  # equal results: no dropout
    with pytest.raises(IndexError):
        read(model, [*ids(), [10_000]])
    assert [module.training for module in model.modules()] == modes


def test_an_adapter_counts(model):
    peft = pytest.importorskip("peft")
    plain = read(model, ids())
    adapted = peft.get_peft_model(
        copy.deepcopy(model), peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, lora_dropout=0.5)
    )
    found = read(adapted, ids())
    assert not torch.allclose(found, plain, atol=1e-2)
    torch.testing.assert_close(found, alone(adapted, ids()), atol=1e-5, rtol=1e-5)
    with adapted.disable_adapter():
        torch.testing.assert_close(read(adapted, ids()), plain)


def test_half_precision(model):
    found = read(copy.deepcopy(model).to(torch.bfloat16), ids())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, alone(model, ids()), atol=0.3, rtol=0.1)


class Wrapper(torch.nn.Module):
    """A wrapper like DDP, FSDP and DeepSpeed, which do their work only if they are called themselves."""

    def __init__(self, module):
        super().__init__()
        self.module, self.calls = module, 0

    def forward(self, *args, **kwargs):
        self.calls += 1
        return self.module(*args, **kwargs)


def test_a_wrapped_model_is_called_by_its_wrapper(model, monkeypatch):
    monkeypatch.setattr(prompt_states, "extract_model_from_parallel", lambda wrapper: wrapper.module)
    wrapped = Wrapper(model)
    torch.testing.assert_close(read(wrapped, ids(), batch_size=2), read(wrapped, ids()), atol=1e-5, rtol=1e-5)
    assert wrapped.calls == 3 + 2


def test_one_process_reads_all(model):
    shared = prompt_states.states_of_share(model, ids(), Accelerator(cpu=True), 4, 99)
    assert shared.dtype == torch.float64
    assert torch.equal(shared, read(model, ids()).double())


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_ranks_read_equal_shares(model, count):
    """Three ranks run one after another, and the test concatenates their shares in place of the gather."""
    rows, shares, forwards = ids()[:count], [], []

    def rank(index, gather):
        return SimpleNamespace(
            num_processes=3, process_index=index, device=torch.device("cpu"), autocast=torch.no_grad, gather=gather
        )

    model.register_forward_pre_hook(lambda module, inputs: forwards.append(1))
    calls = []
    for index in range(3):
        prompt_states.states_of_share(model, rows, rank(index, lambda own: shares.append(own) or own), 1, 99)
        calls.append(len(forwards))
        forwards.clear()
    assert len(set(calls)) == 1
    gathered = prompt_states.states_of_share(model, rows, rank(0, lambda own: torch.cat(shares)), 1, 99)
    torch.testing.assert_close(gathered, alone(model, rows).double(), atol=1e-5, rtol=1e-5)
