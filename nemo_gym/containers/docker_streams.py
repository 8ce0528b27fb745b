"""What a Docker engine streams: a container's stdin and log, logs of builds and pulls, and deaths.

With ``docker_engine`` the only code that knows the SDK.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import docker
import docker.credentials
import docker.errors
import docker.utils
import requests
import urllib3
from docker.types import CancellableStream

from nemo_gym.containers.engine import Died, LogLine, PullStep
from nemo_gym.errors import EngineError, ImageError

_SEND_TIMEOUT_S = 30.0
"""A container that does not read its input for this long never will (what fits into a pipe is taken at once)."""

_TORN = (ValueError, struct.error)
"""What reading ends in when a stream is cut in the middle of a message."""


class SocketStdin:
    """A container's stdin over the hijacked connection of an attach call."""

    def __init__(self, attached: Any) -> None:
        self._attached = attached
        # SocketIO (unix, TCP) wraps the socket; TLS and ssh give theirs bare
        self._socket = getattr(attached, "_sock", attached)
        self._lock = threading.Lock()
        if hasattr(self._socket, "settimeout"):
            self._socket.settimeout(_SEND_TIMEOUT_S)

    @classmethod
    def attach(cls, client: Any, container_id: str) -> SocketStdin:
        """Attach within the client's timeout. The SDK's own ``attach_socket`` waits without end for an answer."""
        response = client._post(
            client._url("/containers/{0}/attach", container_id),
            params={"stdin": 1, "stream": 1},
            headers={"Connection": "Upgrade", "Upgrade": "tcp"},
            stream=True,
        )
        return cls(client._get_raw_response_socket(response))

    def send(self, data: bytes) -> None:
        with self._lock:
            try:
                if hasattr(self._socket, "sendall"):
                    self._socket.sendall(data)
                else:  # paramiko's channel in old versions
                    view = memoryview(data)
                    while view:
                        view = view[self._socket.send(view) :]
            except TimeoutError as error:
                raise EngineError(f"a container's standard input is not read ({error})") from error
            except OSError as error:
                raise EngineError(f"a container's standard input is closed ({error})") from error

    def close(self) -> None:
        with self._lock:
            # the end of the input first; then the HTTP response, whose buffers do not know of the hijacked socket
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            for held in (getattr(self._attached, "_response", None), self._attached, self._socket):
                if held is not None:
                    with contextlib.suppress(OSError, ValueError):
                        held.close()


class ImageLog:
    """A build or pull under way, on a connection of its own, so that closing it ends just this one."""

    def __init__(
        self, client: docker.APIClient, doing: str, begin: Callable[[docker.APIClient], Iterator[Mapping[str, Any]]]
    ) -> None:
        self._client = client
        self._doing = doing
        self._begin = begin
        self._responses: list[requests.Response] = []
        self._closed = threading.Event()
        client.hooks["response"].append(self._take)

    def _take(self, response: requests.Response, **_: Any) -> None:
        self._responses.append(response)
        if self._closed.is_set():  # given up while the engine still took in the context
            _cut(response)

    def __iter__(self) -> Iterator[str]:
        for message in self._messages():
            if text := _text_of(message):
                yield text

    def _messages(self) -> Iterator[Mapping[str, Any]]:
        tail: list[str] = []
        try:
            for message in self._begin(self._client) if not self._closed.is_set() else ():
                if "error" in message:
                    raise _image_error(self._doing, str(message["error"]).strip(), "".join(tail))
                if text := _text_of(message):
                    tail = [*tail[-40:], text]
                yield message
        except docker.errors.APIError as error:
            raise _image_error(self._doing, str(error.explanation or error), "".join(tail)) from error
        except (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            docker.errors.DockerException,
            docker.credentials.StoreError,
            OSError,
            AttributeError,  # what reading from a response that was closed under the reader ends in
            ValueError,
        ) as error:
            how = "given up" if self._closed.is_set() else f"the engine broke off ({error})"
            raise _image_error(self._doing, how, "".join(tail)) from error
        else:
            if self._closed.is_set():  # a log that is cut may look as if it had come to its end
                raise _image_error(self._doing, "given up", "".join(tail))
        finally:
            for response in self._responses:
                response.close()
            self._responses.clear()  # each holds a pool of connections open
            self.close()

    def close(self) -> None:
        self._closed.set()
        for response in list(self._responses):
            _cut(response)
        self._client.close()


