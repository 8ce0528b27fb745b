"""The whole body of a container's creation, pinned: a field that changes here changes what a server may do."""

from __future__ import annotations

import dataclasses
import json
import re
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.containers.spec import ContainerSpec, Hardening, HostBinding, Limits, container_name

SPEC = ContainerSpec(
    name="nemo-gym-0a1b2c3d4e-policy_model",
    alias="policy_model",
    image="nemo-gym/responses-api-models/openai-model:1-2",
    networks=("nemo-gym-0a1b2c3d4e",),
    labels=MappingProxyType({"nemo-gym.session": "0a1b2c3d4e"}),
)


def test_the_whole_create_body() -> None:
    assert SPEC.to_create_kwargs() == {
        "name": "nemo-gym-0a1b2c3d4e-policy_model",
        "config": {
            "Image": "nemo-gym/responses-api-models/openai-model:1-2",
            "Hostname": "policy-model",
            "Labels": {"nemo-gym.session": "0a1b2c3d4e"},
            "ExposedPorts": {"8000/tcp": {}},
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": False,
            "AttachStderr": False,
            "HostConfig": {
                "NetworkMode": "nemo-gym-0a1b2c3d4e",
                "Init": True,
                "ReadonlyRootfs": True,
                "Tmpfs": {"/tmp": "rw,nosuid,nodev,size=268435456,mode=1777"},
                "CapDrop": ["ALL"],
                "CapAdd": [],
                "SecurityOpt": ["no-new-privileges:true"],
                "PidsLimit": 512,
                "Memory": 4294967296,
                "MemorySwap": 4294967296,
                "ShmSize": 67108864,
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "26214400", "max-file": "2"}},
                "RestartPolicy": {"Name": "no"},
                "PortBindings": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]},
            },
            "NetworkingConfig": {"EndpointsConfig": {"nemo-gym-0a1b2c3d4e": {"Aliases": ["policy_model"]}}},
        },
    }


def test_what_a_server_asks_for_and_nothing_else_changes() -> None:
    asked = dataclasses.replace(
        SPEC,
        port=9000,
        publish=HostBinding("0.0.0.0", 11000),
        limits=Limits(memory_bytes=1, pids=2, nano_cpus=3, tmpfs_bytes=4, shm_bytes=5, log_bytes=6),
        hardening=Hardening(read_only=False, user="1000:1000", cap_add=("SYS_PTRACE",), no_new_privileges=False),
    )
    plain, changed = SPEC.to_create_kwargs()["config"], asked.to_create_kwargs()["config"]
    assert changed.pop("User") == "1000:1000"
    assert changed.pop("ExposedPorts") == {"9000/tcp": {}}
    host = changed["HostConfig"]
    assert host.pop("NanoCpus") == 3
    expected = {
        "ReadonlyRootfs": False,
        "Tmpfs": {"/tmp": "rw,nosuid,nodev,size=4,mode=1777"},
        "CapAdd": ["SYS_PTRACE"],
        "SecurityOpt": [],
        "PidsLimit": 2,
        "Memory": 1,
        "MemorySwap": 1,
        "ShmSize": 5,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "3", "max-file": "2"}},
        "PortBindings": {"9000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "11000"}]},
    }
    assert host == {**plain["HostConfig"], **expected}
    assert host["CapDrop"] == ["ALL"]
    assert {**changed, "ExposedPorts": None, "HostConfig": None} == {**plain, "ExposedPorts": None, "HostConfig": None}


def test_created_on_the_first_network_alone() -> None:
    """The others are connected before the start: an engine takes one at creation."""
    several = dataclasses.replace(SPEC, networks=(*SPEC.networks, "nemo-gym-0a1b2c3d4e-internal"))
    assert several.to_create_kwargs() == SPEC.to_create_kwargs()


def test_isolated_means_no_name_server_outside() -> None:
    body = dataclasses.replace(SPEC, is_isolated=True).to_create_kwargs()["config"]
    assert body["HostConfig"].pop("Dns") == ["127.0.0.1"]
    assert body["HostConfig"].pop("DnsOptions") == ["timeout:1", "attempts:1"]
    assert body == SPEC.to_create_kwargs()["config"]


def test_stdin_that_stays_open() -> None:
    plain = SPEC.to_create_kwargs()["config"]
    kept = dataclasses.replace(SPEC, keeps_stdin=True).to_create_kwargs()["config"]
    assert kept == {**plain, "StdinOnce": False}


def test_unpublished() -> None:
    body = dataclasses.replace(SPEC, publish=None).to_create_kwargs()["config"]
    assert "PortBindings" not in body["HostConfig"]


def test_no_room_for_secrets() -> None:
    """A server's settings go to its stdin; the body has no place that could hold them."""
    body = SPEC.to_create_kwargs()["config"]
    assert not {"Env", "Cmd", "Entrypoint"} & set(body)
    assert not {"Binds", "Mounts", "Privileged", "VolumesFrom"} & set(body["HostConfig"])


def test_a_spec_is_a_value() -> None:
    assert dataclasses.replace(SPEC) == SPEC
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPEC.image = "other"  # type: ignore[misc]
    first, second = SPEC.to_create_kwargs(), SPEC.to_create_kwargs()
    first["config"]["Labels"]["x"] = "y"
    assert second == SPEC.to_create_kwargs()
    json.dumps(second)


@given(st.text(min_size=1))
def test_names_that_the_engine_accepts(server: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", container_name("0a1b2c3d4e", server))


@given(st.text())
def test_host_names_that_the_kernel_accepts(alias: str) -> None:
    hostname = dataclasses.replace(SPEC, alias=alias).to_create_kwargs()["config"]["Hostname"]
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", hostname)


def test_names_that_people_recognise() -> None:
    assert container_name("0a1b2c3d4e", "policy_model") == "nemo-gym-0a1b2c3d4e-policy_model"
    assert container_name("0a1b2c3d4e", "a b/c") == "nemo-gym-0a1b2c3d4e-a-b-c"
