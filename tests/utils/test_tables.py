"""Tests of tables for a terminal."""

from trl_grpo_plus.utils.tables import OK, CheckRow, table


def test_a_name_wider_than_the_terminal_leaves_room_for_the_text():
    text = "a sentence of several words, which stand on as many lines as they need and are no column of words"
    printed = table([CheckRow("path/" * 40 + "rewards.py:right", OK, text)])
    lines = printed.partition("\n\n")[0].splitlines()
    assert 2 <= len(lines) <= 4
    assert text.split() == [word for line in lines for word in line.split() if "path/" not in word and word != OK]