class PullLog(ImageLog):
    """A pull under way, as steps that say how far each layer is."""

    def __iter__(self) -> Iterator[PullStep]:  # type: ignore[override]
        for message in self._messages():
            detail = message.get("progressDetail") or {}
            yield PullStep(
                layer=str(message.get("id") or ""),
                status=str(message.get("status") or ""),
                done_bytes=int(detail.get("current") or 0),
                total_bytes=int(detail.get("total") or 0),
            )


class DeathEvents:
    """The engine's ``die`` events as values. Ends when closed, or when the engine ends the stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._closed = threading.Event()

    @classmethod
    def subscribe(cls, client: Any, filters: Mapping[str, str]) -> DeathEvents:
        """Subscribe within the client's timeout; the stream itself may then be silent for ever.

        The SDK's own ``events`` waits without end for an engine that does not take the subscription.
        """
        params = {"filters": docker.utils.convert_filters(dict(filters))}
        response = client._get(client._url("/events"), params=params, stream=True)
        client._raise_for_status(response)
        client._disable_socket_timeout(client._get_raw_response_socket(response))
        return cls(CancellableStream(client._stream_helper(response), response))

    def __iter__(self) -> Iterator[Died]:
        try:
            buffer = b""
            for chunk in self._stream:
                buffer += chunk
                *lines, buffer = buffer.split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    attributes = event["Actor"]["Attributes"]
                    yield Died(container_id=event["Actor"]["ID"], exit_code=int(attributes.get("exitCode", -1)))
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, AttributeError, ValueError):
            # the stream was closed under the reader, by close() or by the engine's end; either way it is over
            return

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            with contextlib.suppress(OSError, docker.errors.DockerException, AttributeError):
                self._stream.close()


class ContainerLogLines:
    """A container's log as lines with the engine's time of each. Ends when closed, or with the log."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[LogLine]:
        # the engine cuts a long line into several messages, each with a time of its own
        time, pieces = "", list[bytes]()
        try:
            for message in self._stream:
                stamp, _, piece = message.partition(b" ")
                time = time or stamp.decode("ascii", errors="replace")
                pieces.append(piece)
                if piece.endswith(b"\n"):
                    yield _log_line(time, pieces)
                    time, pieces = "", []
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, AttributeError, *_TORN):
            pass  # closed under the reader, by close() or by the engine's end; either way it is over
        if pieces:
            yield _log_line(time, pieces)

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            with contextlib.suppress(OSError, docker.errors.DockerException, AttributeError):
                self._stream.close()


def _log_line(time: str, pieces: list[bytes]) -> LogLine:
    return LogLine(time, b"".join(pieces).decode("utf-8", errors="replace").rstrip("\r\n"))


def _cut(response: requests.Response) -> None:
    """End a response under its reader, which sees the end of the stream; the engine sees the client gone."""
    with contextlib.suppress(OSError, docker.errors.DockerException, AttributeError):
        CancellableStream(iter(()), response).close()


def _image_error(doing: str, error: str, log_tail: str) -> ImageError:
    end = "\n".join(log_tail.strip().splitlines()[-25:])
    return ImageError(f"{doing} failed: {error}\nEnd of the log:\n{end or '(empty)'}", log_tail=end)


def _text_of(message: Mapping[str, Any]) -> str:
    if message.get("stream"):
        return str(message["stream"])
    if "status" not in message or message.get("progressDetail"):
        return ""
    layer = f"{message['id']}: " if message.get("id") else ""
    return f"{layer}{message['status']}\n"
