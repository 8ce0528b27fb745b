from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.config import ConfigError
from nemo_gym.config.merging import Layer
from nemo_gym.config.resolve import dump_config, load_config, resolve_layers, to_plain
from nemo_gym.config.yaml_files import parse_yaml_dict

MCQA = """
mcqa:
  resources_servers:
    mcqa: {entrypoint: app.py, domain: knowledge, x: 1, y: 2}
"""
AGENT = """
simple_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: mcqa}
      model_server: {type: responses_api_models, name: policy_model}
"""
MODEL = """
policy_model:
  responses_api_models:
    openai_model:
      entrypoint: app.py
      openai_base_url: ${policy_base_url}
      openai_api_key: ${policy_api_key}
      openai_model: ${policy_model_name}
"""
LOCAL_MODEL = """
policy_model:
  responses_api_models:
    llama_cpp_model: {entrypoint: app.py}
"""
BENCHMARK = """
config_paths: [mcqa.yaml, agent.yaml]
tq_resources_server:
  _inherit_from: mcqa
  resources_servers: {mcqa: {y: 5}}
tq_agent:
  _inherit_from: simple_agent
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: tq_resources_server}
      datasets:
        - {name: tq, type: benchmark, jsonl_fpath: benchmarks/tq/data/tq.jsonl}
"""
POLICY = {"policy_base_url": "http://127.0.0.1:8000/v1", "policy_api_key": "sk-123", "policy_model_name": "m"}


def resolve(*files: str, caller: Mapping[str, Any] | None = None, serving: bool = False) -> dict[str, Any]:
    layers = [Layer(f"file{n}.yaml", parse_yaml_dict(text, f"file{n}.yaml")) for n, text in enumerate(files)]
    if caller is not None:
        layers.append(Layer("overrides", caller, by_caller=True))
    return to_plain(resolve_layers(layers, serving=serving))


def refusal(*files: str, caller: Mapping[str, Any] | None = None, serving: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(*files, caller=caller, serving=serving)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, holding a benchmark and what it pulls in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    for name, text in {"mcqa": MCQA, "agent": AGENT, "model": MODEL, "local": LOCAL_MODEL, "tq": BENCHMARK}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


class TestLoadConfig:
    def test_planning_needs_no_model(self, folder: Path) -> None:
        config = load_config(["tq.yaml"], serving=False)
        assert list(config) == ["tq_resources_server", "tq_agent", "config_paths"]
        assert config.config_paths == [str(folder / "tq.yaml")]
        assert config.tq_resources_server.resources_servers.mcqa == {
            "entrypoint": "app.py",
            "domain": "knowledge",
            "x": 1,
            "y": 5,
        }
        assert config.tq_agent.responses_api_agents.simple_agent.model_server.name == "policy_model"

    def test_serving_resolves_the_policy_keys(self, folder: Path) -> None:
        plain = to_plain(load_config(["tq.yaml", "model.yaml"], POLICY, serving=True))
        model = plain["policy_model"]["responses_api_models"]["openai_model"]
        assert (model["openai_base_url"], model["openai_api_key"]) == ("http://127.0.0.1:8000/v1", "sk-123")

    def test_a_model_that_needs_no_endpoint_needs_no_policy_keys(self, folder: Path) -> None:
        assert "policy_model" in load_config(["tq.yaml", "local.yaml"], serving=True)
        open_keys = {"policy_base_url": "???", "policy_api_key": None}
        assert "policy_model" in load_config(["tq.yaml", "local.yaml"], open_keys, serving=True)

    def test_precedence_is_files_then_env_yaml_then_overrides(self, folder: Path) -> None:
        (folder / "env.yaml").write_text("tq_resources_server: {resources_servers: {mcqa: {x: 7, y: 8}}}")
        overrides = {"tq_resources_server": {"resources_servers": {"mcqa": {"y": 9}}}}
        settings = load_config(["tq.yaml"], overrides, serving=False).tq_resources_server.resources_servers.mcqa
        assert (settings.x, settings.y) == (7, 9)

    def test_env_yaml_and_overrides_may_pull_files_in(self, folder: Path) -> None:
        for name in ("low", "mid", "high"):
            (folder / f"{name}.yaml").write_text(f"{{v: {name}, {name}: 1}}")
        (folder / "env.yaml").write_text("config_paths: [low.yaml]")
        config = load_config(["mid.yaml"], {"config_paths": ["high.yaml"]}, serving=False)
        assert to_plain(config) == {
            "v": "high",
            "low": 1,
            "mid": 1,
            "high": 1,
            "config_paths": [str(folder / f"{name}.yaml") for name in ("low", "mid", "high")],
        }

    def test_files_come_from_any_search_root(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "more" / "deep").mkdir(parents=True)
        (folder / "more" / "deep" / "x.yaml").write_text("v: 1")
        assert load_config(["deep/x.yaml"], search_dirs=["more"], serving=False).v == 1
        monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(folder / "more"))
        assert load_config(["deep/x.yaml"], serving=False).v == 1

    def test_the_same_files_give_the_same_config_again_when_written_out(self, folder: Path) -> None:
        (folder / "model.yaml").write_text(MODEL)
        first = to_plain(load_config(["tq.yaml", "model.yaml"], POLICY, serving=True))
        (folder / "resolved.yaml").write_text(dump_config({k: v for k, v in first.items() if k != "config_paths"}))
        second = to_plain(load_config(["resolved.yaml"], serving=True))
        assert {**second, "config_paths": first["config_paths"]} == first

    def test_several_threads_may_load_at_once(self, folder: Path) -> None:
        def load(number: int) -> Any:
            config = load_config(["tq.yaml", "model.yaml"], {**POLICY, "policy_model_name": f"m{number}"}, serving=True)
            return to_plain(config)["policy_model"]["responses_api_models"]["openai_model"]["openai_model"]

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(load, range(12))) == [f"m{number}" for number in range(12)]

    def test_dotted_overrides_are_refused(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="has a dot in it"):
            load_config(["tq.yaml"], {"a.b": 1}, serving=False)

    def test_nothing_of_the_process_changes(self, folder: Path) -> None:
        variables, here = dict(os.environ), Path.cwd()
        resolvers = {name: OmegaConf.has_resolver(name) for name in ("copy", "inherit_from", "oc.env")}
        load_config(["tq.yaml", "model.yaml"], POLICY, serving=True)
        assert dict(os.environ) == variables
        assert Path.cwd() == here
        assert resolvers == {"copy": False, "inherit_from": False, "oc.env": True}
        assert not OmegaConf.has_resolver("copy")


