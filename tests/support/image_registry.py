"""A real image registry on this machine's loopback (Debian's ``docker-registry``), and images to put into it.

Engines take registries on 127.0.0.0/8 without TLS. Images are pushed over the registry's own HTTP interface, so that
nothing of them is on the engine before a test pulls them.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MANIFEST_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
USER, PASSWORD = "tester", "correct horse"
# PASSWORD with bcrypt, as `htpasswd -B` writes it; the registry takes no other kind
_HTPASSWD = "tester:$2b$05$KhUs.k9RBMbhxvhS4E/g4O0dxqtQO.Y/hJz8.bwz4DzweJA4OUf7q\n"
_START_DEADLINE_S = 10.0


def layer_of(files: Mapping[str, bytes]) -> bytes:
    """A layer: a tar, not compressed, so that random content keeps its size."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


class ImageRegistry:
    """Runs while its ``with`` block does; ``address`` is ``127.0.0.1:PORT``."""

    def __init__(self, folder: Path, *, with_password: bool = False) -> None:
        program = shutil.which("docker-registry")
        if program is None:
            raise RuntimeError(
                "These tests need Debian's docker-registry, and it is not installed. Type "
                "`apt-get install docker-registry` (as root), or run `scripts/test`, which does."
            )
        self._program = program
        self._folder = folder
        self._auth = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode() if with_password else ""
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> ImageRegistry:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.port = _free_port()
        config: dict[str, Any] = {
            "version": "0.1",
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "data")}, "delete": {"enabled": True}},
            "http": {"addr": self.address, "secret": "of these tests"},
        }
        if self._auth:
            htpasswd = self._folder / "htpasswd"
            htpasswd.write_text(_HTPASSWD)
            config["auth"] = {"htpasswd": {"realm": "tests", "path": str(htpasswd)}}
        path = self._folder / "config.yml"
        path.write_text(json.dumps(config))  # JSON is YAML
        with (self._folder / "log").open("wb") as log:
            command = [self._program, "serve", str(path)]
            environ = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environ)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def push(self, repository: str, tag: str, *layers: bytes, architecture: str = "amd64", wrap: bool = False) -> str:
        """Put an image of these layers there; its digest. With ``wrap`` the tag is a list for several platforms."""
        history = [{"created_by": "tests"} for _ in layers]
        diff_ids = [_digest(layer) for layer in layers]
        config = json.dumps(
            {
                "architecture": architecture,
                "os": "linux",
                "config": {"Cmd": ["/nothing"]},
                "rootfs": {"type": "layers", "diff_ids": diff_ids},
                "history": history,
            }
        ).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._put_blob(repository, config, "application/vnd.docker.container.image.v1+json"),
            "layers": [
                self._put_blob(repository, layer, "application/vnd.docker.image.rootfs.diff.tar") for layer in layers
            ],
        }
        content = json.dumps(manifest).encode()
        if not wrap:
            return self._put_manifest(repository, tag, MANIFEST, content)
        digest = self._put_manifest(repository, _digest(content), MANIFEST, content)
        platform = {"architecture": architecture, "os": "linux"}
        entry = {"mediaType": MANIFEST, "digest": digest, "size": len(content), "platform": platform}
        listed = {"schemaVersion": 2, "mediaType": MANIFEST_LIST, "manifests": [entry]}
        return self._put_manifest(repository, tag, MANIFEST_LIST, json.dumps(listed).encode())

    def _put_manifest(self, repository: str, reference: str, kind: str, content: bytes) -> str:
        self._call("PUT", f"/v2/{repository}/manifests/{reference}", content, kind)
        return _digest(content)

    def _put_blob(self, repository: str, content: bytes, kind: str) -> dict[str, Any]:
        place = self._call("POST", f"/v2/{repository}/blobs/uploads/", b"")["location"]
        path = place.partition(self.address)[2] or place
        self._call("PUT", f"{path}&digest={_digest(content)}", content, "application/octet-stream")
        return {"mediaType": kind, "size": len(content), "digest": _digest(content)}

    def _call(self, method: str, path: str, body: bytes, kind: str = "") -> dict[str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {"Content-Length": str(len(body)), **({"Content-Type": kind} if kind else {})}
        if self._auth:
            headers["Authorization"] = self._auth
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status < 300, f"{method} {path}: {answer.status} {text!r}"
            return {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()

    def _wait(self) -> None:
        assert self._process is not None
        end = time.monotonic() + _START_DEADLINE_S
        while True:
            try:
                self._call("GET", "/v2/", b"")
                return
            except OSError:
                log = (self._folder / "log").read_text(errors="replace")
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"docker-registry did not start:\n{log[-2000:]}") from None
                time.sleep(0.02)


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
