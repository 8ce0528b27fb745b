"""The process that runs what a model wrote. Nothing that it says is believed: it answers calls with data.

It reads requests from one pipe and answers on another, each message ``length (4 bytes, big-endian) + JSON``::

    <- {"ready": ["seccomp", "landlock"]}                            before it has seen any program
    -> {"source": "def f(x): ...", "entry_point": "f"}               <- {"value": null}
    -> {"arguments": [...], "keywords": {...}}                       <- {"value": ...}
    <- {"raised": [its type's name, its bases' names], "text": ...}  where a program or a call raised
    <- {"fault": "no_function"}                                      where there is nothing to call

Values are written by ``plain_data``.
"""

from __future__ import annotations

import os
import struct
import sys
import types
from typing import Any, Final

from images.resources_servers.code_execution import plain_data
from images.resources_servers.code_execution.confinement import confine

_LONGEST_TEXT: Final = 1000
_MOST_NAMES: Final = 20
_MODULE: Final = "program"


def serve(requests: int, replies: int, memory_bytes: int, cpu_s: int) -> None:
    """Answer requests until the pipe ends. Returns only when it did."""
    try:
        in_force = confine(memory_bytes=memory_bytes, cpu_s=cpu_s)
    except (OSError, ValueError) as error:
        _send(replies, {"failed": str(error)})
        return
    _send(replies, {"ready": in_force})
    function: Any = None
    while (request := _receive(requests)) is not None:
        try:
            if "source" in request:
                function = _function_of(request["source"], request["entry_point"])
                reply = {"value": None} if callable(function) else {"fault": "no_function"}
            else:
                value = function(*plain_data.decode(request["arguments"]), **plain_data.decode(request["keywords"]))
                reply = {"value": plain_data.encode(value, strict=False)}
            data = plain_data.dumps(reply)
        except BaseException as error:
            data = plain_data.dumps({"raised": _names_of(error), "text": _text_of(error)})
        _write(replies, data)


def _function_of(source: str, entry_point: str) -> Any:
    code = compile(source, f"<{_MODULE}>", "exec", dont_inherit=True)
    # Data classes and the like look up the module that they stand in.
    module = sys.modules[_MODULE] = types.ModuleType(_MODULE)
    exec(code, module.__dict__)
    return module.__dict__.get(entry_point)


def _names_of(error: BaseException) -> list[str]:
    try:
        return [str(kind.__name__)[:_LONGEST_TEXT] for kind in type(error).__mro__[:_MOST_NAMES]]
    except BaseException:
        return []


def _text_of(error: BaseException) -> str:
    try:
        return str.__str__(str(error))[:_LONGEST_TEXT]
    except BaseException:
        return ""


def _send(replies: int, message: Any) -> None:
    _write(replies, plain_data.dumps(message))


def _write(replies: int, data: bytes) -> None:
    rest = memoryview(struct.pack(">I", len(data)) + data)
    while rest:
        rest = rest[os.write(replies, rest) :]


def _receive(requests: int) -> Any:
    header = _read(requests, 4)
    return None if header is None else plain_data.loads(_read(requests, *struct.unpack(">I", header)) or b"")


def _read(requests: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(requests, size - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)
