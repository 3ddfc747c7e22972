"""Ordinary programs, with their input and their output. The sandbox must not change what they do."""
# ruff: noqa: E501  (programs on one line)

HONEST = {
    "input": ("print(int(input()) + int(input()))", "2\n3\n", "5\n"),
    "sys.stdin": ("import sys\nprint(sum(int(line) for line in sys.stdin))", "2\n3\n", "5\n"),
    "sys.stdin.read": ("import sys\nprint(len(sys.stdin.read()))", "x" * 1000, "1000\n"),
    "sys.stdin.buffer": ("import sys\nprint(sys.stdin.buffer.readline())", "abc\n", "b'abc\\n'\n"),
    "open(0)": ("print(*map(int, open(0).read().split()))", "1 2\n3", "1 2 3\n"),
    "fast input": ("import io, os\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\nprint(int(input()) + 1)", "41\n", "42\n"),
    "fast output": ("import sys\nsys.stdout.write('a')\nsys.stdout.flush()\nimport os\nos.write(1, b'b')", "", "ab"),
    "no input": ("try:\n    input()\nexcept EOFError:\n    print('none')", "", "none\n"),
    "Unicode": ("print(input()[::-1])", "aé漢🙂\n", "🙂漢éa\n"),
    "a main guard": ("def main():\n    print(1)\nif __name__ == '__main__':\n    main()", "", "1\n"),
    "exit": ("print(1)\nexit()", "", "1\n"),
    "sys.exit(0)": ("import sys\nprint(1)\nsys.exit(0)", "", "1\n"),
    "atexit": ("import atexit\natexit.register(print, 2)\nprint(1)", "", "1\n2\n"),
    "deep recursion": ("import sys\nsys.setrecursionlimit(10 ** 6)\ndef f(n):\n    return n and 1 + f(n - 1)\nprint(f(10 ** 5))", "", "100000\n"),
    "a stack raised as for a contest": ("import resource, sys\nsys.setrecursionlimit(10 ** 6)\n"
        "resource.setrlimit(resource.RLIMIT_STACK, (1 << 28, 1 << 28))\n"
        "def f(n):\n    return n and 1 + f(n - 1)\nprint(f(10 ** 5))", "", "100000\n"),
    "recursion in a big thread": ("import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(1 << 27)\n"
        "def f(n):\n    return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(30000)))\nt.start()\nt.join()", "", "30000\n"),
    "classes": ("from dataclasses import dataclass, field\nfrom enum import Enum\nclass C(Enum):\n    A = 1\n@dataclass(order=True)\n"
        "class P:\n    x: int\n    y: list = field(default_factory=list)\nprint(sorted([P(2), P(1)])[0], C.A)", "", "P(x=1, y=[]) C.A\n"),
    "generators": ("def g():\n    yield from range(3)\nprint(*g(), sum(x * x for x in g()))", "", "0 1 2 5\n"),
    "threads": ("import threading, queue\nq = queue.Queue()\nts = [threading.Thread(target=q.put, args=(i,)) for i in range(50)]\n[t.start() for t in ts]; [t.join() for t in ts]\nprint(sum(q.get() for _ in ts))", "", "1225\n"),
    "threads that are joined late": ("import threading, queue\nq = queue.Queue()\nts = []\nfor i in range(60):\n    ts.append(threading.Thread(target=q.put, args=(i,)))\n    ts[-1].start()\n    q.get()\n[t.join() for t in ts]\nprint(len(ts))", "", "60\n"),
    "a thread after main": ("import threading\nthreading.Thread(target=lambda: (threading.main_thread().join(), print('late'))).start()\nprint('main')", "", "main\nlate\n"),
    "asyncio": ("import asyncio\nasync def f(i):\n    await asyncio.sleep(0.01)\n    return i\nasync def main():\n    print(await asyncio.gather(f(1), f(2)))\nasyncio.run(main())", "", "[1, 2]\n"),
    "executors": ("from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as e:\n    print(*e.map(abs, [-1, -2]))", "", "1 2\n"),
    "random": ("import random\nrandom.seed(1)\nprint(random.randint(1, 6), len({random.random() for _ in range(99)}))", "", "2 99\n"),
    "decimals": ("from decimal import Decimal as D\nfrom fractions import Fraction as F\nprint(D('0.1') * 3, F(1, 3) * 3)", "", "0.3 1\n"),
    "the usual modules": ("import sys, math, heapq, bisect, itertools, functools, collections, string, re, json, operator, copy, datetime\n"
        "from typing import List, Optional\nfrom collections import defaultdict, deque, Counter\n"
        "h = [3, 1, 2]\nheapq.heapify(h)\nprint(h[0], bisect.bisect([1, 3], 2), math.comb(5, 2), re.sub('a', 'b', 'aa'),"
        " json.dumps({'a': [1]}), string.digits, datetime.date(2024, 2, 29).isoformat(), Counter('aab')['a'])", "", '1 1 10 bb {"a": [1]} 0123456789 2024-02-29 2\n'),
    "an evaluation of its own": ("print(eval('1 + 1'))\nexec('print(3)')", "", "2\n3\n"),
    "hashes": ("import hashlib\nprint(hashlib.md5(b'x').hexdigest()[:6], hashlib.sha256(b'').hexdigest()[:6])", "", "9dd4e4 e3b0c4\n"),
    "time": ("import time\nt = time.time()\ntime.sleep(0.01)\nprint(time.time() > t, time.perf_counter() > 0)", "", "True True\n"),
    "own signals": ("import signal\nrang = []\nsignal.signal(signal.SIGALRM, lambda *a: rang.append(1))\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\nsignal.pause()\nsignal.setitimer(signal.ITIMER_REAL, 0)\nprint(*rang[:1])", "", "1\n"),
    "stdout to a text": ("import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b):\n    print(1)\nprint(b.getvalue() * 2, end='')", "", "1\n1\n"),
    "a failed attempt": ("import subprocess\ntry:\n    subprocess.run(['ls'])\nexcept Exception:\n    print('no')", "", "no\n"),
    "pickle of its own class": ("import pickle\nclass A:\n    x = 3\nprint(pickle.loads(pickle.dumps(A())).x)", "", "3\n"),
    "400 MB": ("x = bytearray(400 << 20)\nprint(len(x))", "", f"{400 << 20}\n"),
    "lots of output": ("print('x' * 1_000_000)", "", "x" * 1_000_000 + "\n"),
    "logging and stderr": ("import sys, logging\nlogging.warning('a')\nprint('b', file=sys.stderr)\nprint('c')", "", "c\n"),
}  # fmt: skip


