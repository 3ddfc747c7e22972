"""Tests of the check that vLLM has the current weights, on simulated policies and engines."""

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from trl import GRPOConfig

from trl_grpo_plus.config.sampling_distribution import logprob_options
from trl_grpo_plus.trainer.vllm.sync_check import LIMIT, Comparison, VLLMCheck, apart


CPU = {"bf16": False, "use_cpu": True, "report_to": "none"}
PROMPTS, TOKENS, LENGTH, ROWS = 64, 30, 40, 16
MEAN, MOST, MOVED = "sampler/logp_difference/mean", "sampler/logp_difference/max", "sampler/policy_moved"


# -- the finding of one comparison


KEPT = {"kept": 3, "agreed": 0.01}


@pytest.mark.parametrize(
    ("seen", "case"),
    [
        ({"difference": 0.0}, None),
        ({"difference": LIMIT}, None),
        ({"difference": 0.11}, "apart"),
        ({"difference": 0.11, "base": 0.03}, "adapter"),
        ({"difference": 0.11, "base": 0.05}, "apart"),
        ({"difference": 0.04, **KEPT, "moved": 0.04}, None),  # less than BEHIND times the noise
        ({"difference": 0.06, **KEPT, "moved": 0.06}, "stale"),
        ({"difference": 0.06, "kept": 3, "agreed": 0.03, "moved": 0.06}, None),  # half of it was there at first
        ({"difference": 0.04, "kept": 3, "agreed": 1e-6, "moved": 0.04}, None),
        ({"difference": 0.06, "kept": 3, "agreed": 1e-6, "moved": 0.06}, "stale"),
        ({"difference": 0.06, **KEPT, "moved": 0.2}, None),  # stale weights would differ by more
        ({"difference": 0.06, **KEPT, "moved": 0.01}, None),  # stale weights could not differ by so much
        ({"difference": 0.5, **KEPT, "moved": 0.2}, "stale"),
        ({"difference": 0.5, **KEPT, "moved": 1.4}, "stale"),
        ({"difference": 0.5, **KEPT, "moved": 0.9, "base": 0.01}, "adapter"),
        ({"difference": 0.5, **KEPT, "moved": 0.9, "base": 0.5}, "stale"),
        ({"difference": 0.5, **KEPT, "moved": 0.1}, "part"),
        ({"difference": 0.5, **KEPT, "moved": 2.0}, "part"),
        ({"difference": 0.5, **KEPT, "moved": 0.1, "base": 0.02}, "adapter"),
        ({"difference": 0.5, **KEPT, "moved": 0.5, "base": 0.02, "plain": 0.01}, "dropout"),
        ({"difference": 0.5, **KEPT, "moved": 0.5, "plain": 0.4}, "stale"),
        ({"difference": 0.04, **KEPT, "moved": 0.04, "plain": 0.01}, None),
    ],
    ids=str,
)
def test_the_case(seen, case):
    assert Comparison(most=1.0, **seen).case == case


def test_the_text_has_the_numbers_and_where_to_look():
    stale = Comparison(0.512, 2.25, kept=30, agreed=0.0104, near=40, moved=0.47).text()
    parts = [
        "0.51 nats",
        "up to 2.2;",
        "At step 31 the difference was 0.01.",
        "moved by 0.47",
        "sync_weights",
        "a server",
    ]
    parts.append("the engine has weights of about step 31 to 41,")
    assert [part for part in parts if part not in stale] == []
    assert "of about step 31," in Comparison(0.512, 2.25, kept=30, agreed=0.0104, near=30, moved=0.47).text()
    assert (
        "differ by only 0.004 from those of the model without its adapter:" in Comparison(0.5, 2.0, base=0.004).text()
    )
    assert "--logprobs-mode processed_logprobs" in Comparison(0.5, 2.0).text()


