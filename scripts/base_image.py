"""The Python image that server images stand on: the public one, or its equivalent from Debian's packages.

Prints the reference of an image that is on the engine afterwards, and exits with 0; or says what to type, and
exits with 2. In this order: the public image where the engine has it; our equivalent where it is current; the
public image from its registry; our equivalent, made by debootstrap and imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import docker.errors

from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.docker_errors import translated
from nemo_gym.containers.engine import PullStep
from nemo_gym.errors import NemoGymError

SUITE = "trixie"
PUBLIC_IMAGE = f"python:3.13-slim-{SUITE}"
OWN_IMAGE = f"nemo-gym/{PUBLIC_IMAGE}"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
CONTENT_LABEL = "nemo-gym.content"
PULL_SILENCE_S = 60
REGISTRY_DEADLINE_S = 20
"""A registry that says nothing for this long is taken for missing. A pull that has begun may take longer."""

CA_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
CHANGES = [
    "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8",
    'CMD ["python3"]',
]
# As in Debian's own slim images: no manuals, translations, package lists or caches; later installs too.
DPKG_SETTINGS = """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/bash-completion/*
"""
# Runs inside the new system, so that no link in it can lead out of it.
TRIM = """
set -eu
cd /usr/share
find doc man info locale lintian bash-completion -mindepth 1 ! -type d ! -path 'doc/*/copyright' -delete
find doc man info locale lintian bash-completion -mindepth 1 -type d -empty -delete
rm -rf /var/cache/apt/* /var/cache/debconf/*-old /var/lib/apt/lists/* /var/lib/dpkg/*-old /var/log/* /tmp/* /run/*
ln -s /usr/bin/python3 /usr/local/bin/python
# An image without compiled modules takes half a second longer to start any program.
python3 -m compileall -q -j 0 /usr/lib/python3.*
"""
RECIPE = 1
"""Raise when the making of our image changes in a way that the values above do not show."""


class CannotProvideError(NemoGymError):
    """There is no Python image and none can be had; the message says what to type."""


class ImportingEngine(DockerEngine):
    """The engine, with the two verbs that only this script needs."""

    @translated
    def find_image_labels(self, reference: str) -> dict[str, str] | None:
        """The labels of a local image; None when there is no such image."""
        try:
            return self._client.inspect_image(reference)["Config"].get("Labels") or {}
        except docker.errors.ImageNotFound:
            return None

    @translated
    def import_image(self, archive: Iterator[bytes], reference: str, changes: list[str]) -> None:
        """An image of one layer from a tar. One that had this reference before goes, unless it is in use.

        Where reading the tar raises, the engine gets half of it, and makes no image.
        """
        before = self.find_image_id(reference)
        repository, tag = reference.rsplit(":", 1)
        said = self._client.import_image_from_data(archive, repository=repository, tag=tag, changes=changes)
        if self.find_image_id(reference) in (None, before):  # an error late in the call is told in its answer only
            raise CannotProvideError(f"The engine could not import {reference}: {str(said).strip()[-500:]}")
        if before:
            with contextlib.suppress(docker.errors.APIError):
                self._client.remove_image(before)


def main() -> int:
    try:
        print(ensure_python_image())
    except NemoGymError as error:
        say(f"\n{error}")
        return 2
    return 0


def say(text: str) -> None:
    print(text if text.startswith("\n") else f"== {text}", file=sys.stderr, flush=True)


def ensure_python_image() -> str:
    """The reference of a Python image that is on the engine when this returns."""
    engine = cast(ImportingEngine, ImportingEngine.connect(os.environ))
    if chosen := os.environ.get("NEMO_GYM_PYTHON_IMAGE"):
        if not engine.find_image_id(chosen) and (reason := failure_of_pull(engine, chosen)):
            raise CannotProvideError(
                f"NEMO_GYM_PYTHON_IMAGE is {chosen}: the engine does not have it, and cannot pull it ({reason}). "
                "Build or load that image, correct the name, or unset the variable."
            )
        return chosen
    if engine.find_image_id(PUBLIC_IMAGE):
        return PUBLIC_IMAGE
    certificates = find_host_certificates()
    content = content_digest(certificates)
    if (engine.find_image_labels(OWN_IMAGE) or {}).get(CONTENT_LABEL) == content:
        return OWN_IMAGE
    if reason := failure_of_pull(engine, PUBLIC_IMAGE):
        say(f"No registry has it here ({reason})")
        build_own_image(engine, certificates, content)
        return OWN_IMAGE
    return PUBLIC_IMAGE


def failure_of_pull(engine: DockerEngine, reference: str) -> str | None:
    """Pull; None when the image is there, else why it is not."""
    say(f"Pulling {reference}, the image that server images stand on")
    events: queue.Queue[PullStep | NemoGymError | None] = queue.Queue()

    def pull() -> None:
        try:
            for step in engine.pull_image(reference, silence_s=PULL_SILENCE_S):
                events.put(step)
            events.put(None)
        except NemoGymError as error:
            events.put(error)

    # The first word has a deadline of its own, shorter than that of a silence later on.
    threading.Thread(target=pull, daemon=True).start()
    deadline_s: float | None = REGISTRY_DEADLINE_S
    while True:
        try:
            event = events.get(timeout=deadline_s)
        except queue.Empty:
            return f"no answer within {REGISTRY_DEADLINE_S} seconds"
        if event is None:
            return None
        if isinstance(event, NemoGymError):
            return re.sub(r'"?https?://[^\s"]*"?', "its address", str(event).splitlines()[0])
        deadline_s = None


# -- certificates -------------------------------------------------------------------------------------------


def find_host_certificates() -> list[str]:
    """Certificates this host trusts beyond its distribution's, each as one line of base64.

    They stand in /usr/local/share/ca-certificates, or in a bundle that SSL_CERT_FILE or REQUESTS_CA_BUNDLE
    names.
    """
    files = sorted(Path("/usr/local/share/ca-certificates").rglob("*.crt"))
    for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        bundle = Path(os.environ.get(variable) or "/nonexistent")
        if bundle.is_file() and bundle.resolve() != Path("/", CA_BUNDLE).resolve():
            files.append(bundle)
    found: set[str] = set()
    for file in files:
        found.update(parse_certificates(file.read_text(encoding="utf-8", errors="replace")))
    return sorted(found)


def parse_certificates(text: str) -> list[str]:
    """The base64 body of each certificate in a PEM text, on one line."""
    blocks = re.findall(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", text, flags=re.DOTALL)
    return ["".join(block.split()) for block in blocks]


def merge_certificates(bundle: str, certificates: list[str]) -> str:
    """``bundle`` with those certificates appended that it lacks."""
    known = set(parse_certificates(bundle))
    armoured = [
        "\n".join(("-----BEGIN CERTIFICATE-----", *re.findall(".{1,64}", body), "-----END CERTIFICATE-----\n"))
        for body in certificates
        if body not in known
    ]
    return bundle + "".join(armoured)


def content_digest(certificates: list[str]) -> str:
    """What the image is made from: suite, packages, what is left out, and the host's own certificates."""
    parts = [str(RECIPE), SUITE, *PACKAGES, DPKG_SETTINGS, TRIM, *CHANGES, *certificates]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# -- debootstrap --------------------------------------------------------------------------------------------


def build_own_image(engine: ImportingEngine, certificates: list[str], content: str) -> None:
    """Make ``OWN_IMAGE`` from Debian's packages."""
    ensure_debootstrap()
    say(f"Making {OWN_IMAGE} from Debian {SUITE}'s packages with debootstrap (once; about a minute)")
    started = time.monotonic()
    # Not /tmp: it may be mounted nodev or noexec, or be small
    folder = Path(tempfile.mkdtemp(prefix="nemo-gym-base-", dir="/var/tmp"))
    root = folder / "root"
    try:
        bootstrap(root, folder / "debootstrap.log")
        bundle = root / CA_BUNDLE
        bundle.write_text(merge_certificates(bundle.read_text(encoding="utf-8"), certificates), encoding="utf-8")
        with tar_stream(root) as archive:
            engine.import_image(archive, OWN_IMAGE, [*CHANGES, f"LABEL {CONTENT_LABEL}={content}"])
    finally:
        subprocess.run(["umount", "-q", root / "proc"], check=False)
        shutil.rmtree(folder)
    say(f"Made {OWN_IMAGE} in {time.monotonic() - started:.0f} s")


def ensure_debootstrap() -> None:
    wanted = f"Get the image some other way (`docker pull {PUBLIC_IMAGE}`, or `docker load` from a file)"
    if os.geteuid() != 0:
        raise CannotProvideError(
            f"Server images stand on {PUBLIC_IMAGE}, and no registry has it here. {wanted}; or, on Debian or "
            "Ubuntu, make one from Debian's packages. Type:\n"
            f"    sudo {sys.executable} {Path(__file__).resolve()}"
        )
    if shutil.which("debootstrap"):
        return
    if not (shutil.which("apt-get") and Path("/etc/debian_version").exists()):
        raise CannotProvideError(
            f"Server images stand on {PUBLIC_IMAGE}, and no registry has it here. {wanted}; or install the "
            "program debootstrap from this system's packages, and run this again."
        )
    say("Installing from this system's packages: debootstrap debian-archive-keyring")
    apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"]
    run([*apt, "update"])
    run([*apt, "install", "-y", "--no-install-recommends", "debootstrap", "debian-archive-keyring"])


def bootstrap(root: Path, log: Path) -> None:
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
    if mirror := find_mirror():
        command.append(mirror)
    run(command, log)
    (root / "etc/dpkg/dpkg.cfg.d/nemo-gym").write_text(DPKG_SETTINGS, encoding="ascii")
    run(["chroot", str(root), "sh", "-c", TRIM], log)


def find_mirror() -> str | None:
    """The mirror that apt is configured with here, on a Debian host; None for debootstrap's default."""
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
        if release.get("ID") == "debian":
            lines = run(["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(SITE)"]).splitlines()
            for line in lines:
                suite, component, site = line.split(maxsplit=2)
                if suite == release.get("VERSION_CODENAME") and component == "main":
                    return site
    return None


@contextlib.contextmanager
def tar_stream(root: Path) -> Iterator[Iterator[bytes]]:
    """The tree as a tar, read while tar writes it."""
    command = ["tar", "--numeric-owner", "--one-file-system", "--exclude=./dev/*", "-C", str(root), "-c", "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        yield chunks(process)


def chunks(tar: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """What ``tar`` writes. Raises ``CannotProvideError`` in place of an end that is none: tar failed."""
    assert tar.stdout is not None
    while data := tar.stdout.read(1 << 20):
        yield data
    if code := tar.wait():
        raise CannotProvideError(f"tar of the new image failed with exit code {code}")


def run(command: list[str], log: Path | None = None) -> str:
    """Run a program; its standard output. ``CannotProvideError`` with the end of its output when it fails."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
        check=False,
    )
    if log:
        with log.open("a", encoding="utf-8") as file:
            file.write(done.stdout)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise CannotProvideError(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{tail}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
