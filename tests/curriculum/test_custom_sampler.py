"""Tests of a user's own sampler class: results that cannot be used are refused at the first step."""

import math
from collections import Counter, OrderedDict, deque

import numpy as np
import pytest
import tiny_models
import torch
from accelerate import PartialState

from trl_grpo_plus.curriculum.custom_sampler import CustomSampler


class InTurn:
    """Deals rows in turn. A test changes its results with `deals`, `logs` and `holds`."""

    deals: object = None
    logs: object = None
    holds: object = None

    def __init__(self, train_set, seed):
        self.rows, self.at = len(train_set), 0

    def take(self, count, accepts, multiple_of=1, patience=None, believe=None):
        self.at += count
        dealt = [row % self.rows for row in range(self.at - count, self.at)]
        return self.deals(dealt) if self.deals else dealt

    def observe(self, rows, rewards, verdicts):
        pass

    def metrics(self):
        return self.logs or {"selection/at": self.at}

    def state_dict(self):
        return {"at": self.at, **(self.holds or {})}

    def load_state_dict(self, state):
        self.at = state["at"]


PATH = f"{__file__}:InTurn"
RUN = {"num_generations": 2, "prompt_selection": PATH, "save_strategy": "steps", "save_steps": 1, "max_steps": 2}


def in_turn(**other):
    stream = InTurn(range(30), 0)
    for name, value in other.items():
        setattr(stream, name, value)
    return CustomSampler(stream, "own.py:InTurn", 30)


def trainer(tmp_path, **other):
    """Make a trainer whose sampler is `InTurn`, with these attributes set on it."""
    made = tiny_models.trainer(tmp_path, **RUN)
    for name, value in other.items():
        setattr(made._prompts._stream._stream, name, value)
    return made


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"holds": {"seen": np.zeros(3)}},
            r"InTurn.state_dict\(\)\['seen'\] holds a numpy.ndarray .*Save a NumPy array as array.tolist\(\)",
        ),
        (
            {"logs": {"selection/left": [1, 2]}},
            r"InTurn.metrics returned \[1, 2\] for 'selection/left'. .*Return float\(",
        ),
        ({"deals": lambda rows: [row - 2 for row in rows]}, r"InTurn.take dealt row -2\. .*whole number from 0 to 29"),
    ],
    ids=["state", "metrics", "rows"],
)
def test_an_unusable_value_stops_the_first_step_and_the_error_names_the_class(tmp_path, other, words):
    made = trainer(tmp_path, **other)
    with pytest.raises(ValueError, match=words) as refused:
        made.train()
    assert str(refused.value).startswith(f"prompt_selection={PATH!r}: InTurn.")
    assert made.state.global_step == 0
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_numbers_of_other_libraries_are_rows_and_metrics_and_a_run_resumes(tmp_path):
    other = {
        "deals": lambda rows: torch.tensor(rows),
        "logs": {"selection/tensor": torch.tensor(3.5), "selection/numpy": np.float32(math.inf), "selection/int": 4},
        "holds": {"seen": torch.arange(3), "by": {"a": [1.5, None, ("b", b"c")]}, "counts": Counter("aab")},
    }
    whole = trainer(tmp_path / "whole", **other)
    whole.train()
    stopped = trainer(tmp_path / "stopped", **other)
    stopped.add_callback(tiny_models.StopAt(1))
    with pytest.raises(InterruptedError):
        stopped.train()
    resumed = trainer(tmp_path / "stopped", **other)
    resumed.train(resume_from_checkpoint=True)
    tiny_models.assert_same(resumed, whole)
    assert tiny_models.logged(resumed, "selection/tensor") == [3.5] * 2
    assert tiny_models.logged(resumed, "selection/int") == [4] * 2


@pytest.mark.parametrize(
    ("dealt", "words"),
    [
        ([-1, 0], r"take dealt row -1\. A row is a whole number from 0 to 29: its index in the training set"),
        ([0, 30], r"take dealt row 30\. "),
        ([0, 1.0], r"take dealt row 1.0\. "),
        ([True, 2], r"take dealt row True\. "),
        ([None], r"take dealt row None\. "),
        (["3"], r"take dealt row '3'\. "),
        (torch.tensor([[1, 2]]), r"take dealt row tensor\(\[1, 2\]\)\. "),
        (torch.tensor([1.0]), r"take dealt row tensor\(1.\)\. "),
        (None, "take dealt None, which is no list of rows"),
        ([4, 7, 4], r"take dealt the rows \[4, 7, 4\], with row 4 more than once. A batch needs distinct rows"),
        ([4, 7, 5], r"take dealt 3 rows, with count=2 and multiple_of=1\. Deal at most `count` rows"),
    ],
)
def test_rows_are_distinct_indices_of_the_training_set(dealt, words):
    with pytest.raises(ValueError, match=f"^prompt_selection='own.py:InTurn': InTurn.{words}"):
        in_turn(deals=lambda rows: dealt).take(2, lambda row: True)


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ({"name": PATH, "args": {"skip": 1}}, "InTurn': there is no argument 'skip'"),
        (f"{__file__}:Gone", "Gone': .*has no function 'Gone'"),
    ],
)
def test_a_wrong_path_or_argument_is_refused_when_the_trainer_is_made(tmp_path, selection, words):
    with pytest.raises(ValueError, match=rf"^prompt_selection='[^']*:{words}"):
        tiny_models.trainer(tmp_path, **{**RUN, "prompt_selection": selection})


