"""Programs that want a verdict they have not earned, or to harm who judges them. None of them may score.

Each defines the function ``FUNCTION``, which takes anything; ``named`` puts in the name that a task asks for.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Hostile:
    """A program, and the reasons that its verdict may have. ``harmful``: not to be run where nothing would stop it."""

    name: str
    source: str
    reasons: tuple[str, ...]
    harmful: bool = False

    def named(self, function: str) -> str:
        return self.source.replace("FUNCTION", function)


def hostile(name: str, source: str, *reasons: str, harmful: bool = False) -> Hostile:
    return Hostile(name, textwrap.dedent(source).strip() + "\n", reasons, harmful)


def body(name: str, source: str, *reasons: str, harmful: bool = False) -> Hostile:
    """A program whose function consists of these lines."""
    lines = textwrap.indent(textwrap.dedent(source).strip(), "    ")
    return hostile(name, f"def FUNCTION(*arguments):\n{lines}\n", *reasons, harmful=harmful)


HOSTILE: Final = [
    # never done
    body("endless loop", "while True: pass", "timeout"),
    hostile("endless loop at the top level", "while True: pass\ndef FUNCTION(*a): pass", "timeout"),
    body("endless sleep", "import time; time.sleep(1e6)", "timeout"),
    body("endless computation in C", "return sum(range(10 ** 15))", "timeout"),
    body("stops itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "PermissionError"),
    body("kills itself", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "PermissionError"),
    body("kills its thread", "import signal as s, threading as t; s.pthread_kill(t.get_ident(), 9)", "PermissionError"),
    hostile(
        "ignores every signal",
        """
        import signal
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        def FUNCTION(*a):
            while True: pass
        """,
        "timeout",
    ),
    hostile("takes the pipe's writing away", "import os\nos.write = lambda *a: 0\ndef FUNCTION(*a): pass", "timeout"),
    # ends early, with every sign of success
    hostile("os._exit(0) at the top level", "import os\nos._exit(0)\ndef FUNCTION(*a): pass", "crashed"),
    body("os._exit(0)", "import os; os._exit(0)", "crashed"),
    body("sys.exit(0)", "import sys; sys.exit(0)", "SystemExit"),
    hostile("SystemExit at the top level", "raise SystemExit\ndef FUNCTION(*a): pass", "SystemExit"),
    body("BaseException", "raise BaseException('passed')", "BaseException"),
    body("KeyboardInterrupt", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    body("an exception of its own called passed", "raise type('passed', (Exception,), {})()", "Exception"),
    body("an exception without a text", "raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()", "Exception"),
    body("an exception without a type", "raise type('E', (OSError,), {'__name__': 5, '__str__': None})()", "OSError"),
    body("AssertionError", "raise AssertionError", "AssertionError"),
    body("segmentation fault", "import ctypes; ctypes.string_at(0)", "crashed"),
    body("abort", "import os; os.abort()", "crashed"),
    body("closes every descriptor", "import os; os.closerange(0, 4096)", "crashed", "OSError"),
    hostile(
        "exits at exit",
        "import atexit, os\natexit.register(os._exit, 0)\ndef FUNCTION(*a): raise SystemExit(0)",
        "SystemExit",
    ),
    # says that it passed
    body("prints a verdict", "print('{\"reward\": 1.0, \"reason\": \"passed\"}'); return 'passed'", "wrong_answer"),
    hostile(
        "writes answers to every descriptor",
        r"""
        import os, struct
        def FUNCTION(*a):
            for text in (b'{"value":"passed"}', b'{"reason":"passed"}', b'{"reward":1.0}'):
                for descriptor in range(64):
                    try:
                        os.write(descriptor, struct.pack(">I", len(text)) + text)
                    except OSError:
                        pass
        """,
        "wrong_answer", "crashed", "Exception",
    ),
    hostile(
        "writes answers without end",
        r"""
        import os, struct
        while True:
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, struct.pack(">I", 14) + b'{"value":null}')
                except OSError:
                    pass
        def FUNCTION(*a): pass
        """,
        "wrong_answer", "timeout", "crashed",
    ),
    hostile(
        "answers with what is no JSON",
        r"""
        import os
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"\0\0\0\4\xff\xfe[[")
            except OSError:
                pass
        def FUNCTION(*a): pass
        """,
        "unreadable_value",
    ),
    hostile(
        "an object equal to everything",
        """
        class Liar:
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            __lt__ = __le__ = __gt__ = __ge__ = __eq__
            def __hash__(self): return 0
            def __bool__(self): return True
            def __len__(self): return 1
            def __iter__(self): return iter(())
            def __contains__(self, item): return True
            def __getattr__(self, name): return self
            def __call__(self, *a): return self
            __sub__ = __add__ = __getitem__ = __rsub__ = __abs__ = __float__ = __call__
        def FUNCTION(*a): return Liar()
        """,
        "wrong_answer",
    ),
    *(
        hostile(
            f"a {base} equal to everything",
            f"""
            class Liar({base}):
                def __eq__(self, other): return True
                def __ne__(self, other): return False
                def __hash__(self): return 0
            def FUNCTION(*a): return Liar()
            """,
            "wrong_answer",
        )
        for base in ("int", "float", "str", "list", "tuple", "dict", "set")
    ),
    hostile(
        "unpickles into code",
        """
        import os
        class Bomb:
            def __reduce__(self): return os._exit, (0,)
        def FUNCTION(*a): return Bomb()
        """,
        "wrong_answer",
    ),
    body("a function", "return lambda *a: True", "wrong_answer"),
    body("not a number", "return float('nan')", "wrong_answer"),
    hostile("a generator", "def FUNCTION(*a):\n    yield 'passed'", "wrong_answer"),
    hostile("a coroutine", "async def FUNCTION(*a): return 'passed'", "wrong_answer"),
    hostile("no function", "FUNCTION = True", "no_function"),
    hostile("takes itself away", "def FUNCTION(*a): pass\ndel FUNCTION", "no_function"),
    hostile("no Python", "def FUNCTION(*a):\n    return (", "syntax_error"),
    # changes what judges it, if that stood in the same process
    hostile(
        "patched builtins",
        """
        import builtins
        builtins.AssertionError = type("Fine", (Exception,), {})
        for name in ("isinstance", "all", "any", "abs", "len", "sum", "sorted", "type", "callable", "print", "open"):
            setattr(builtins, name, lambda *a, **k: True)
        def FUNCTION(*a): return None
        """,
        "wrong_answer", "TypeError", "timeout", "crashed", "Exception",
    ),
    hostile(
        "patched JSON",
        """
        import json
        json.dumps = lambda *a, **k: '{"value":"passed"}'
        def FUNCTION(*a): return None
        """,
        "wrong_answer",
    ),
    hostile(
        "patched modules",
        """
        import sys
        for module in list(sys.modules.values()):
            for name in list(vars(module)):
                if name in ("check", "judge", "reason_of", "_reason", "run", "WRONG_ANSWER", "PASSED", "_encoded"):
                    setattr(module, name, lambda *a, **k: "passed")
        sys.modules.clear()
        def FUNCTION(*a): return None
        """,
        "wrong_answer", "ImportError", "KeyError", "ModuleNotFoundError", "Exception", "RuntimeError",
    ),
    hostile(
        "looks through frames and objects for tests",
        """
        import gc, sys
        def FUNCTION(*a):
            frame = sys._getframe()
            while frame:
                for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
                    if "assert candidate" in repr(value)[:100000]:
                        raise LookupError
                frame = frame.f_back
            for found in gc.get_objects():
                if isinstance(found, dict) and any("def check" in v for v in found.values() if isinstance(v, str)):
                    raise LookupError
        """,
        "wrong_answer",
    ),
    hostile("traces", "import sys\nsys.settrace(lambda *a: None)\ndef FUNCTION(*a): return 'passed'", "wrong_answer"),
    # takes all there is
    body("much memory at once", "return len('x' * 10 ** 11)", "out_of_memory"),
    body("memory bit by bit", "x = []\nwhile True: x.append('x' * 10 ** 6 + str(len(x)))", "out_of_memory", "timeout"),
    body("much output", "for _ in range(300): print('x' * 10 ** 6)", "wrong_answer", "timeout"),
    body("a value of 50 MB", "return 'x' * 50_000_000", "output_limit"),
    body("a value without end", "import itertools; return itertools.count()", "out_of_memory", "timeout"),
    body("a value nested deep", "x = []\nfor _ in range(10 ** 5): x = [x]\nreturn x", "ValueError"),
    body("a value that holds itself", "x = []; x.append(x); return x", "ValueError"),
    body("an integer of a million digits", "return 10 ** 10 ** 6", "wrong_answer"),
    hostile("recursion", "def FUNCTION(*a): return FUNCTION(*a)", "RecursionError"),
    hostile(
        "recursion without limit",
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef FUNCTION(*a): return FUNCTION(*a)",
        "RecursionError", "crashed", "out_of_memory", "timeout",
    ),
    body("a deep expression", "return eval('(' * 10 ** 5 + ')' * 10 ** 5)", "syntax_error", "out_of_memory", "crashed"),
    # reaches others
    body("a thread that stays", "import threading; threading.Thread(target=lambda: None).start()", "RuntimeError"),
    body("a child process", "import os; os.fork()", "PermissionError"),
    body("another program", "import subprocess; subprocess.run(['true'])", "PermissionError"),
    body("takes the interpreter's place", "import os; os.execv('/bin/true', ['true'])", "PermissionError"),
    body("a socket", "import socket; socket.create_connection(('127.0.0.1', 8000))", "PermissionError"),
    body("a socket of datagrams", "import socket; socket.socket(type=socket.SOCK_DGRAM)", "PermissionError"),
    body("a name server", "import socket; socket.getaddrinfo('example.com', 80)", "OSError", "PermissionError"),
    body("a file in /tmp", "open('/tmp/forged', 'w')", "PermissionError"),
    body("a temporary file", "import tempfile; tempfile.TemporaryFile()", "FileNotFoundError", "PermissionError"),
    body("a file where it is", "open('forged', 'x')", "PermissionError"),
    body("a file in memory", "import os; os.memfd_create('x')", "PermissionError"),
    body("a folder", "import os; os.mkdir('/tmp/forged')", "PermissionError"),
    body("removes files", "import os; os.remove('/tmp/forged')", "PermissionError"),
    body("the parent's memory", "import os; open(f'/proc/{os.getppid()}/mem', 'rb')", "PermissionError"),
    body("the parent's environment", "import os; open(f'/proc/{os.getppid()}/environ')", "PermissionError"),
    body("the parent's descriptors", "import os; os.listdir(f'/proc/{os.getppid()}/fd')", "PermissionError"),
    body("its own memory as a file", "open('/proc/self/mem', 'r+b')", "PermissionError"),
    body("another's limits", "import os, resource; resource.prlimit(os.getppid(), 0, (1, 1))", "PermissionError"),
    body("its own limits", "import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))", "PermissionError", "ValueError"),
    body("another's priority", "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)", "PermissionError"),
    body(
        "signals by descriptor",
        "import fcntl, os; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
        "PermissionError",
    ),
    body("a process's descriptor", "import os; os.pidfd_open(os.getppid())", "PermissionError"),
    body("kills its parent", "import os; os.kill(os.getppid(), 9)", "PermissionError", harmful=True),
    body("kills everybody", "import os; os.kill(-1, 9)", "PermissionError", harmful=True),
    body("kills the first process", "import os; os.kill(1, 9)", "PermissionError", harmful=True),
    body("kills its group", "import os; os.kill(0, 9)", "PermissionError", harmful=True),
    hostile(
        "fork bomb",
        """
        import os
        def FUNCTION(*a):
            while True:
                try:
                    os.fork()
                except OSError:
                    pass
        """,
        "timeout",
        harmful=True,
    ),
    hostile(
        "thread bomb",
        """
        import threading, time
        def FUNCTION(*a):
            while True:
                try:
                    threading.Thread(target=time.sleep, args=(1000,)).start()
                except RuntimeError:
                    pass
        """,
        "timeout", "out_of_memory",
        harmful=True,
    ),
]  # fmt: skip