class TestMissingValues:
    FILE = """
own: {a: "???", l: [1, {b: "???"}]}
mcqa: {resources_servers: {mcqa: {entrypoint: app.py, domain: math, judge_key: "???"}}}
policy_extra: "???"
"""

    def test_planning_accepts_them_under_servers_and_policy(self) -> None:
        message = refusal(self.FILE)
        assert message == (
            "2 values are still ??? and must be set, by the caller or in env.yaml:\n"
            "  own.a (in file0.yaml)\n"
            '      overrides={"own": {"a": VALUE}} in Python, or ++own.a=VALUE on the command line\n'
            "  own.l[1].b (in file0.yaml)\n"
            '      overrides={"own": {"l": [...]}} in Python, or ++own.l=[...] on the command line'
        )
        plain = resolve(self.FILE, caller={"own": {"a": 1, "l": []}})
        assert plain["mcqa"]["resources_servers"]["mcqa"]["judge_key"] == "???"

    def test_serving_accepts_only_policy_values_that_nothing_refers_to(self) -> None:
        done = {"own": {"a": 1, "l": []}}
        message = refusal(self.FILE, caller=done, serving=True)
        assert message.startswith("A value is still ??? and must be set")
        assert "++mcqa.resources_servers.mcqa.judge_key=VALUE" in message
        assert "policy_extra" not in message
        done["mcqa"] = {"resources_servers": {"mcqa": {"judge_key": "${policy_extra}"}}}
        assert "++policy_extra=VALUE" in refusal(self.FILE, caller=done, serving=True)

    def test_the_keys_of_a_judges_endpoint_are_asked_for_by_serving_where_a_server_needs_them(self) -> None:
        keys = 'judge_base_url: "???"\njudge_api_key: "???"\n'
        judge = "j: {responses_api_models: {openai_model: {entrypoint: app.py, openai_base_url: '${judge_base_url}'}}}"
        assert resolve(keys, judge)["j"]["responses_api_models"]["openai_model"]["openai_base_url"] == "???"
        message = refusal(keys, judge, serving=True)
        assert message.startswith("A value is still ??? and must be set")
        assert "++judge_base_url=VALUE" in message
        assert "judge_api_key" not in message
        assert resolve(keys, serving=True)["judge_api_key"] == "???"

    def test_the_file_that_sets_it_is_named_also_after_a_move(self) -> None:
        open_server = "mcqa: {resources_servers: {mcqa: {entrypoint: app.py, domain: math, judge: {url: '???'}}}}"
        message = refusal(MCQA, open_server, "mine: {_inherit_from: mcqa}", serving=True)
        assert "  mine.resources_servers.mcqa.judge.url (in file1.yaml)\n" in message

    def test_a_policy_model_defined_by_half_is_fine_for_planning_only(self) -> None:
        half = {"policy_model": {"responses_api_models": {"openai_model": {"timeout": 5}}}}
        assert resolve(MCQA, AGENT, caller=half)["policy_model"] == half["policy_model"]
        assert "policy_model.responses_api_models.openai_model.entrypoint" in refusal(
            MCQA, AGENT, caller=half, serving=True
        )

    def test_a_copy_of_the_policy_model_is_fine_for_planning_without_it(self) -> None:
        judge = """
judge: {_copy: policy_model, responses_api_models: {openai_model: {openai_model: big}}}
mine: {responses_api_agents: {a: {entrypoint: app.py, m: {type: responses_api_models, name: judge}}}}
"""
        assert resolve(judge)["judge"] == {"responses_api_models": {"openai_model": {"openai_model": "big"}}}
        served = resolve(judge, MODEL, caller=POLICY, serving=True)
        assert served["judge"]["responses_api_models"]["openai_model"]["openai_model"] == "big"
        assert "nothing stands at policy_model" in refusal(judge, serving=True)