# -- modules that may be imported: a program that uses each one, with its input and its output

LIBRARY = {
    "__future__": ("from __future__ import annotations\ndef f(x: NoSuchType) -> int:\n    return x\nprint(f(1), f.__annotations__['x'])", "", "1 NoSuchType\n"),
    "gzip": ("import gzip\nprint(gzip.decompress(gzip.compress(b'abc')))", "", "b'abc'\n"),
    "zipfile": ("import io, zipfile\nfile = io.BytesIO()\nwith zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as z:\n    z.writestr('a', 'b' * 9)\nprint(zipfile.ZipFile(file).read('a'))", "", "b'bbbbbbbbb'\n"),
    "tarfile": ("import io, tarfile\nfile = io.BytesIO()\nwith tarfile.open(fileobj=file, mode='w:gz') as t:\n    info = tarfile.TarInfo('a')\n    info.size = 2\n    t.addfile(info, io.BytesIO(b'xy'))\n"
        "file.seek(0)\nprint(tarfile.open(fileobj=file).extractfile('a').read())", "", "b'xy'\n"),
    "bz2 and lzma": ("import bz2, lzma\nprint(bz2.decompress(bz2.compress(b'a')), lzma.decompress(lzma.compress(b'b')))", "", "b'a' b'b'\n"),
    "optparse": ("import optparse\np = optparse.OptionParser()\np.add_option('-n', type=int, default=3)\nprint(p.parse_args([])[0].n)", "", "3\n"),
    "fileinput": ("import fileinput\nprint(sum(int(line) for line in fileinput.input()))", "2\n3\n", "5\n"),
    "configparser": ("import configparser\nc = configparser.ConfigParser()\nc.read_string(input() + '\\na = 1')\nprint(c['s']['a'])", "[s]\n", "1\n"),
    "cmd": ("import cmd\nclass C(cmd.Cmd):\n    use_rawinput = False\n    prompt = ''\n    def do_add(self, line):\n        print(sum(map(int, line.split())))\n    def do_EOF(self, line):\n        return True\nC().cmdloop()", "add 2 3\n", "5\n"),
    "html.parser": ("from html.parser import HTMLParser\nclass P(HTMLParser):\n    def handle_data(self, data):\n        print(data)\nP().feed('<p>a</p>')", "", "a\n"),
    "mmap": ("import mmap\nm = mmap.mmap(-1, 4096)\nm[:3] = b'abc'\nprint(m[:3], m.find(b'c'))", "", "b'abc' 2\n"),
    "xml.dom.minidom": ("from xml.dom.minidom import parseString\nprint(parseString('<a b=\"1\"/>').documentElement.getAttribute('b'))", "", "1\n"),
    "xml.sax": ("import xml.sax\nclass H(xml.sax.ContentHandler):\n    def startElement(self, name, attrs):\n        print(name)\nxml.sax.parseString(b'<a/>', H())", "", "a\n"),
    "xml.etree": ("import xml.etree.ElementTree as E\nprint(E.fromstring('<a><b/></a>')[0].tag)", "", "b\n"),
    "dates from texts": ("import time\nfrom datetime import datetime\nprint(datetime.strptime('2024-02-29', '%Y-%m-%d').day, time.strptime('7', '%d').tm_mday)", "", "29 7\n"),
    "old encodings": ("print('Ж'.encode('cp1251'), 'é'.encode('cp850'), '漢'.encode('gbk'), '漢'.encode('shift_jis'), 'é'.encode('utf-7'))", "", "b'\\xc6' b'\\x82' b'\\x9dh' b'\\x8a\\xbf' b'+AOk-'\n"),
    "codecs of texts": ("import codecs\nprint(codecs.encode('abc', 'rot13'), codecs.encode(b'a', 'hex'), codecs.encode(b'a', 'base64'))", "", "nop b'61' b'YQ==\\n'\n"),
    "email": ("from email.message import EmailMessage\nm = EmailMessage()\nm['To'] = 'a@b'\nm.set_content('x')\nprint(m['To'], m.get_content())", "", "a@b x\n\n"),
    "doctest": ("import doctest\ndef f():\n    '>>> f()\\n3'\n    return 3\nprint(doctest.testmod())", "", "TestResults(failed=0, attempted=1)\n"),
    "unittest": ("import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(1, 1)\nunittest.main(exit=False)\nprint('ran')", "", "ran\n"),
    "logging to a text": ("import io, logging.config\nb = io.StringIO()\nlogging.config.dictConfig({'version': 1, 'handlers': {'h': {'class': 'logging.StreamHandler', 'stream': b}}, 'root': {'handlers': ['h']}})\nlogging.warning('a')\nprint(b.getvalue())", "", "a\n\n"),
    "csv and plistlib": ("import csv, io, plistlib\nprint(next(csv.reader(['a,b'])), plistlib.loads(plistlib.dumps({'a': 1})))", "", "['a', 'b'] {'a': 1}\n"),
    "wave": ("import io, wave\nb = io.BytesIO()\nwith wave.open(b, 'wb') as w:\n    w.setparams((1, 2, 8000, 0, 'NONE', ''))\n    w.writeframes(b'ab')\nprint(len(b.getvalue()))", "", "46\n"),
    "hashes of all kinds": ("import hashlib, hmac\nprint(*(hashlib.new(n, b'').hexdigest()[:2] for n in ('md5', 'sha1', 'sha224', 'sha384', 'sha512', 'sha3_256', 'blake2b')), hmac.new(b'k', b'', 'sha256').hexdigest()[:2])", "", "d4 da d1 38 cf a7 78 8b\n"),
    "times in zones": ("from datetime import datetime, timedelta, timezone\nimport zoneinfo\nprint(datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2))).isoformat())", "", "2024-01-01T00:00:00+02:00\n"),
    "getpass, pwd and readline, if need be": ("import getpass\ntry:\n    import readline\nexcept ImportError:\n    pass\nprint(1)", "", "1\n"),
    "urllib.request": ("import urllib.request, urllib.error, http.client\ntry:\n    urllib.request.urlopen('http://127.0.0.1')\nexcept OSError:\n    print('no')", "", "no\n"),
    "tomllib, where it is": ("import sys\nif sys.version_info >= (3, 11):\n    import tomllib\n    assert tomllib.loads('a = 1') == {'a': 1}\nprint(1)", "", "1\n"),
    "a module that is not there": ("try:\n    import numpy\nexcept ImportError as error:\n    print(error)", "", "No module named 'numpy'\n"),
}  # fmt: skip

