"""Downloads for prepare scripts, against servers and mirrors that a test owns."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from tenacity import wait_none

from nemo_gym.config import ConfigError
from nemo_gym.environment import downloads, transfer
from nemo_gym.environment.downloads import DownloadError, cache_dir, download, fetch_wheel, read_wheel_member
from tests.support.made_wheel import make_wheel

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()

Answer = Callable[[BaseHTTPRequestHandler, int], None]


class Source:
    """A server whose n-th answer is what the test says, and a whole file after that."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[dict[str, str]] = []
        self.paths: list[str] = []
        source = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                source.requests.append(dict(self.headers))
                source.paths.append(self.path)
                number = len(source.requests) - 1
                answer = source.answers[number] if number < len(source.answers) else whole
                answer(self, number)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/data/rows.jsonl"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, length: int | None = None, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def whole(handler: BaseHTTPRequestHandler, number: int) -> None:
    """The file, from where the request asks for it."""
    asked = handler.headers.get("Range")
    if asked is None:
        return send(handler, 200, CONTENT)
    start = int(asked.removeprefix("bytes=").rstrip("-"))
    if start >= len(CONTENT):
        return send(handler, 416, b"", Content_Range=f"bytes */{len(CONTENT)}")
    content_range = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
    return send(handler, 206, CONTENT[start:], Content_Range=content_range)


def cut_off(count: int) -> Answer:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        send(handler, 200, CONTENT[:count], length=len(CONTENT))

    return answer


def status(code: int, **headers: str) -> Answer:
    return lambda handler, number: send(handler, code, b"no", **headers)


def body(content: bytes) -> Answer:
    return lambda handler, number: send(handler, 200, content)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NEMO_GYM_DATA_MIRROR", "NEMO_GYM_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NEMO_GYM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(transfer, "_backoff", wait_none())
    return tmp_path / "cache"


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    source.close()


