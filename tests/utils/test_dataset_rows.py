"""Columns as codes: they hold the values that a row-by-row reading finds, for any type, format and order of rows."""

import math

import pytest
from datasets import ClassLabel, Dataset, Features, Value, concatenate_datasets

from trl_grpo_plus.utils.dataset_rows import column, encoded, encoded_column


def decoded(codes):
    return [codes.values[code] for code in codes.codes.tolist()]


ROWS = Dataset.from_dict({"x": ["b", "a", None, "b", "c"]})


@pytest.mark.parametrize(
    "dataset",
    [
        ROWS,
        ROWS.shuffle(seed=1),
        ROWS.filter(lambda row: row["x"] != "b"),
        ROWS.select([4, 0, 0]),
        concatenate_datasets([ROWS, ROWS.shuffle(seed=2)]),
        ROWS.with_format("pandas"),
        Dataset.from_dict({"x": [1, 2, 1]}).with_format("torch"),
        Dataset.from_dict({"x": [True, False, True]}),
        Dataset.from_dict({"x": [0.5, 1.0, 0.5]}),
        ROWS.select([]),
        Dataset.from_dict({"x": ["p", "q", "p"]}, features=Features({"x": Value("large_string")})),
        Dataset.from_dict({"x": [1, 0, 1]}, features=Features({"x": ClassLabel(names=["p", "q"])})),
    ],
)
def test_codes_are_what_a_row_by_row_reading_finds(dataset):
    codes, expected = encoded_column(dataset, "x"), encoded(column(dataset, "x"))
    assert codes.values == expected.values
    assert codes.codes.tolist() == expected.codes.tolist()
    assert decoded(codes) == column(dataset, "x")


def test_nan_and_none_are_one_value():
    dataset = Dataset.from_dict({"x": [1.0, math.nan, None, 2.0, math.nan]})
    assert decoded(encoded_column(dataset, "x")) == [1.0, None, None, 2.0, None]
    assert decoded(encoded([1.0, math.nan, None])) == [1.0, None, None]


def test_zeros_of_either_sign_are_one_value():
    dataset = Dataset.from_dict({"x": [0.0, -0.0, 1.0, None, 0.5]})
    assert (
        encoded_column(dataset, "x").codes.tolist() == encoded(column(dataset, "x")).codes.tolist() == [0, 0, 1, 2, 3]
    )


def test_what_only_a_row_by_row_reading_knows_has_no_codes():
    transformed = ROWS.with_transform(lambda rows: {"x": [f"{value}!" for value in rows["x"]]})
    assert encoded_column(transformed, "x") is None
    assert encoded_column(Dataset.from_dict({"x": [[1], [2]]}), "x") is None


def test_codes_take_one_byte_until_there_are_more_values():
    assert encoded(range(127)).codes.element_size() == 1
    assert encoded(range(128)).codes.element_size() == 2
    assert encoded(range(40_000)).codes.element_size() == 4
    assert encoded_column(Dataset.from_dict({"x": [*range(128)]}), "x").codes.element_size() == 2