# A program that reads names of modules and prints those that it cannot import.
IMPORT_ALL = "import importlib\nfor name in open(0).read().split():\n    try:\n        importlib.import_module(name)\n    except BaseException:\n        print(name)"
# Modules in C that need a system library, modules that need those or a window system, and a link of Debian's.
OUT_OF_REACH = {
    "_crypt", "_curses", "_curses_panel", "_dbm", "_gdbm", "_hashlib", "_pyrepl", "_sqlite3", "_ssl", "_tkinter", "_uuid", "crypt",
    "curses", "dbm.ndbm", "dbm.sqlite3", "nis", "readline", "sitecustomize", "sqlite3", "ssl", "turtle",
}  # fmt: skip


# -- right programs in the forms in which models write them. Each adds two numbers.
# Forms of the task: s: a script, f: a function with cases, a: a function with asserts.

ADD = "def add(a, b):\n    return a + b"
SUM = "a, b = map(int, input().split())\nprint(a + b)"


def _fenced(program: str, language: str = "python", fence: str = "```") -> str:
    return f"{fence}{language}\n{program}\n{fence}"


def _indented(text: str, by: str) -> str:
    return "\n".join(by + line if line else line for line in text.split("\n"))


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


# name -> (form, completion). With `a - b` in place of `a + b` each becomes a wrong program, which must earn nothing.
DRESSED = {
    # a fence within the program
    "a fence in a docstring": ("f", _fenced('def add(a, b):\n    """Add.\n\n    ```\n    add(2, 3)\n    ```\n    """\n    return a + b')),
    "a labelled fence in a docstring": ("a", _fenced('def add(a, b):\n    """Add.\n\n    ```python\n    >>> add(2, 3)\n    5\n    ```\n    """\n    return a + b')),
    "a fence at the margin of a docstring": ("f", _fenced('"""Adds.\n\n```\nadd(2, 3)\n```\n"""\ndef add(a, b):\n    return a + b')),
    "a fence in a docstring, words behind": ("f", "Here:\n\n" + _fenced('def add(a, b):\n    """\n    ```\n    add(2, 3)\n    ```\n    """\n    return a + b') + "\n\nIt adds.\n"),
    "two fences in a docstring": ("f", _fenced("def add(a, b):\n    '''\n    ```\n    add(2, 3)\n    ```\n    gives\n    ```\n    5\n    ```\n    '''\n    return a + b")),
    "a lone fence in a text": ("s", _fenced("FENCE = '''\n```\n'''\n" + SUM)),
    "a fence in a docstring of a script": ("s", _fenced('"""\nReads:\n```\n2 3\n```\n"""\n' + SUM) + "\nOutput:\n```\n5\n```"),
    "a fence in a comment": ("f", _fenced("def add(a, b):\n    # ```\n    # add(2, 3)\n    # ```\n    return a + b")),
    "a docstring that names a fence": ("f", _fenced('def add(a, b):\n    """Not in ``` but plain."""\n    return a + b')),
    "a fence in one docstring, the program again": ("f", _fenced('def add(a, b):\n    """\n    ```\n    x\n    ```\n    """\n    return 0') + "\nBetter:\n" + _fenced(ADD)),
    # blocks that are no program
    "comments alone behind a script": ("s", _fenced(SUM) + "\nNotes:\n" + _fenced("# reads two numbers\n# prints their sum")),
    "comments alone behind a function": ("f", _fenced(ADD) + "\nUse:\n" + _fenced("# add(2, 3) -> 5")),
    "a docstring alone behind a script": ("s", _fenced(SUM) + "\n" + _fenced('"""Time: O(1)."""')),
    "an empty block behind a script": ("s", _fenced(SUM) + "\n```python\n```\n"),
    "an unlabelled output behind an unlabelled script": ("s", _fenced(SUM, "") + "\nOutput:\n" + _fenced("5", "")),
    "a sample's input behind an unlabelled script": ("s", _fenced(SUM, "") + "\nFor example, with\n" + _fenced("2 3", "")),
    "a command behind an unlabelled script": ("s", _fenced(SUM, "") + "\nRun:\n" + _fenced("python add.py < input.txt", "sh")),
    "a table behind a function": ("a", _fenced(ADD) + "\n" + _fenced("a | b | sum", "text")),
    "comments that define it behind a function": ("f", _fenced(ADD) + "\n" + _fenced("# def add(a, b): return 0")),
    "a text that defines it behind a function": ("f", _fenced(ADD) + "\n" + _fenced('HELP = """\ndef add(a, b):\n    return 0\n"""')),
    # no fence
    "answer tags": ("f", f"So.\n<answer>{ADD}</answer>"),
    "answer tags on lines of their own": ("a", f"So.\n<answer>\n{ADD}\n</answer>\nDone."),
    "answer tags around a script": ("s", f"<think>Add.</think><answer>{SUM}</answer>"),
    "answer tags behind a fenced sketch": ("f", f"A sketch:\n{_fenced('def add(a, b): ...')}\n<answer>\n{ADD}\n</answer>"),
    "a fence in answer tags before an example": ("s", f"<answer>\n{_fenced(SUM)}\n</answer>\nFor example:\n{_fenced('print(5)')}"),
    "PYTHON tags": ("f", f"[PYTHON]\n{ADD}\n[/PYTHON]"),
    "PYTHON tags, then tests": ("a", f"[PYTHON]\n{ADD}\n[/PYTHON]\n[TESTS]\nassert add(2, 3) == 5\n[/TESTS]"),
    "PYTHON tags around a script": ("s", f"Sure.\n[PYTHON]\n{SUM}\n[/PYTHON]\nIt adds."),
    "BEGIN and DONE": ("a", f"[BEGIN]\n{ADD}\n[DONE]"),
    "code tags": ("f", f"<code>\n{ADD}\n</code>"),
    "python tags": ("f", f"<python>\n{ADD}\n</python>"),
    "pre and code tags": ("f", f'<pre><code class="language-python">{ADD}\n</code></pre>\nThat is all.'),
    "LaTeX": ("f", f"\\begin{{lstlisting}}[language=Python]\n{ADD}\n\\end{{lstlisting}}"),
    "LaTeX, verbatim": ("s", f"\\begin{{verbatim}}\n{SUM}\n\\end{{verbatim}}"),
    "words before it": ("f", f"Here is the function:\n\n{ADD}\n"),
    "words before and behind it": ("a", f"Here is the function:\n\n{ADD}\n\nIt returns the sum of its arguments.\n"),
    "words behind it": ("s", f"{SUM}\n\nThis program reads two numbers and prints the sum."),
    "an end mark behind it": ("f", f"{ADD}<|endoftext|>"),
    "an end mark on a line of its own": ("s", f"{SUM}\n<|im_end|>\n"),
    "an indented block": ("f", f"The function:\n\n{_indented(ADD, '    ')}\n\nThat is all.\n"),
    "a label without its fence": ("f", f"python\n{ADD}"),
    "a line in backticks": ("f", "It is `add = lambda a, b: a + b`."),
    "a line in a fence": ("f", "```python add = lambda a, b: a + b```"),
    # odd fences and labels
    "a byte order mark": ("f", f"\ufeff{_fenced(ADD)}"),
    "a byte order mark in the block": ("s", f"```python\n\ufeff{SUM}\n```"),
    "a byte order mark and no fence": ("s", f"\ufeff{SUM}"),
    "code on the fence's line": ("f", f"```{ADD}\n```"),
    "code behind the label": ("f", f"```python {ADD}\n```"),
    "words behind the closing fence": ("f", f"```python\n{ADD}\n``` This adds the two numbers.\n"),
    "python3.11": ("s", _fenced(SUM, "python3.11") + "\n" + _fenced("5", "text")),
    "py3": ("s", _fenced(SUM, "py3") + "\n" + _fenced("5", "text")),
    "{python}": ("s", _fenced(SUM, "{python}") + "\n" + _fenced("5", "text")),
    "{.python}": ("s", _fenced(SUM, "{.python .numberLines}") + "\n" + _fenced("5", "output")),
    "a blank before the label": ("s", _fenced(SUM, " python") + "\n" + _fenced("5", "")),
    "a file's name behind the label": ("s", _fenced(SUM, "python:add.py") + "\n" + _fenced("5", "")),
    "a quotation": ("f", _quoted(_fenced(ADD)) + "\n\nDone."),
    "Markdown in four backticks": ("f", _fenced("# Solution\n\n" + _fenced(ADD), "markdown", "````")),
    "Markdown in three backticks": ("f", "```markdown\n# Solution\n" + _fenced(ADD) + "\n```"),
    # in pieces
    "an import in a block of its own": ("f", "First:\n" + _fenced("import operator") + "\nThen:\n" + _fenced("def add(a, b):\n    return operator.pos(a + b)")),
    "a helper in a block of its own": ("a", "First:\n" + _fenced("def plus(a, b):\n    return a + b") + "\nThen:\n" + _fenced("def add(a, b):\n    return plus(a, b)")),
    "a constant in a block of its own": ("f", _fenced("ZERO = 0") + "\n" + _fenced("def add(a, b):\n    return ZERO + (a + b)")),
    "a class in a block of its own": ("f", _fenced("class Pair:\n    def __init__(self, a, b):\n        self.sum = a + b") + "\n" + _fenced("def add(a, b):\n    return Pair(a, b).sum")),
    "a main behind its functions": ("s", _fenced("def add(a, b):\n    return a + b") + "\nAnd to run it:\n" + _fenced("x, y = map(int, input().split())\nprint(add(x, y))")),
    # written later, when the reward already read all of the above
    "numbered steps":("f","1. **Define it**:\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n2. **Use it**:\n   ```python\n   print(add(1, 2))\n   ```\n"),
    "doctest in r-docstring":("f",_fenced('def add(a, b):\n    r"""Sum.\n\n    Example::\n\n        ```py\n        >>> add(1, 2)\n        3\n        ```\n    """\n    return a + b')),
    "table then code":("s","| x | y |\n|---|---|\n| 1 | 2 |\n\n"+_fenced(SUM)),
    "apostrophes in comments":("f",_fenced("# don't panic\ndef add(a, b):\n    # it's a sum\n    return a + b")+"\nIt's done.\n"+_fenced("add(1, 2)  # isn't it?")),
    "explanation with inline ticks":("s","Use `input()` and `print()`:\n\n"+_fenced(SUM)+"\n\nHere `a` and `b` are ints."),
    "solution heading":("s","# Solution\n\n"+_fenced(SUM,"python3")+"\n\n# Complexity\n\nO(1)\n"),
    "final answer tag w/ text":("f","<answer>\nThe function is:\n\n"+ADD+"\n\nIt adds its arguments.\n</answer>"),
    "unfenced w/ imports":("s","Sure, here you go:\n\nimport sys\n\ndef main():\n    a, b = map(int, sys.stdin.readline().split())\n    print(a + b)\n\nif __name__ == '__main__':\n    main()\n"),
    "unfenced class":("f","We need a class.\n\nfrom typing import Any\n\nclass Adder:\n    def run(self, a: Any, b: Any) -> Any:\n        return a + b\n\nadd = Adder().run\n"),
    "unfenced comment first":("f","# Adds two numbers.\n"+ADD),
    "unfenced shebang":("s","#!/usr/bin/env python3\n"+SUM),
    "unfenced docstring first":("f",'"""Module."""\n'+ADD),
    "decorated":("f",_fenced("import functools\n\n@functools.lru_cache(maxsize=None)\n"+ADD)),
    "two answers in tags":("f",f"<answer>def add(a, b): return 0</answer> no <answer>{ADD}</answer>"),
    "fence with tilde in list":("f","* Code:\n  ~~~python\n  def add(a, b):\n      return a + b\n  ~~~\n"),
    "pip first":("f",_fenced("pip install nothing","bash")+"\n"+_fenced(ADD)+"\n"+_fenced("$ python add.py\n5","console")),
    "caps":("s",_fenced(SUM,"PYTHON")+"\nOutput\n"+_fenced("5","TEXT")),
    "solution tag":("f",f"<solution>\n{ADD}\n</solution>"),
    "quoted triple in prose":("f",'Docstrings use """ quotes.\n\n'+_fenced(ADD)),
    "odd quote in block text":("s",_fenced('He said """',"")+"\n"+_fenced(SUM)),
    "imports block, then two funcs":("f",_fenced("from typing import List\nimport math")+"\nHelper\n"+_fenced("def plus(a, b):\n    return math.floor(a + b)")+"\nMain\n"+_fenced("def add(a, b):\n    return plus(a, b)")+"\nTest\n"+_fenced("assert add(1, 2) == 3")),
    "unclosed answer":("f",f"<answer>\n{_fenced(ADD)}"),
    "start_of_turn":("f",f"{_fenced(ADD)}<end_of_turn>"),
}  # fmt: skip

