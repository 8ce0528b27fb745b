"""A failed start is told once and whole; the cause is guessed only from what is known, on a table of real logs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.containers.deaths import Death
from nemo_gym.containers.readiness import NotReadyError, NotReadyReason
from nemo_gym.deployment.failures import FailedServer, died, not_ready, refused, with_logs
from nemo_gym.errors import ConfigError, ServerStartError

SERVER = FailedServer("verifier", "resources_servers", "ready", 1.26, "one\ntwo\n")
EXITED = Death("id", 1, False, "")


def as_it_is(text: str) -> str:
    return text


def fail(reason: NotReadyReason, detail: str = "the detail", **answer: Any) -> ServerStartError:
    return not_ready(SERVER, NotReadyError(reason, detail, answer), as_it_is, as_it_is)


def test_a_failure_also_says_where_the_logs_are() -> None:
    error = died(SERVER, EXITED)
    whole = with_logs(error, Path("results/logs/0a1b2c3d4e"))
    assert str(whole) == f"{error}\nThe logs of all servers: results/logs/0a1b2c3d4e"
    assert whole.__dict__ == error.__dict__


def test_a_program_that_came_to_its_end_is_told_apart() -> None:
    error = died(SERVER, Death("id", 0, False, ""))
    assert "Likely cause: its program came to its end instead of serving." in str(error)


def test_an_endless_line_is_shortened() -> None:
    error = died(dataclasses.replace(SERVER, log=f"begin {'x' * 100_000} end\n"), EXITED)
    assert error.log_tail.startswith("begin x")
    assert error.log_tail.endswith("x end")
    assert len(error.log_tail) < 600


class TestDied:
    def test_whole(self) -> None:
        error = died(SERVER, EXITED)
        assert isinstance(error, ConfigError)
        lines = str(error).splitlines()
        assert lines[:3] == [
            "The resources server 'verifier' exited with code 1 before it was ready (phase: ready, after 1.3 s).",
            "End of its log:",
            "  one",
        ]
        assert (error.server, error.phase, error.exit_code, error.oom_killed) == ("verifier", "ready", 1, False)
        assert error.log_tail == "one\ntwo"

    @pytest.mark.parametrize(
        ("death", "how"),
        [
            (Death("id", 137, True, ""), "was killed for using more memory than its limit"),
            (Death("id", None, False, "the container was removed"), "was lost (the container was removed)"),
            (Death("id", None, False, ""), "was lost (the engine no longer knows it)"),
            (Death("id", 0, False, ""), "exited with code 0"),
            (Death("id", 127, False, "no such file"), "exited with code 127 (no such file)"),
        ],
    )
    def test_how_it_ended(self, death: Death, how: str) -> None:
        error = died(SERVER, death)
        assert f"'verifier' {how} before it was ready" in str(error)
        assert (error.exit_code, error.oom_killed) == (death.exit_code, death.oom_killed)

    def test_while_the_others_were_still_starting(self) -> None:
        error = died(dataclasses.replace(SERVER, phase="serving"), EXITED)
        assert "exited with code 1 before the session was ready (phase: serving, after 1.3 s)" in str(error)

    @pytest.mark.parametrize(
        ("server_type", "kind"),
        [
            ("responses_api_models", "model server"),
            ("responses_api_agents", "agent server"),
            ("registry", "server"),
            ("environment_servers", "environment server"),
            ("other", "server"),
        ],
    )
    def test_what_kind_of_server(self, server_type: str, kind: str) -> None:
        error = died(dataclasses.replace(SERVER, server_type=server_type), EXITED)
        assert str(error).startswith(f"The {kind} 'verifier' ")

    def test_a_log_that_is_long_or_empty(self) -> None:
        long = dataclasses.replace(SERVER, log="\n".join(f"line {n}" for n in range(100)))
        assert died(long, EXITED).log_tail.splitlines() == [f"line {n}" for n in range(75, 100)]
        silent = died(dataclasses.replace(SERVER, log=" \n"), EXITED)
        assert "It logged nothing." in str(silent)
        assert silent.log_tail == ""


class TestCauses:
    @pytest.mark.parametrize(
        ("log", "cause", "remedy"),
        [
            (
                "Traceback (most recent call last):\n    import numpy\nModuleNotFoundError: No module named 'numpy'",
                "a distribution is missing in the image",
                "requirements.txt",
            ),
            (
                "ModuleNotFoundError: No module named 'nemo_gym.base_resources_server'",
                "it needs another nemo_gym than the one in the base image",
                "nemo-gym==VERSION",
            ),
            (
                "ImportError: cannot import name 'CONFIG_TYPES' from 'nemo_gym' (/opt/gym/lib/nemo_gym/__init__.py)",
                "it needs another nemo_gym than the one in the base image",
                "nemo-gym==VERSION",
            ),
            (
                "ImportError: cannot import name 'Agent' from 'nemo_gym.servers.agent' (/opt/gym/agent.py)",
                "an exception while it started",
                "Mend what the log's last line names",
            ),
            (
                "Traceback\n  File app.py\nKeyError: 'NEMO_GYM_CONFIG_DICT'",
                "it was written elsewhere and looks for its configuration in its environment",
                "Set `container: {config_from: environment}` in its config.",
            ),
            (
                "OSError: [Errno 30] Read-only file system: '/opt/server/app/cache'",
                "the server writes outside of /tmp",
                "container.read_only: false",
            ),
            (
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for McqaSettings\ngrading_mode",
                "its settings in the config are not what it expects",
                "Correct the keys",
            ),
            (
                'Traceback (most recent call last):\n  File "app.py", line 1, in <module>\nRuntimeError: no such mode',
                "an exception while it started",
                "Mend what the log's last line names",
            ),
            (
                '{"level": "error", "message": "it failed", "exception": "Traceback\\n  File x\\nKeyError: \'mode\'"}',
                "an exception while it started",
                "Mend what the log's last line names",
            ),
            (
                "2026-01-01 the start failed: RuntimeError: no such mode",
                "an exception while it started",
                "Mend what the log's last line names",
            ),
        ],
    )
    def test_from_the_log(self, log: str, cause: str, remedy: str) -> None:
        text = str(died(dataclasses.replace(SERVER, log=log), EXITED))
        assert f"Likely cause: {cause}." in text
        assert remedy in text.splitlines()[-1]

    def test_memory_whatever_the_log_says(self) -> None:
        killed = Death("id", 137, True, "")
        text = str(died(dataclasses.replace(SERVER, log="RuntimeError: x"), killed))
        assert "Likely cause: its memory limit is too low." in text
        assert text.endswith("Raise container.memory in the server's config.")

    @pytest.mark.parametrize("exit_code", [126, 127])
    def test_a_command_that_cannot_be_run(self, exit_code: int) -> None:
        log = "sh: 7: exec: no-such-program: not found"
        text = str(died(dataclasses.replace(SERVER, log=log), Death("id", exit_code, False, "")))
        assert "Likely cause: its command, or the /bin/sh that one written elsewhere is started through, is" in text
        assert text.endswith("Name its command with container.command, as it is called inside the image.")

    @pytest.mark.parametrize("log", ["", "listening on 8000", "an Error in the middle of a line"])
    def test_none_is_made_up(self, log: str) -> None:
        assert "Likely cause" not in str(died(dataclasses.replace(SERVER, log=log), EXITED))


class TestRefused:
    def test_whole(self) -> None:
        error = refused(dataclasses.replace(SERVER, phase="create", log=""), "invalid capability SYS_EVERYTHING")
        assert str(error) == (
            "The resources server 'verifier' could not be started (phase: create, after 1.3 s).\n"
            "It logged nothing.\n"
            "Likely cause: the engine says: invalid capability SYS_EVERYTHING.\n"
            "Mend what the engine names, and retry."
        )
        assert (error.server, error.phase, error.exit_code, error.oom_killed) == ("verifier", "create", None, False)


class TestNotReady:
    def test_a_key_that_is_refused(self) -> None:
        error = fail(NotReadyReason.FAILED, "HTTP 401 from http://far/v1", key="policy_api_key")
        assert str(error) == (
            "The model endpoint is not usable: HTTP 401 from http://far/v1\n"
            "It was asked from inside the container of 'verifier'. Check policy_api_key in the config or overrides."
        )
        assert (error.server, error.phase, error.exit_code) == ("verifier", "ready", None)

    def test_an_endpoint_that_does_not_come(self) -> None:
        error = fail(NotReadyReason.ENDPOINT_LATE, "refused", key="policy_base_url")
        assert str(error).startswith("The model endpoint is not usable after 1 s: refused\n")
        assert "policy_base_url" in str(error)

    def test_addresses_as_the_caller_knows_them(self) -> None:
        cause = NotReadyError(NotReadyReason.FAILED, "no answer from 172.30.0.1:8000", {"key": "policy_base_url"})
        error = not_ready(SERVER, cause, lambda text: text.replace("172.30.0.1", "127.0.0.1"), as_it_is)
        assert "no answer from 127.0.0.1:8000" in str(error)
        assert "172.30.0.1" not in str(error)

    def test_the_key_as_the_caller_knows_it(self) -> None:
        cause = NotReadyError(NotReadyReason.FAILED, "HTTP 401", {"key": "openai_api_key"})
        error = not_ready(SERVER, cause, as_it_is, {"openai_api_key": "judge_api_key"}.__getitem__)
        assert str(error).endswith("Check judge_api_key in the config or overrides.")

    def test_an_endpoint_outside_of_an_internal_network(self) -> None:
        cause = NotReadyError(NotReadyReason.FAILED, "the name api.far cannot be resolved", {"key": "judge_base_url"})
        error = not_ready(dataclasses.replace(SERVER, is_internal=True), cause, as_it_is, as_it_is)
        assert str(error).endswith("(container.network: internal), which leads to no endpoint.")

    def test_late(self) -> None:
        text = str(fail(NotReadyReason.LATE, "verifier does not answer (refused) after 120 s"))
        assert "is not ready: verifier does not answer (refused) after 120 s (phase: ready" in text
        assert "End of its log:\n  one\n  two\n" in text
        assert "server_ready_timeout_seconds" in text

    def test_failed_for_a_reason_of_its_own(self) -> None:
        text = str(fail(NotReadyReason.FAILED, "the weights are damaged"))
        assert "is not ready: the weights are damaged" in text
        assert "model endpoint" not in text

    def test_another_server(self) -> None:
        text = str(fail(NotReadyReason.WRONG_SERVER, "127.0.0.1:1 is answered by another server"))
        assert "is not what answers on its port" in text
        assert "Likely cause: 127.0.0.1:1 is answered by another server." in text
        assert "A server written elsewhere needs `container: {config_from: environment}`." in text
