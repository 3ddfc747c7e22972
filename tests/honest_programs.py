"""Ordinary scripts, with their input and their output: none of them may suffer from the sandbox."""
# ruff: noqa: E501  (programs on one line)

HONEST = {
    "input": ("print(int(input()) + int(input()))", "2\n3\n", "5\n"),
    "sys.stdin": ("import sys\nprint(sum(int(line) for line in sys.stdin))", "2\n3\n", "5\n"),
    "sys.stdin.read": ("import sys\nprint(len(sys.stdin.read()))", "x" * 1000, "1000\n"),
    "sys.stdin.buffer": ("import sys\nprint(sys.stdin.buffer.readline())", "abc\n", "b'abc\\n'\n"),
    "open(0)": ("print(*map(int, open(0).read().split()))", "1 2\n3", "1 2 3\n"),
    "fast input": (
        "import io, os\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\nprint(int(input()) + 1)",
        "41\n",
        "42\n",
    ),
    "fast output": ("import sys\nsys.stdout.write('a')\nsys.stdout.flush()\nimport os\nos.write(1, b'b')", "", "ab"),
    "no input": ("try:\n    input()\nexcept EOFError:\n    print('none')", "", "none\n"),
    "Unicode": ("print(input()[::-1])", "aé漢🙂\n", "🙂漢éa\n"),
    "a main guard": ("def main():\n    print(1)\nif __name__ == '__main__':\n    main()", "", "1\n"),
    "exit": ("print(1)\nexit()", "", "1\n"),
    "sys.exit(0)": ("import sys\nprint(1)\nsys.exit(0)", "", "1\n"),
    "atexit": ("import atexit\natexit.register(print, 2)\nprint(1)", "", "1\n2\n"),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10 ** 6)\ndef f(n):\n    return n and 1 + f(n - 1)\nprint(f(10 ** 5))",
        "",
        "100000\n",
    ),
    "recursion in a big thread": (
        "import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(1 << 27)\n"
        "def f(n):\n    return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(30000)))\nt.start()\nt.join()",
        "",
        "30000\n",
    ),
    "classes": (
        "from dataclasses import dataclass, field\nfrom enum import Enum\nclass C(Enum):\n    A = 1\n@dataclass(order=True)\n"
        "class P:\n    x: int\n    y: list = field(default_factory=list)\nprint(sorted([P(2), P(1)])[0], C.A)",
        "",
        "P(x=1, y=[]) C.A\n",
    ),
    "generators": ("def g():\n    yield from range(3)\nprint(*g(), sum(x * x for x in g()))", "", "0 1 2 5\n"),
    "threads": (
        "import threading, queue\nq = queue.Queue()\n"
        "ts = [threading.Thread(target=q.put, args=(i,)) for i in range(50)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]\nprint(sum(q.get() for _ in ts))",
        "",
        "1225\n",
    ),
    "a thread after main": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()\nprint('main')",
        "",
        "main\nlate\n",
    ),
    "asyncio": (
        "import asyncio\nasync def f(i):\n    await asyncio.sleep(0.01)\n    return i\n"
        "async def main():\n    print(await asyncio.gather(f(1), f(2)))\nasyncio.run(main())",
        "",
        "[1, 2]\n",
    ),
    "executors": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as e:\n    print(*e.map(abs, [-1, -2]))",
        "",
        "1 2\n",
    ),
    "random": ("import random\nrandom.seed(1)\nprint(random.randint(1, 6), len({random.random() for _ in range(99)}))", "", "2 99\n"),
    "decimals": ("from decimal import Decimal as D\nfrom fractions import Fraction as F\nprint(D('0.1') * 3, F(1, 3) * 3)", "", "0.3 1\n"),
    "the usual modules": (
        "import sys, math, heapq, bisect, itertools, functools, collections, string, re, json, operator, copy, datetime\n"
        "from typing import List, Optional\nfrom collections import defaultdict, deque, Counter\n"
        "h = [3, 1, 2]\nheapq.heapify(h)\nprint(h[0], bisect.bisect([1, 3], 2), math.comb(5, 2), re.sub('a', 'b', 'aa'),"
        " json.dumps({'a': [1]}), string.digits, datetime.date(2024, 2, 29).isoformat(), Counter('aab')['a'])",
        "",
        '1 1 10 bb {"a": [1]} 0123456789 2024-02-29 2\n',
    ),
    "an evaluation of its own": ("print(eval('1 + 1'))\nexec('print(3)')", "", "2\n3\n"),
    "hashes": ("import hashlib\nprint(hashlib.md5(b'x').hexdigest()[:6], hashlib.sha256(b'').hexdigest()[:6])", "", "9dd4e4 e3b0c4\n"),
    "time": ("import time\nt = time.time()\ntime.sleep(0.01)\nprint(time.time() > t, time.perf_counter() > 0)", "", "True True\n"),
    "own signals": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: print('rang'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\nsignal.pause()",
        "",
        "rang\n",
    ),
    "stdout to a text": ("import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b):\n    print(1)\nprint(b.getvalue() * 2, end='')", "", "1\n1\n"),
    "a failed attempt": ("import subprocess\ntry:\n    subprocess.run(['ls'])\nexcept Exception:\n    print('no')", "", "no\n"),
    "pickle of its own class": ("import pickle\nclass A:\n    x = 3\nprint(pickle.loads(pickle.dumps(A())).x)", "", "3\n"),
    "400 MB": ("x = bytearray(400 << 20)\nprint(len(x))", "", f"{400 << 20}\n"),
    "lots of output": ("print('x' * 1_000_000)", "", "x" * 1_000_000 + "\n"),
    "logging and stderr": ("import sys, logging\nlogging.warning('a')\nprint('b', file=sys.stderr)\nprint('c')", "", "c\n"),
}  # fmt: skip
