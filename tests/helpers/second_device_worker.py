"""Train on the CPU and on the second device (second_device.py), and print what both runs ended with, as JSON.

    python tests/helpers/second_device_worker.py [CASE ...]

Each case of `CASES` is trained in a fresh folder on both devices. `reads` is how often the host reads from the device
in a step, outside of generation, where it reads for each token.
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from unittest import mock

import second_device
import tiny_models
from transformers import GenerationMixin
from trl import GRPOTrainer


STEPS = 2
KL = {"beta": 0.1, "kl_estimator": "k1"}
BELIEF = {"advantage_baseline": "belief", "scale_rewards": "prior", "prompt_selection": "belief", "num_generations": 2}
CASES = {
    "TRL": {"cls": GRPOTrainer},
    "keep": {},
    "drop": {"zero_variance_groups": "drop"},
    "resample": {"zero_variance_groups": "resample", "max_resample_rounds": 2},
    "belief": BELIEF,
    "head": {**BELIEF, "belief_head": "prompt"},
    "drop, KL in the loss": {**KL, "zero_variance_groups": "drop", "kl_target": 0.1, "num_iterations": 2},
    "KL in the reward": {**KL, "kl_placement": "reward", "kl_reward_form": "reward_to_go"},
    "drop, sequence ratio, entropy": {
        **{"zero_variance_groups": "drop", "importance_sampling_level": "sequence", "num_iterations": 2},
        **{"entropy_coef": 0.01, "advantage_baseline": "leave_one_out", "advantage_clip": 1.0},
    },
    "token ratio, running scale": {"importance_ratio": "gspo_token", "num_iterations": 2, "scale_rewards": "running"},
    "estimator that reads entropies": {"advantage_estimator": "zvp"},
}


def generate_uncounted(model, *args, generate=GenerationMixin.generate, **kwargs):
    """Generate, and do not count what the host reads meanwhile."""
    before = second_device.reads.copy()
    try:
        return generate(model, *args, **kwargs)
    finally:
        second_device.reads = before


def train(case, on_device):
    """Train one case. Return its trainer and the number of reads of the host, by operation."""
    second_device.reads.clear()
    options = {"optim": "sgd", "max_steps": STEPS, "use_cpu": not on_device, **CASES[case]}
    with tempfile.TemporaryDirectory() as folder, second_device.trainers_here(on_device):
        with (
            contextlib.redirect_stdout(io.StringIO()),
            mock.patch.object(GenerationMixin, "generate", generate_uncounted),
        ):
            trained = tiny_models.trained(Path(folder), **options)
        assert trained.accelerator.device.type == (second_device.NAME if on_device else "cpu")
        assert all(weight.device == trained.accelerator.device for weight in trained.model.parameters())
    return trained, dict(second_device.reads)


def compare(case):
    """Return the losses on both devices, the greatest difference of a weight, and the reads of the host in a step."""
    (on_cpu, none), (there, reads) = train(case, False), train(case, True)
    assert not none
    weights = tiny_models.weights(on_cpu), tiny_models.weights(there)
    difference = max(float((weights[0][name] - weights[1][name].cpu()).abs().max()) for name in weights[0])
    return {
        "losses": [tiny_models.losses(on_cpu), tiny_models.losses(there)],
        "difference": difference,
        "reads": sum(reads.values()) / STEPS,
    }


if __name__ == "__main__":
    second_device.install()
    figures = {case: compare(case) for case in sys.argv[1:] or CASES}
    print(json.dumps(figures, indent=1))
