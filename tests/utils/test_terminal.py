"""Printed text: control characters from a model, a dataset or a run's folder do not reach the terminal."""

import ast
import subprocess
import sys
import unicodedata

import pytest
from package_source import trees

from trl_grpo_plus.utils.terminal import quoted, say, tell_errors_visibly, visible


ORDINARY = "👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤️ 日本語　한국어 e\u0301 naïve עברית العربية ≥ \\frac{1}{2} '\"\u00a0 \n\t."


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("sure\b\b\b\bno", r"sure\x08\x08\x08\x08no"),
        ("wrong\rright\r\n", "wrong\\rright\\r\n"),
        ("\u202etxt.exe\u202c \u2066a\u2069 \u200fb", r"\u202etxt.exe\u202c \u2066a\u2069 \u200fb"),
        ("\x00\x0b\x0c\x7f\x85\u2028\u2029\ud800", r"\x00\x0b\x0c\x7f\x85\u2028\u2029\ud800"),
        (ORDINARY, ORDINARY),
    ],
)
def test_what_a_terminal_would_obey_is_seen(text, seen, capsys):
    assert visible(text) == seen
    say(text, end="|")
    assert capsys.readouterr().out == f"{seen}|"


def test_no_control_character_is_left():
    left = visible("".join(map(chr, range(0x3000))))
    assert {char for char in left if unicodedata.category(char) in ("Cc", "Zl", "Zp")} == {"\n", "\t"}
    assert not {char for char in left if unicodedata.bidirectional(char) in ("LRE", "RLE", "LRO", "RLO", "PDF", "RLI")}


@pytest.mark.parametrize("text", ["plain", "it's", '"so"', 'it\'s "so"', "\\boxed{7}\n\t\x1b[1m\u202e", ""])
def test_quotes_are_those_of_python(text):
    assert quoted(text) == repr(text)


def test_in_quotes_too_what_is_only_drawn_stays():
    assert quoted("👩‍👩‍👧　日本") == "'👩‍👩‍👧　日本'"


def test_an_error_that_ends_a_process_is_seen(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    tell_errors_visibly()
    try:
        raise KeyError("a\x1b[2J") from RuntimeError("b\x1b[2J")
    except KeyError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "RuntimeError: b\\x1b[2J\n" in err
    assert err.endswith("KeyError: 'a\\x1b[2J'\n")


def test_no_other_module_prints():
    """Only the modules that run inside the sandbox may use `print`: they print into a pipe."""
    printing = {
        module
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if ".sandbox.child" not in module
        and isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
    assert printing == {"trl_grpo_plus.utils.terminal"}


SPEAKS = """
import sys
from trl_grpo_plus.utils.terminal import outlive_reader
if sys.argv[1] == "outlives":
    outlive_reader()
print("running", flush=True)
input()
for number in range(1000):
    print("step", number, flush=True)
    print("\\rbar", number, end="", file=sys.stderr, flush=True)
print("left in the buffer", end="")
sys.stdout.reconfigure(line_buffering=True)
raise SystemExit(3)
"""


@pytest.mark.parametrize(("what", "status"), [("outlives", 3), ("ends", 1)])
@pytest.mark.parametrize("unbuffered", [[], ["-u"]])
def test_a_process_outlives_the_reader_of_its_output(what, status, unbuffered):
    command = [sys.executable, *unbuffered, "-c", SPEAKS, what]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout.readline() == b"running\n"
    process.stdout.close()
    process.communicate(b"\n")
    assert process.returncode == status


def test_a_process_outlives_a_full_disk():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", SPEAKS, "outlives"]
        assert subprocess.run(command, input=b"\n", stdout=full, stderr=full).returncode == 3


def test_what_can_be_written_is_written_as_without_it():
    written = {}
    for what in ("outlives", "ends"):
        command = [sys.executable, "-c", SPEAKS, what]
        done = subprocess.run(command, input=b"\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        written[what] = (done.returncode, done.stdout)
    assert written["outlives"] == written["ends"]
    assert written["ends"][1].endswith(b"left in the buffer")