class TestPolicyKeys:
    def test_missing_ones_are_told_with_how_to_set_them(self) -> None:
        message = refusal(MCQA, AGENT, MODEL, caller={"policy_api_key": "???", "policy_model_name": "m"}, serving=True)
        assert message == (
            "The configuration has 2 problems:\n"
            '- policy_base_url is missing: set it with overrides={"policy_base_url": URL} in Python, or '
            "++policy_base_url=URL on the command line (there also --model-url URL), or as `policy_base_url: URL` in "
            "env.yaml. Needed by policy_model.responses_api_models.openai_model.openai_base_url.\n"
            '- policy_api_key is missing: set it with overrides={"policy_api_key": KEY} in Python, or '
            "++policy_api_key=KEY on the command line (there also --model-api-key KEY), or as `policy_api_key: KEY` in "
            "env.yaml. Needed by policy_model.responses_api_models.openai_model.openai_api_key."
        )

    def test_planning_leaves_what_refers_to_them_to_be_set(self) -> None:
        config = resolve_layers([Layer("f", parse_yaml_dict(MODEL, "f"))], serving=False)
        model = to_plain(config)["policy_model"]["responses_api_models"]["openai_model"]
        assert model == {
            "entrypoint": "app.py",
            "openai_base_url": "???",
            "openai_api_key": "???",
            "openai_model": "???",
        }
        assert OmegaConf.is_missing(config.policy_model.responses_api_models.openai_model, "openai_api_key")

    @pytest.mark.parametrize(
        ("key", "value", "found"),
        [
            ("policy_base_url", "", "found an empty one."),
            ("policy_base_url", None, "found null."),
            ("policy_api_key", 123, "found a number (put it in quotes)."),
        ],
    )
    def test_unusable_ones_are_refused_without_showing_them(self, key: str, value: Any, found: str) -> None:
        message = refusal(MCQA, AGENT, MODEL, caller={**POLICY, key: value}, serving=True)
        assert message.startswith(f"{key} must be a text; {found} Set it with overrides=")

    def test_an_endpoint_without_a_key_is_fine(self) -> None:
        assert resolve(MCQA, AGENT, MODEL, caller={**POLICY, "policy_api_key": ""}, serving=True)

    def test_an_undefined_policy_model_is_an_error_only_when_serving(self) -> None:
        assert resolve(MCQA, AGENT)
        message = refusal(MCQA, AGENT, serving=True)
        assert "refers to the server 'policy_model' of responses_api_models, which is not defined." in message
        assert "--model-type" in message


