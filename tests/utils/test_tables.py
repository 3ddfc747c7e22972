"""Tests of tables for a terminal."""

import json

import pytest

from trl_grpo_plus.utils.tables import OK, CheckRow, in_a_line, table


def test_a_name_wider_than_the_terminal_leaves_room_for_the_text():
    text = "a sentence of several words, which stand on as many lines as they need and are no column of words"
    printed = table([CheckRow("path/" * 40 + "rewards.py:right", OK, text)])
    lines = printed.partition("\n\n")[0].splitlines()
    assert 2 <= len(lines) <= 4
    assert text.split() == [word for line in lines for word in line.split() if "path/" not in word and word != OK]


@pytest.mark.parametrize("beside", ["", "_project/site"])
@pytest.mark.parametrize("library", ["lib/python3/dist-packages/torch", "lib/python3.9/site-packages/torch", None])
def test_the_place_of_an_error_is_in_the_users_code(tmp_path, monkeypatch, beside, library):
    """Code under Python's prefix, or in a folder whose name begins alike, is the user's if no library is there."""
    code = tmp_path / f"python{beside}" / "reward.py"
    monkeypatch.setattr("sys.prefix", str(tmp_path / "python"))
    names = {"json": json}
    if library:
        called = compile("def loads(text):\n    return json.loads(text)\n", f"{tmp_path}/{library}/of.py", "exec")
        exec(called, names)
    else:
        names["loads"] = json.loads
    exec(compile("def score():\n    loads('no')\n", str(code), "exec"), names)
    with pytest.raises(json.JSONDecodeError) as raised:
        names["score"]()
    assert in_a_line(raised.value).endswith(f"({code}:2)")
