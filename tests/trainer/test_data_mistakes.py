"""Data that cannot be trained on: what a script of one's own is told when the trainer is made."""

import pytest
import tiny_models

from trl_grpo_plus import GRPOPlusTrainer
from trl_grpo_plus.utils.validation import ConfigError


def made(folder, data, **options):
    return tiny_models.trainer(folder, tiny_models.digits, **{"data": data, **options})


@pytest.mark.parametrize("options", [{}, {"zero_variance_groups": "drop"}, {"prompt_selection": "belief"}])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_too_few_rows_for_a_step_are_refused_in_every_mode(tmp_path, rows, options):
    with pytest.raises(
        ConfigError, match=rf"the training set has {rows} rows?, and a generation batch takes 4 prompts"
    ):
        made(tmp_path, tiny_models.prompts(30).select(range(rows)), per_device_train_batch_size=16, **options)


def test_rows_for_one_batch_are_enough(tmp_path):
    trainer = made(tmp_path, tiny_models.prompts(4), per_device_train_batch_size=16, max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2


def test_a_subclass_may_deal_rows_its_own_way(tmp_path):
    class Repeating(GRPOPlusTrainer):
        def _get_train_sampler(self, dataset=None):
            return [0] * 16

    trainer = made(tmp_path, tiny_models.prompts(1), per_device_train_batch_size=16, max_steps=1, cls=Repeating)
    trainer.train()
    assert trainer.state.global_step == 1


def test_an_evaluation_set_without_rows_is_warned_of(tmp_path, caplog):
    for rows, split in ((0, "eval_dataset hard"), (1, None)):
        caplog.clear()
        sets = {"easy": tiny_models.prompts(2), "hard": tiny_models.prompts(2).select(range(rows))}
        made(tmp_path, None, eval_strategy="steps", eval_steps=1, extra={"eval_dataset": sets})
        said = [record.message for record in caplog.records if "has no rows" in record.message]
        assert [text.partition(" has no rows")[0] for text in said] == [split] * (split is not None)