def test_a_row_that_the_step_has_sampled_is_refused_and_none_is_asked_about_twice():
    asked = []

    def accepts(row):
        asked.append(row)
        return row != 7

    def take(count, accepts, *rest):
        return [row for row in range(6, 6 + count) if accepts(row)]

    assert in_turn(take=take).take(3, accepts) == [6, 8]
    assert asked == [6, 7, 8]
    for several in (np.arange(6, 9), torch.arange(6, 9)):
        sampler = in_turn(take=lambda count, accepts, *rest, rows=several: [row for row in rows if accepts(row)])
        asked.clear()
        assert sampler.take(2, accepts) == [6, 8]
        assert asked == [6, 7, 8]
    with pytest.raises(ValueError, match=r"InTurn.take asked `accepts` about row \['7'\]"):
        in_turn(take=lambda count, accepts, *rest: accepts(["7"])).take(2, accepts)
    with pytest.raises(ValueError, match=r"take dealt the row 7, for which accepts\(row\) is false"):
        in_turn(deals=lambda rows: [6, 7]).take(2, accepts)


@pytest.mark.parametrize("rows", [[3, 29, 0], (3, 29, 0), np.array([3, 29, 0]), torch.tensor([3, 29, 0])])
def test_whole_numbers_of_any_library_are_rows(rows):
    dealt = in_turn(deals=lambda _: rows).take(3, lambda row: True)
    assert dealt == [3, 29, 0]
    assert {type(row) for row in dealt} == {int}


def test_it_may_ask_for_beliefs_only_about_rows():
    class Asking(InTurn):
        about = torch.tensor([5, 6])

        def take(self, count, accepts, multiple_of=1, patience=None, believe=None):
            return believe(self.about)

    stream = Asking(range(30), 0)
    assert CustomSampler(stream, "own.py:Asking", 30).take(2, lambda row: True, believe=lambda rows: rows) == [5, 6]
    stream.about = [-1]
    with pytest.raises(ValueError, match=r"Asking\.take asked `believe` about row -1"):
        CustomSampler(stream, "own.py:Asking", 30).take(2, lambda row: True, believe=lambda rows: rows)


@pytest.mark.parametrize(
    ("logs", "words"),
    [
        (
            {"a": torch.ones(2)},
            r"returned tensor\(\[1., 1.\]\) for 'a'. A metric has a text for its name and one number",
        ),
        ({"a": "1"}, "returned '1' for 'a'"),
        ({"a": None}, "returned None for 'a'"),
        ({1: 2.0}, "returned 2.0 for 1"),
        ([1.0], r"returned \[1.0\]. Return a dict from names to numbers"),
    ],
)
def test_metrics_are_numbers_by_name(logs, words):
    with pytest.raises(ValueError, match=f"^prompt_selection='own.py:InTurn': InTurn.metrics {words}"):
        in_turn(logs=logs).metrics()


@pytest.mark.parametrize(
    ("holds", "where"),
    [
        (
            {"rows": [0, {"of": np.int64(3)}]},
            r"state_dict\(\)\['rows'\]\[1\]\['of'\] holds a numpy.int64 \(np.int64\(3\)",
        ),
        ({"by": {np.str_("a"): 1}}, r"state_dict\(\)\['by'\]'s key holds a numpy.str_"),
        ({"mean": np.float64(0.5)}, r"state_dict\(\)\['mean'\] holds a numpy.float64"),
        ({"queue": deque([1])}, r"state_dict\(\)\['queue'\] holds a collections.deque"),
        ({"by": OrderedDict(a=np.ones(1))}, r"state_dict\(\)\['by'\]\['a'\] holds a numpy.ndarray"),
        ({"noise": torch.Generator()}, r"state_dict\(\)\['noise'\] holds a torch._C.Generator"),
        ({"drawn": lambda: 0}, r"state_dict\(\)\['drawn'\] holds a builtins.function"),
    ],
)
def test_a_state_that_a_checkpoint_cannot_hold_is_refused(holds, where):
    for call in (lambda stream: stream.state_dict(), lambda stream: stream.observe([], torch.empty(0, 2), [])):
        with pytest.raises(
            ValueError,
            match=f"^prompt_selection='own.py:InTurn': InTurn.{where}.*, which cannot be read back from a checkpoint",
        ):
            call(in_turn(holds=holds))


def test_a_failing_state_dict_gives_a_warning_at_the_first_batch(caplog):
    PartialState()  # accelerate's logger needs it
    in_turn(state_dict=lambda: {}["at"]).observe([], torch.empty(0, 2), [])
    assert "InTurn.state_dict raised KeyError('at'). Repair it, or saving a checkpoint will fail" in caplog.text


def test_a_failing_load_state_dict_is_reported_with_the_class():
    with pytest.raises(RuntimeError, match=r"InTurn': InTurn\.load_state_dict: KeyError: 'at'"):
        in_turn().load_state_dict({"dealt": 3})


def test_a_state_that_holds_itself_is_refused():
    state = {}
    state["self"] = state
    with pytest.raises(ValueError, match=r"state_dict\(\) contains itself"):
        in_turn(state_dict=lambda: state).state_dict()