# name -> (form, completion): the text holds a right program, but the program is not the answer.
NOT_ANSWERED = {
    "in earlier answer tags": ("f", f"<answer>{ADD}</answer>\nNo:\n<answer>def add(a, b):\n    return 0</answer>"),
    "in earlier answer tags, then words": ("f", f"<answer>{ADD}</answer>\n<answer>I do not know.</answer>"),
    "in a fence, other code in answer tags": ("f", f"{_fenced(ADD)}\n<answer>def add(a, b):\n    return 0</answer>"),
    "in a fence, a fence in answer tags": ("s", f"{_fenced(SUM)}\n<answer>\n{_fenced('print(0)')}\n</answer>"),
    "in thinking": ("f", f"<think><answer>{ADD}</answer></think>I do not know."),
    "in thinking, PYTHON tags": ("f", f"<think>[PYTHON]{ADD}[/PYTHON]</think>I do not know."),
    "in thinking, words alone": ("f", f"<think>{ADD}</think>\nThe function adds its two arguments."),
    "in a docstring": ("f", _fenced('def add(a, b):\n    """\n    ```python\n    def add(a, b):\n        return a + b\n    ```\n    """\n    return 0')),
    "in a docstring at the margin": ("f", _fenced('"""\n```python\ndef add(a, b):\n    return a + b\n```\n"""\ndef add(a, b):\n    return 0')),
    "in a text": ("f", _fenced(f'TEXT = """\n{ADD}\n"""\ndef add(a, b):\n    return 0')),
    "in a text alone": ("f", _fenced(f'TEXT = """\n{ADD}\n"""')),
    "in a text of a script": ("s", _fenced(f'TEXT = """\n```python\n{SUM}\n```\n"""\nprint(0)')),
    "in comments": ("f", _fenced("\n".join(f"# {line}" for line in ADD.split("\n")) + "\ndef add(a, b):\n    return 0")),
    "in comments alone": ("s", _fenced("\n".join(f"# {line}" for line in SUM.split("\n")))),
    "before another definition": ("f", _fenced(ADD) + "\n" + _fenced("def add(a, b):\n    return 0", "")),
    "before a broken definition": ("f", _fenced(ADD) + "\n" + _fenced("def add(a, b):\n    return (")),
    "before a broken script": ("s", _fenced(SUM) + "\n" + _fenced("print(")),
    "before a broken script, no labels": ("s", _fenced(SUM, "") + "\n" + _fenced("print(", "")),
    "before another script": ("s", _fenced(SUM) + "\n" + _fenced("print(0)")),
    "before another script, no labels": ("s", _fenced(SUM, "") + "\n" + _fenced("print(0)", "")),
    "before words that are labelled": ("s", _fenced(SUM) + "\n" + _fenced("I was wrong: this is not it")),
    "in earlier PYTHON tags": ("f", f"[PYTHON]\n{ADD}\n[/PYTHON]\n[PYTHON]\ndef add(a, b):\n    return 0\n[/PYTHON]"),
    "unfenced, then another": ("f", f"{ADD}\n\nNo, it should rather be this:\n\ndef add(a, b):\n    return 0\n"),
    "unfenced, then another script": ("s", f"{SUM}\n\nNo, it should rather be this:\n\nprint(0)\n"),
    "unfenced, then another in a fence": ("f", f"{ADD}\n\n{_fenced('def add(a, b):' + chr(10) + '    return 0')}"),
    "in backticks, then another": ("f", "It is `add = lambda a, b: a + b`, no, `add = lambda a, b: 0`."),
    "a helper of that name": ("f", _fenced(ADD) + "\n" + _fenced("def add(a, b):\n    return plus(a, b)")),
    "a helper that is defined later": ("f", _fenced("def add(a, b):\n    return plus(a, b)") + "\n" + _fenced("def plus(a, b):\n    return a + b")),
    "behind words and a fence's end": ("f", f"```python\n{ADD}\n``` No, rather:\n```python\ndef add(a, b):\n    return 0\n```"),
    "as a method": ("f", _fenced("class T:\n    def add(self, a, b):\n        return a + b")),
    "in Markdown, then another": ("f", _fenced(_fenced(ADD), "markdown", "````") + "\n" + _fenced("def add(a, b):\n    return 0")),
    "as a diff": ("f", _fenced("\n".join(f"+{line}" for line in ADD.split("\n")), "diff")),
    "as a session": ("f", _fenced(">>> def add(a, b):\n...     return a + b", "pycon")),
    "in another language": ("f", _fenced("function add(a, b) { return a + b; }", "js")),
}  # fmt: skip