@pytest.mark.parametrize(
    ("seen", "agrees"),
    [
        ({"difference": 0.05}, True),
        ({"difference": 0.06}, False),
        ({"difference": 0.02, **KEPT, "moved": 0.2}, True),
        ({"difference": 0.02, **KEPT, "moved": 0.19}, False),  # the policy has not moved far enough to be sure
        ({"difference": 0.06, **KEPT, "moved": 5.0}, False),
    ],
    ids=str,
)
def test_when_an_agreement_is_sure(seen, agrees):
    assert Comparison(most=1.0, **seen).agrees == agrees


def test_apart():
    nan = float("nan")
    first = torch.tensor([[-1.0, -2.0, nan, 0.0], [-3.0, 7.0, 0.0, 0.0]])
    second = torch.tensor([[-1.5, -1.0, -1.0, -9.0], [-3.0, nan, -9.0, -9.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    assert apart(first, second, mask).tolist() == [1.5, 3.0, 1.0]
    assert apart(first, second, mask * 0).tolist() == [0.0, 0.0, 0.0]
    assert apart(first.bfloat16(), first, mask).dtype == torch.float32


# -- when log-probs can be compared


PLAIN = [{}, {"temperature": 0.7}, {"top_k": -1}, {"generation_kwargs": {"seed": 3, "stop": ["\n"]}}]
PLAIN += [{"temperature": 0.7, "vllm_mode": "server"}]
PLAIN += [{"vllm_mode": "server", "vllm_importance_sampling_correction": False}]
OTHERS = [{"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.1}, {"repetition_penalty": 1.1}]
OTHERS += [{"generation_kwargs": {"min_tokens": 5}}, {"vllm_structured_outputs_regex": "a+"}]


@pytest.mark.parametrize("options", [*PLAIN, *OTHERS], ids=str)
def test_options_that_make_log_probs_incomparable(tmp_path, options):
    assert logprob_options(GRPOConfig(str(tmp_path), **CPU, **options)) == (list(options) if options in OTHERS else [])


def test_log_probs_of_a_server_may_lack_the_temperature(tmp_path):
    options = {"temperature": 0.7, "vllm_mode": "server", "vllm_importance_sampling_correction": False}
    assert logprob_options(GRPOConfig(str(tmp_path), **CPU, **options)) == ["temperature"]


# -- whole runs with a simulated policy and engine, each with logits for each prompt, (PROMPTS, TOKENS)


class Simulated(torch.nn.Module):
    """A policy that moves, an engine with weights of its own, and the calls of the trainer."""

    def __init__(self, seed=0, every=1, text_only=True, corrected=True, **options):
        super().__init__()
        self.random = torch.Generator().manual_seed(seed)
        self.base = self.normal(PROMPTS, TOKENS) * 1.5
        self.moves = torch.zeros_like(self.base)
        self.engine = self.base.clone()
        self.noise, self.corrected, self.step, self.forwards = 0.01, corrected, 0, 0
        self.alone = SimpleNamespace(num_processes=1, gather=lambda found: found)
        neutral = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0, "generation_kwargs": None}
        neutral |= {"vllm_structured_outputs_regex": None, "temperature": 1.0, "vllm_mode": "colocate"}
        args = {**neutral, "use_vllm": True, "vllm_check_every": every, **options}
        self.check = VLLMCheck(SimpleNamespace(**args), self.alone, self.forward, text_only)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.random)

    def forward(self, rows):
        self.forwards += 1
        return self.logps(self.base + self.moves, rows)

    def logps(self, logits, rows):
        return logits.log_softmax(-1)[rows["prompt_ids"]].gather(1, rows["completion_ids"])

    def move(self, size=0.05):
        self.moves += size * self.normal(PROMPTS, TOKENS)
        self.step += 1

    def sync(self):
        self.engine = self.base + self.moves

    def batch(self, lengths=None):
        prompts = torch.randint(PROMPTS, (ROWS,), generator=self.random)
        tokens = torch.multinomial(self.engine.softmax(-1)[prompts], LENGTH, True, generator=self.random)
        lengths = torch.full((ROWS,), LENGTH) if lengths is None else torch.tensor(lengths)
        output = {"prompt_ids": prompts, "prompt_mask": prompts, "completion_ids": tokens}
        output["completion_mask"] = (torch.arange(LENGTH) < lengths[:, None]).int()
        sampled = self.logps(self.engine, output)
        output["sampling_per_token_logps"] = sampled + self.noise * 1.25 * self.normal(ROWS, LENGTH)
        if self.corrected:
            output["old_per_token_logps"] = self.logps(self.base + self.moves, output)
        return output

    def look(self, **made):
        return self.check.metrics(self.batch(**made), self, self.step)


class WithAdapter(Simulated):
    @contextlib.contextmanager
    def disable_adapter(self):
        moves, self.moves = self.moves, torch.zeros_like(self.moves)
        yield
        self.moves = moves


class WithDropout(Simulated):
    """A policy with dropout, which adds noise to TRL's log-probs once the adapter has moved."""

    def batch(self, **made):
        output = super().batch(**made)
        noise = 0.3 if self.step else 0.0
        output["old_per_token_logps"] += noise * self.normal(ROWS, LENGTH)
        return output


@pytest.fixture
def warned(caplog):
    return lambda: [
        record.getMessage() for record in caplog.records if record.name == "trl_grpo_plus.trainer.vllm.sync_check"
    ]


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.04])
@pytest.mark.parametrize("pace", [1e-3, 0.01, 0.1])
@pytest.mark.parametrize("corrected", [True, False])
def test_quiet_while_the_engine_follows(warned, noise, pace, corrected):
    for seed in range(5):
        run = WithAdapter(seed, corrected=corrected)
        run.noise = noise
        for _ in range(40):
            assert run.look()[MEAN] == pytest.approx(noise, rel=0.2, abs=1e-5)
            run.move(pace)
            run.sync()
    assert warned() == []


STALE = re.compile(
    r"Step (\d+): .*At step (\d+) the difference was .* the engine has weights of about step (\d+)(?: to (\d+))?,"
)


@pytest.mark.parametrize("pace", [0.03, 0.1, 1.0])
@pytest.mark.parametrize("kind", [Simulated, WithAdapter])
@pytest.mark.parametrize("good", [1, 12])
def test_stale_weights_are_reported(warned, caplog, kind, pace, good):
    """The engine gets no weights after step `good`. The check warns once, before the difference is 0.1 nats, unless
    the policy moves at the fastest pace."""
    for seed in range(5):
        caplog.clear()
        run = kind(seed)
        for step in range(60):
            off = run.look()[MEAN]
            assert warned() or off < 0.1 or pace == 1.0
            run.move(pace)
            if step < good - 1:
                run.sync()
        (text,) = warned()
        if good == 1 and kind is WithAdapter:
            assert "without its adapter" in text, text
            continue
        told, agreed, first = map(int, STALE.search(text).groups()[:3])
        last = int(STALE.search(text)[4] or first)
        assert agreed == first <= good <= last < told, text  # the range includes step `good`


def test_a_finding_after_an_agreement_is_reported_again(warned):
    run = Simulated()
    for _ in range(3):
        for synced in (True, True, False, False):
            run.move(0.5)
            if synced:
                run.sync()
            run.look()
    assert len(warned()) == 3


def test_dropout_is_told_from_old_weights_and_hides_no_later_finding(warned):
    run = WithDropout()
    for step in range(24):
        run.look()
        run.move(0.1)
        if step < 12:
            run.sync()
    dropout, stale = warned()
    assert "Without the trainer's dropout the difference is 0.01, so the engine has the current weights." in dropout
    assert "Set lora_dropout to 0" in dropout
    assert "new weights do not reach it" in stale


def test_an_engine_with_another_model_is_reported(warned):
    run = Simulated()
    run.engine = run.base + run.normal(PROMPTS, TOKENS)
    for _ in range(3):
        assert MOVED not in run.look()  # the metric needs an earlier agreement
        run.move()
        run.engine += run.moves
    assert "They have not agreed in this run" in warned()[0]


def test_a_part_of_the_weights_that_stays_behind_is_reported(warned):
    run = Simulated()
    for _ in range(12):
        run.look()
        run.move(0.3)
        run.engine = run.base + run.moves * (torch.arange(TOKENS) > 1)  # tokens 0 and 1 keep their first weights
    assert "which does not explain the difference" in warned()[0]


def test_the_process_with_the_largest_difference_decides(warned):
    run = Simulated()
    seen = []

    def gather(found):
        if found.dim() == 1:  # the gather that asks whether any process has log-probs
            return found.repeat(3)
        seen.append(found.shape)
        other = found.clone()
        other[0, :, 0] = other[0, :, 1] * 0.5
        return torch.cat([found, other, found])

    run.check._accelerator = SimpleNamespace(num_processes=3, gather=gather)
    assert run.look()[MEAN] == pytest.approx((0.5 + 0.01 + 0.01) / 3, rel=0.1)
    assert "Step 1, process 1: vLLM does not sample" in warned()[0]
    assert "by 0.5 nats" in warned()[0]
    assert seen == [(1, 1, 3)] * 2  # the second is without dropout, after a finding


@pytest.mark.parametrize("synced", [0, 6])
def test_a_process_that_kept_nothing_but_filler(warned, synced):
    """Process 0 first keeps attempts of filler alone, so those of process 1 tell how far the policy moved. Both
    processes keep new attempts at a sure agreement."""
    ranks = Ranks(2)

    def work(rank):
        run = Simulated(rank)
        run.noise = 0.02 - 0.01 * rank  # process 0 differs most
        run.check._accelerator = ranks
        for step in range(synced + 3):
            run.look(lengths=[0] * ROWS if step == rank == 0 else None)
            run.move(0.3)
            if step < synced:
                run.sync()
        return run.check._kept.step

    assert ranks.run(work) == [synced] * 2
    assert f"the engine has weights of about step {synced + 1}," in warned()[0]


@pytest.mark.parametrize(("every", "expected"), [(1, range(10)), (3, [0, 3, 6, 9]), (0, []), (99, [0])])
def test_which_batches_are_checked(every, expected):
    run = Simulated(every=every)
    assert [i for i in range(10) if run.look()] == list(expected)
    assert run.forwards == max(len(expected) - 1, 0)  # each check but the first forwards the kept attempts


def test_without_trls_log_probs_a_few_attempts_are_forwarded():
    run = Simulated(corrected=False)
    rows = []
    forward = run.check._forward
    run.check._forward = lambda given: rows.append(len(given["prompt_ids"])) or forward(given)
    run.look()
    run.look()
    assert rows == [8, 8, 8]


def test_a_batch_without_tokens_in_the_loss_leaves_the_check_to_the_next():
    run = Simulated(every=5)
    assert run.look(lengths=[0] * ROWS) == {}
    assert [MEAN in run.look() for _ in range(6)] == [True] + [False] * 4 + [True]


@pytest.mark.parametrize("corrected", [True, False])
def test_rows_with_tokens_are_kept_first(corrected):
    """Each process keeps 8 rows, those with tokens in the loss first. The number is fixed, because all processes of a
    sharded model must make the same forward passes."""
    for lengths in ([LENGTH] + [0] * 15, [0] * 15 + [LENGTH], [0, LENGTH] * 8):
        run = Simulated(corrected=corrected)
        assert run.look(lengths=lengths)[MEAN] == pytest.approx(0.01, rel=0.3)
        kept = run.check._kept.rows
        assert len(kept["prompt_ids"]) == 8
        assert kept["completion_mask"].any(dim=1).sum() == min(8, sum(map(bool, lengths)))


def test_tokens_of_tools_and_filler_do_not_count():
    run = Simulated()
    output = run.batch()
    output["tool_mask"] = (torch.arange(LENGTH) % 2).expand(ROWS, LENGTH)
    output["sampling_per_token_logps"][:, ::2] = 0.0
    assert run.check.metrics(output, run, 0)[MEAN] == pytest.approx(0.01, rel=0.2)
    assert run.look()[MOVED] == 0.0


def test_pictures_are_not_forwarded(warned):
    run = Simulated(text_only=False)
    run.look()
    run.move(1.0)
    assert set(run.look()) == {MEAN, MOST}
    assert run.forwards == 0
    assert "not agreed" in warned()[0]
    run = Simulated(text_only=False, corrected=False)
    assert run.look() == {}


@pytest.mark.parametrize("options", [{"use_vllm": False}, {"top_p": 0.9}])
def test_no_metrics_if_log_probs_cannot_be_compared(options):
    run = Simulated(**options)
    assert run.look() == {}


def test_no_metrics_without_log_probs_of_the_engine():
    run = Simulated()
    output = run.batch()
    del output["sampling_per_token_logps"]
    assert run.check.metrics(output, run, 0) == {}


class Ranks:
    """Processes, simulated as threads, that wait for each other in `gather` for ten seconds at most."""

    def __init__(self, world):
        self.num_processes, self.found = world, {}
        self.barrier = threading.Barrier(world, timeout=10)
        self.rank = threading.local()

    def gather(self, found):
        self.found[self.rank.number] = found
        self.barrier.wait()
        whole = torch.cat([self.found[rank] for rank in range(self.num_processes)])
        self.barrier.wait()
        return whole

    def run(self, work):
        def here(rank):
            self.rank.number = rank
            return work(rank)

        with ThreadPoolExecutor(self.num_processes) as threads:
            return list(threads.map(here, range(self.num_processes)))


@pytest.mark.parametrize("without", [0, 1])
def test_log_probs_on_one_process_alone(without):
    """A rollout_func returns log-probs on one process only, and TRL computes none. Both processes take part in the
    check and log the same."""
    ranks = Ranks(2)
    runs = [Simulated(seed, corrected=False) for seed in range(2)]

    def work(rank):
        run, logged = runs[rank], []
        run.check._accelerator = ranks
        for _ in range(3):
            output = run.batch()
            if rank == without:
                del output["sampling_per_token_logps"]
            logged.append(run.check.metrics(output, run, run.step))
            run.move(0.01)
            run.sync()
        return logged

    first, second = ranks.run(work)
    assert first == second
    assert [entry[MEAN] for entry in first] == [pytest.approx(0.01, rel=0.2)] * 3


def test_log_probs_on_no_process():
    ranks = Ranks(2)

    def work(rank):
        run = Simulated(rank)
        run.check._accelerator = ranks
        output = run.batch()
        del output["sampling_per_token_logps"]
        return run.check.metrics(output, run, 0)

    assert ranks.run(work) == [{}, {}]


def test_what_is_logged():
    run = Simulated()
    run.noise = 0.0
    run.look()
    run.moves[:, 0] += 1.0
    output = run.batch()
    logged = run.check.metrics(output, run, 1)
    expected = (output["sampling_per_token_logps"] - output["old_per_token_logps"]).abs()
    assert logged[MEAN] == pytest.approx(expected.mean().item())
    assert logged[MOST] == pytest.approx(expected.max().item())
    assert 0.03 < logged[MOVED] < 1.0


def test_the_policys_training_mode_is_restored():
    run = Simulated(corrected=False)
    modes = []
    forward = run.check._forward
    run.check._forward = lambda rows: modes.append(run.training) or forward(rows)
    run.look()
    assert modes == [False]
    assert run.training