def kept(cache: Path) -> list[str]:
    """The files in the cache apart from locks."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and not path.name.endswith(".lock"))


def test_a_file_is_fetched_once_and_then_read_offline(source: Source, cache: Path) -> None:
    path = download(source.url, sha256=SHA256)
    assert path.name == "rows.jsonl"
    assert path.read_bytes() == CONTENT
    source.close()
    assert download(source.url, sha256=SHA256) == path
    assert len(source.requests) == 1
    assert kept(cache) == ["rows.jsonl"]


def test_a_cached_file_that_has_changed_is_fetched_again(source: Source) -> None:
    path = download(source.url, sha256=SHA256, filename="mine.bin")
    path.write_bytes(b"tampered")
    assert download(source.url, sha256=SHA256, filename="mine.bin").read_bytes() == CONTENT
    assert len(source.requests) == 2


def test_a_transfer_that_is_cut_off_goes_on_where_it_ended(source: Source) -> None:
    source.answers = [cut_off(300_000)]
    assert download(source.url, sha256=SHA256).read_bytes() == CONTENT
    assert [request.get("Range") for request in source.requests] == [None, "bytes=300000-"]


def test_a_server_without_ranges_is_asked_for_the_whole_again(source: Source) -> None:
    source.answers = [cut_off(300_000), body(CONTENT)]
    assert download(source.url, sha256=SHA256).read_bytes() == CONTENT


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(source: Source, cache: Path) -> None:
    source.answers = [cut_off(1000)] + [status(503)] * (transfer.ATTEMPTS - 1)
    with pytest.raises(DownloadError, match="the server answered 503 Service Unavailable, after 6 attempts"):
        download(source.url, sha256=SHA256)
    assert kept(cache) == [".rows.jsonl.part"]
    assert download(source.url, sha256=SHA256).read_bytes() == CONTENT
    assert source.requests[-1]["Range"] == "bytes=1000-"
    assert kept(cache) == ["rows.jsonl"]


def test_a_part_that_is_complete_already_is_taken(source: Source, cache: Path) -> None:
    part = cache / "downloads" / SHA256 / ".rows.jsonl.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    assert download(source.url, sha256=SHA256).read_bytes() == CONTENT


def test_a_part_of_another_file_is_dropped_and_the_file_fetched_afresh(source: Source, cache: Path) -> None:
    part = cache / "downloads" / SHA256 / ".rows.jsonl.part"
    part.parent.mkdir(parents=True)
    for wrong in (b"x" * 1000, b"x" * (len(CONTENT) + 5)):
        part.write_bytes(wrong)
        assert download(source.url, sha256=SHA256).read_bytes() == CONTENT
        (part.parent / "rows.jsonl").unlink()


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_faults_that_pass_are_retried(source: Source, code: int) -> None:
    source.answers = [status(code), status(code)]
    assert download(source.url, sha256=SHA256).read_bytes() == CONTENT
    assert len(source.requests) == 3


def test_the_wait_a_server_asks_for_is_kept_up_to_a_limit(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", waited.append)
    future = "Fri, 31 Dec 2999 23:59:59 GMT"
    source.answers = [
        status(429, Retry_After="7"),
        status(503, Retry_After=future),
        status(503, Retry_After="Sat, 01 Jan 2000 00:00:00 GMT"),
        status(503, Retry_After="soon"),
    ]
    download(source.url, sha256=SHA256)
    assert waited == [7.0, 120.0, 0.0, 0.0]


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_faults_that_stay_are_not_retried(source: Source, code: int) -> None:
    source.answers = [status(code)]
    with pytest.raises(DownloadError, match=f"the server answered {code}"):
        download(source.url, sha256=SHA256)
    assert len(source.requests) == 1


def test_another_file_than_the_pinned_one_is_refused_and_not_kept(source: Source, cache: Path) -> None:
    source.answers = [body(b"<html>Please log in</html>")]
    found = hashlib.sha256(b"<html>Please log in</html>").hexdigest()
    with pytest.raises(
        DownloadError, match=f"its sha256 is {found}, needed is {SHA256} .*<html>Please log in"
    ) as caught:
        download(source.url, sha256=SHA256)
    assert "Either the source has changed" in str(caught.value)
    assert kept(cache) == []
    assert len(source.requests) == 1


def test_a_server_that_is_not_there_is_named_without_the_login_in_the_address(source: Source) -> None:
    source.close()
    url = source.url.replace("http://", "http://user:secretpassword@")
    with pytest.raises(DownloadError, match=r"http://127.0.0.1:\d+/data/rows.jsonl: ConnectionRefusedError") as caught:
        download(url, sha256=SHA256)
    assert "secretpassword" not in str(caught.value)
    assert "NEMO_GYM_DATA_MIRROR" in str(caught.value)


def test_a_login_in_the_address_is_sent(source: Source) -> None:
    url = source.url.replace("http://", "http://user:p%40ss@")
    assert download(url, sha256=SHA256).read_bytes() == CONTENT
    assert source.requests[0]["Authorization"] == "Basic dXNlcjpwQHNz"
    assert source.requests[0]["Host"] == f"127.0.0.1:{source.server.server_port}"


def test_a_proxy_is_used(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", source.url.removesuffix("/data/rows.jsonl"))
    monkeypatch.setenv("no_proxy", "")
    assert download("http://data.example/a/rows.jsonl", sha256=SHA256).read_bytes() == CONTENT
    assert source.paths == ["http://data.example/a/rows.jsonl"]


def test_a_certificate_variable_that_names_nothing_is_reported(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/no/such/bundle.pem")
    with pytest.raises(DownloadError, match=r"REQUESTS_CA_BUNDLE names '/no/such/bundle.pem', which cannot be read"):
        download(source.url, sha256=SHA256)


def test_a_certificate_that_is_not_trusted_is_not_retried_and_says_what_to_set() -> None:
    error = ssl.SSLCertVerificationError("untrusted")
    error.verify_message = "self-signed certificate in certificate chain"
    with pytest.raises(DownloadError, match=r"https://data.example/x: its certificate is not trusted \(self-signed"):
        transfer._explain(URLError(error), "https://u:p@data.example/x")


def test_progress_goes_to_standard_error(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    download(source.url, sha256=SHA256)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Downloading rows.jsonl: 1.0 of 1.0 MB")


def mirror_in(folder: Path, place: str, content: bytes) -> Path:
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://data.example/a/rows.jsonl", "data.example/a/rows.jsonl"),
        ("https://user:pw@data.example:8443/a/rows.jsonl", "data.example:8443/a/rows.jsonl"),
        ("https://data.example/a/my%20rows.jsonl", "data.example/a/my rows.jsonl"),
        ("https://data.example/get?id=3", "data.example/get?id=3"),
    ],
)
def test_a_folder_mirror_is_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, place: str) -> None:
    monkeypatch.setenv("NEMO_GYM_DATA_MIRROR", str(mirror_in(tmp_path / "mirror", place, CONTENT)))
    assert download(url, sha256=SHA256).read_bytes() == CONTENT


def test_a_mirror_may_be_a_url(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_DATA_MIRROR", source.url.removesuffix("/data/rows.jsonl") + "/mirror/")
    assert download("https://data.example/a b/rows.jsonl", sha256=SHA256).read_bytes() == CONTENT
    assert source.paths == ["/mirror/data.example/a%20b/rows.jsonl"]


def test_what_the_mirror_does_not_have_comes_from_its_own_address(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMO_GYM_DATA_MIRROR", str(mirror_in(tmp_path / "mirror", "other", b"")))
    assert download(source.url, sha256=SHA256).read_bytes() == CONTENT


def test_when_neither_has_it_both_are_named(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"127.0.0.1:{source.server.server_port}/data/rows.jsonl"
    monkeypatch.setenv("NEMO_GYM_DATA_MIRROR", str(mirror_in(tmp_path / "mirror", place, b"wrong")))
    source.answers = [status(404)]
    with pytest.raises(DownloadError, match=r"The mirror's .*rows.jsonl is another file.* the server answered 404"):
        download(source.url, sha256=SHA256)


def test_a_mirror_that_is_not_there_is_named(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_DATA_MIRROR", "/no/such/mirror")
    source.answers = [status(404)]
    with pytest.raises(DownloadError, match="NEMO_GYM_DATA_MIRROR names '/no/such/mirror', which is no folder"):
        download(source.url, sha256=SHA256)


def test_a_mirror_gives_nothing_outside_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Source
) -> None:
    mirror_in(tmp_path, "secret", CONTENT)
    monkeypatch.setenv("NEMO_GYM_DATA_MIRROR", str(mirror_in(tmp_path / "mirror", "127.0.0.1/x", b"")))
    source.answers = [status(404)]
    with pytest.raises(DownloadError, match="does not have"):
        download(source.url.replace("/data/rows.jsonl", "/../../secret"), sha256=SHA256)


@pytest.mark.parametrize(
    ("url", "sha256", "message"),
    [
        ("ftp://data.example/x", SHA256, "needs an http or https address"),
        ("rows.jsonl", SHA256, "needs an http or https address"),
        ("https://data.example/x", "abc", "must be 64 lower-case hex digits; found 'abc'"),
        ("https://data.example/x", SHA256.upper(), "must be 64 lower-case hex digits"),
        ("https://data.example/", SHA256, "no file name that could be kept"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(url: str, sha256: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        download(url, sha256=sha256)


def test_the_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NEMO_GYM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "nemo_gym"
    monkeypatch.setenv("HOME", "/home/someone")
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert cache_dir() == Path("/home/someone/.cache/nemo_gym")
    monkeypatch.setenv("NEMO_GYM_CACHE_DIR", "~/mine")
    assert cache_dir() == Path("/home/someone/mine")


def test_a_cache_directory_without_a_home_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_CACHE_DIR", "~no.such.user/x")
    with pytest.raises(ConfigError, match=r"NEMO_GYM_CACHE_DIR is '~no\.such\.user/x', and there is no user 'no\.such"):
        cache_dir()
    monkeypatch.delenv("NEMO_GYM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(
        ConfigError, match=r"The cache directory \(NEMO_GYM_CACHE_DIR, .* no home directory\. Set HOME, or"
    ):
        cache_dir()


WHEEL = "made_data-1.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip takes for its index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.mark.parametrize(
    ("name", "python"),
    [
        (WHEEL, ">=3.8"),
        (WHEEL, ">=3.99"),
        ("made_data-1.0-cp39-cp39-win_amd64.whl", ">=3.9"),
        ("made_data-1.0-cp310-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", ">=3.10"),
    ],
)
def test_a_file_inside_a_wheel_is_read_without_installing_it(index: Path, cache: Path, name: str, python: str) -> None:
    sha256 = make_wheel(index / name, python)
    assert read_wheel_member(name, "made_data/rows.jsonl", sha256=sha256) == b'{"a": 1}\n'
    (index / name).unlink()
    assert fetch_wheel(name, sha256=sha256) == cache / "downloads" / sha256 / name
    assert kept(cache) == [name]


def test_a_wheel_may_come_from_the_mirror(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "mirror" / "wheels"
    wheels.mkdir(parents=True)
    sha256 = make_wheel(wheels / WHEEL)
    monkeypatch.setenv("NEMO_GYM_DATA_MIRROR", str(tmp_path / "mirror"))
    assert read_wheel_member(WHEEL, "made_data/rows.jsonl", sha256=sha256) == b'{"a": 1}\n'


def test_faults_with_wheels_say_what_is_wrong(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        DownloadError, match=r"(?s)`pip download made_data==1.0` failed: ERROR: .*No matching distribution"
    ):
        fetch_wheel(WHEEL, sha256="0" * 64)
    sha256 = make_wheel(index / WHEEL)
    with pytest.raises(DownloadError, match=r"(?s)`pip download made_data==1.0` failed: ERROR: .*HASH"):
        fetch_wheel(WHEEL, sha256="0" * 64)
    with pytest.raises(ConfigError, match=r"has no file 'made_data/row.jsonl'. Nearest: made_data/rows.jsonl"):
        read_wheel_member(WHEEL, "made_data/row.jsonl", sha256=sha256)
    with pytest.raises(ConfigError, match="is no wheel's file name"):
        fetch_wheel("made_data-1.0.tar.gz", sha256=sha256)
    assert kept(cache) == [WHEEL]


def test_a_python_without_pip_is_named(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setenv("NEMO_GYM_PYTHON", str(bare / "bin" / "python"))
    with pytest.raises(DownloadError, match=r"bare/bin/python has no pip. Type: .*bare/bin/python -m ensurepip"):
        fetch_wheel(WHEEL, sha256="0" * 64)


def test_importing_the_helper_is_light() -> None:
    code = (
        "import sys, nemo_gym.environment.downloads\n"
        "heavy = {'ssl', 'http.client', 'tenacity', 'requests', 'omegaconf'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert downloads.MIRROR_VARIABLE == "NEMO_GYM_DATA_MIRROR"
