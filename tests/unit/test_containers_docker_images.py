"""Images as the SDK reports them become values, against a daemon in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.engine import ImageState
from nemo_gym.errors import EngineError, ImageError
from tests.unit.fake_daemon import Request, Route, fake_daemon

INSPECTED = {
    "Id": "sha256:aa",
    "RepoTags": ["nemo-gym/one:1-2"],
    "RepoDigests": [],
    "Created": "2026-11-29T17:00:00.5Z",
    "Size": 1000,
    "Config": {"Labels": {"nemo-gym.context": "ff"}},
    "RootFS": {"Layers": ["l1", "l2"]},
}
STATE = ImageState(
    "sha256:aa", ("nemo-gym/one:1-2",), (), {"nemo-gym.context": "ff"}, "2026-11-29T17:00:00.5Z", 1000, ("l1", "l2")
)
ONE = "/containers/c1"


def json_of(content: Any, status: int = 200) -> Route:
    return lambda request: request.send_json(content, status)


def asked(routes: dict[str, Route], act: Callable[[DockerEngine], Any]) -> tuple[Any, list[str]]:
    with fake_daemon(routes) as daemon:
        engine = DockerEngine.connect({"DOCKER_HOST": daemon.url})
        try:
            return act(engine), daemon.seen
        finally:
            engine.close()


def test_own_size() -> None:
    base = ImageState("b", (), (), {}, "", 600, ("l1",))
    assert STATE.own_bytes(base) == 400
    assert STATE.own_bytes(None) is None
    assert base.own_bytes(STATE) is None


def test_found_or_not() -> None:
    routes = {"GET /images/one/json": json_of(INSPECTED), "GET /images/json": json_of([{"Id": "one"}, {"Id": "gone"}])}
    assert asked(routes, lambda engine: engine.find_image("one"))[0] == STATE
    assert asked(routes, lambda engine: engine.find_image("two"))[0] is None
    assert asked(routes, lambda engine: engine.list_images("nemo-gym.context"))[0] == [STATE]


def test_what_it_runs_and_as_whom() -> None:
    inspected = {**INSPECTED, "Config": {"Entrypoint": ["python3", "-u"], "Cmd": ["app.py"], "User": "gym"}}
    routes = {
        "GET /images/one/json": json_of(inspected),
        "GET /images/two/json": json_of({**INSPECTED, "Config": None}),
    }
    found = asked(routes, lambda engine: engine.find_image("one"))[0]
    assert (found.command, found.user) == (("python3", "-u", "app.py"), "gym")
    found = asked(routes, lambda engine: engine.find_image("two"))[0]
    assert (found.command, found.user, found.labels) == ((), "", {})


def test_removed_used_or_gone() -> None:
    asked({}, lambda engine: engine.remove_image("gone"))
    used = {"DELETE /images/used": json_of({"message": "is being used"}, status=409)}
    with pytest.raises(EngineError, match="is being used") as caught:
        asked(used, lambda engine: engine.remove_image("used"))
    assert caught.value.status == 409


def test_pushed() -> None:
    def push(request: Request) -> None:
        request.begin_chunks()
        request.send_message(status="Pushing", id="l1")
        request.send_message(error="denied")
        request.end_chunks()

    routes = {
        "POST /images/one/tag": lambda request: request.send_json({}, 201),
        "POST /images/127.0.0.1:5000/one/push": push,
    }

    def tag_and_push(engine: DockerEngine) -> None:
        engine.tag_image("one", "127.0.0.1:5000/one:t")
        list(engine.push_image("127.0.0.1:5000/one:t"))

    with pytest.raises(ImageError, match=r"pushing 127.0.0.1:5000/one:t failed: denied"):
        asked(routes, tag_and_push)


@pytest.mark.parametrize("status", [0, 3])
def test_one_command(status: int) -> None:
    def logs(request: Request) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"\x01\0\0\0\0\0\0\x02ok")
        request.close_connection = True

    routes: dict[str, Route] = {
        "POST /containers/create": json_of({"Id": "c1"}, 201),
        f"POST {ONE}/start": json_of({}, 204),
        f"POST {ONE}/wait": json_of({"StatusCode": status}),
        f"GET {ONE}/json": json_of({"Config": {"Tty": False}}),
        f"GET {ONE}/logs": logs,
    }
    removed = []
    routes[f"DELETE {ONE}"] = lambda request: (removed.append(request.path), request.send_json({}, 204))[1]

    def run(engine: DockerEngine) -> str:
        return engine.run_once("one", ["python", "-c", "1"], {"a": "b"})

    if status:
        with pytest.raises(EngineError, match="python in one exits with 3: ok"):
            asked(routes, run)
    else:
        assert asked(routes, run)[0] == "ok"
    assert len(removed) == 1