class TestInterpolations:
    def test_they_are_resolved_through_one_another_and_into_texts(self) -> None:
        plain = resolve("{a: 1, b: '${a}', c: 'x${b}y', d: {e: '${.f}', f: [0, '${..f[0]}']}, g: '${d.f}'}")
        assert (plain["b"], plain["c"], plain["d"], plain["g"]) == (1, "x1y", {"e": [0, 0], "f": [0, 0]}, [0, 0])

    def test_environment_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_VALUE", "v")
        monkeypatch.delenv("NO_SUCH_VALUE", raising=False)
        assert resolve("{a: '${oc.env:SOME_VALUE}', b: '${oc.env:NO_SUCH_VALUE,d}'}") == {"a": "v", "b": "d"}
        message = refusal("a: ${oc.env:NO_SUCH_VALUE}")
        assert message == (
            "a (in file0.yaml) reads the environment variable NO_SUCH_VALUE, which is not set. Type `export "
            "NO_SUCH_VALUE=...`, or give a default: ${oc.env:NO_SUCH_VALUE,default}."
        )
        server = "mcqa: {resources_servers: {mcqa: {entrypoint: a, domain: math, k: '${oc.env:NO_SUCH_VALUE}'}}}"
        assert resolve(server)["mcqa"]["resources_servers"]["mcqa"]["k"] == "???"
        assert "NO_SUCH_VALUE" in refusal(server, serving=True)

    def test_escaped_ones_are_texts(self) -> None:
        assert resolve(r"a: \${x}") == {"a": "${x}"}

    @pytest.mark.parametrize("serving", [False, True])
    def test_broken_ones_name_both_keys(self, serving: bool) -> None:
        message = refusal("{judge: {url: 'http://${judge_host}/v1'}, judge_hosts: 1}", serving=serving)
        assert message == (
            "judge.url (in file0.yaml) refers to ${judge_host}, but there is no judge_host in the configuration. "
            "Did you mean ${judge_hosts}?"
        )
        assert "++nope=VALUE" in refusal("a: ${nope}", serving=serving)

    def test_each_is_told_once_where_it_starts(self) -> None:
        message = refusal("{a: '${b}', b: '${c.d}', c: {e: '${c.x}'}, f: '${g}', g: '${f}', h: '${h}'}")
        lines = message.splitlines()
        assert lines[0] == "The configuration has 5 problems:"
        assert sorted(line[2:3] for line in lines[1:]) == ["b", "c", "f", "g", "h"]
        assert "- h (in file0.yaml) refers, directly or through others, to itself." in lines

    def test_unknown_forms_and_loose_braces(self) -> None:
        assert "a (in file0.yaml) uses the unknown form ${foo:...}; known are ${a.b}" in refusal("a: ${foo:x}")
        message = refusal("a: 'costs ${5'")
        assert message.startswith("a (in file0.yaml) cannot be read as ${...}: ")
        assert message.endswith("For the characters ${, write \\${.")

    def test_into_what_was_taken_over(self) -> None:
        message = refusal(MCQA, "z: ${mcqa.resources_servers.mcqa.x}\nmine: {_inherit_from: mcqa}")
        assert "Write ${mine.resources_servers.mcqa.x}." in message
        message = refusal("{a: {b: {c: 1}}, d: {_inherit_from: a.b, _delete_key: c}, e: '${a.b.c}'}")
        assert message.startswith("e (in file0.yaml) refers to ${a.b.c}, but there is no a.b.c in the configuration.")

    def test_into_a_list(self) -> None:
        assert resolve("{a: {b: [{c: 4}]}, x: '${a.b[0].c}'}")["x"] == 4
        message = refusal("{a: {b: [{c: 4}]}, x: '${a.b[1].c}'}")
        assert "there is no a.b[1].c in the configuration." in message
        assert "++a.b=[...]" in message

    def test_through_a_reference_to_a_dict(self) -> None:
        assert resolve("{a: {b: 1}, c: '${a}', d: '${c.b}'}")["d"] == 1
        assert "d (in file0.yaml) refers to ${c.x}" in refusal("{a: {b: 1}, c: '${a}', d: '${c.x}'}")


class TestServers:
    def agent(self, reference: str) -> str:
        return f"me: {{responses_api_agents: {{simple_agent: {{entrypoint: app.py, tools: [{{s: {reference}}}]}}}}}}"

    @pytest.mark.parametrize(
        ("reference", "expected"),
        [
            (
                "{type: resources_servers, name: mcqaa}",
                (
                    "me.responses_api_agents.simple_agent.tools[0].s (in file1.yaml) refers to the server 'mcqaa' of "
                    "resources_servers, which does not exist. Did you mean 'mcqa'?"
                ),
            ),
            (
                "{type: responses_api_models, name: mcqa}",
                "but 'mcqa' exists under another type, resources_servers. Write `type: resources_servers`",
            ),
            (
                "{type: responses_api_models, name: mcqaa}",
                "which does not exist. Did you mean 'mcqa' (of resources_servers)?",
            ),
            ("{type: resources_servers, name: zebra}", "which does not exist. resources_servers has mcqa."),
            ("{type: responses_api_models, name: zebra}", "No server of responses_api_models is declared."),
            (
                "{type: resource_servers, name: mcqa}",
                "unknown server type 'resource_servers'. Did you mean 'resources_servers'?",
            ),
        ],
    )
    def test_references_must_resolve(self, reference: str, expected: str) -> None:
        assert expected in refusal(MCQA, self.agent(reference))

    def test_a_reference_with_an_unknown_type_to_a_server_is_told(self) -> None:
        message = refusal(MCQA, self.agent("{type: judge_servers, name: mcqa}"))
        assert "unknown server type 'judge_servers'. Server types are responses_api_models," in message

    def test_references_may_be_interpolated(self) -> None:
        assert resolve(MCQA, self.agent("{type: resources_servers, name: '${which}'}"), "which: mcqa")
        assert "'nope'" in refusal(MCQA, self.agent("{type: resources_servers, name: '${which}'}"), "which: nope")

    def test_a_reference_to_what_was_taken_over_says_by_whom(self) -> None:
        message = refusal(MCQA, AGENT, "mine: {_inherit_from: mcqa}")
        assert "taken over by 'mine' through _inherit_from. Write `name: mine`." in message

    def test_other_dicts_with_type_and_name_are_no_references(self) -> None:
        assert resolve(MCQA, self.agent("{type: function, name: lookup}"))

    def test_environment_servers_are_kept(self) -> None:
        relay = (
            "relay: {environment_servers: {relay: {entrypoint: app.py, agent: {type: resources_servers, name: mcqa}}}}"
        )
        assert "relay" in resolve(MCQA, relay, serving=True)

    def test_reserved_keys_and_free_ones_are_no_servers(self) -> None:
        assert resolve("{query: {resources_servers: 5}, json: {x_servers: {a: {entrypoint: b}}}, mine: {a: {b: 1}}}")

    def test_an_override_of_a_misspelt_server_names_the_one_meant(self) -> None:
        message = refusal(MCQA, caller={"mcqaa": {"resources_servers": {"mcqa": {"x": 1}}}})
        assert "Did you mean the server 'mcqa'?" in message

    def test_the_registrys_address_is_checked(self) -> None:
        assert resolve("head_server: {host: 127.0.0.1, port: 11000}")
        assert (
            refusal("head_server: {port: http}") == "head_server.port must be a number from 0 to 65535; found 'http'."
        )
        assert refusal("head_server: 11000") == "head_server must be {host: ..., port: ...}; found a number."


def test_all_problems_are_told_at_once() -> None:
    message = refusal(
        "{a: '???', b: '${c}', s: {resources_servers: {m: {entrypoint: app.py}}}}", MCQA, AGENT, serving=True
    )
    assert message.startswith(
        "The configuration has 4 problems:\n- Server 's': s.resources_servers.m.domain must be one of"
    )
    for part in (
        "\n- A value is still ???",
        "\n- b (in file0.yaml) refers to ${c}",
        "\n- simple_agent.responses_api_agents",
    ):
        assert part in message


KEYS = st.sampled_from(["alpha", "beta", "gamma", "delta"])
VALUES = (
    st.integers()
    | st.booleans()
    | st.none()
    | st.text("abc{}$\\:#'\" \n", max_size=6)
    | st.sampled_from(["${alpha}", "${beta.gamma}", "\\${alpha}"])
)
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        VALUES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=80)
@given(st.lists(TREES, max_size=3))
def test_resolving_a_resolved_config_changes_nothing(trees: list[dict[str, Any]]) -> None:
    try:
        plain = to_plain(resolve_layers([Layer("f", tree) for tree in trees], serving=True))
    except ConfigError:
        return
    again = to_plain(resolve_layers([Layer("g", parse_yaml_dict(dump_config(plain), "g"))], serving=True))
    assert again == plain
    assert list(again) == list(plain)


@pytest.mark.parametrize(
    "tree",
    [
        {"a": {"b": ["${c}"]}, "c": {"d": "${a.b}"}},
        {"a": {"b": "${a}"}},
        {"a": [{"b": "${c.d}"}], "c": {"d": [None, "${a}"]}},
    ],
    ids=["dicts", "its own dict", "lists"],
)
def test_containers_that_hold_each_other_are_an_error(tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="to itself"):
        resolve_layers([Layer("f", tree)], serving=False)


def test_a_container_may_be_referred_to_by_several() -> None:
    tree = {"a": {"x": 1, "y": "${b.z}"}, "b": {"z": 2}, "c": "${a}", "d": ["${a}", "${c}"]}
    plain = to_plain(resolve_layers([Layer("f", tree)], serving=False))
    assert plain["d"] == [{"x": 1, "y": 2}, {"x": 1, "y": 2}]


@settings(deadline=None, max_examples=150)
@given(st.text("a${}\\.", max_size=10))
def test_any_text_survives_as_a_value(text: str) -> None:
    config = OmegaConf.create(parse_yaml_dict(dump_config({"a": text, "b": [text]}), "f"))
    assert to_plain(config) == {"a": text, "b": [text]}
