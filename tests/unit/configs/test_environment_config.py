"""Environment blocks validated with the config classes of real verifiers environments."""

import copy
import subprocess
import sys

import pytest

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.environment import HARNESS, resolve_env

PATH = "orchestrator.train.source[0].env"


def block(**keys) -> dict:
    return {"taskset": {"id": "reverse-text"}, **keys}


def test_open_agents_get_the_chat_harness_on_this_machine() -> None:
    raw = block()
    config = resolve_env(raw)
    assert raw == block()
    assert config.taskset.num_tasks == 1000
    assert (config.agent.harness.id, config.agent.runtime.type) == (HARNESS, "subprocess")


def test_what_the_block_says_stands() -> None:
    agent = {"harness": {"id": "null"}, "runtime": {"type": "docker", "image": "x"}, "max_turns": 3}
    config = resolve_env(block(agent=agent, interception={"type": "elastic", "multiplex": 2}))
    assert (config.agent.harness.id, config.agent.runtime.image, config.agent.max_turns) == ("null", "x", 3)
    assert config.interception.multiplex == 2


def test_a_setting_beside_the_harness_id_keeps_the_default_harness() -> None:
    config = resolve_env(block(agent={"harness": {"tool_timeout": 5}, "runtime": {}}))
    assert (config.agent.harness.id, config.agent.harness.tool_timeout) == (HARNESS, 5)
    assert config.agent.runtime.type == "subprocess"


def test_roles_and_their_declared_defaults_come_from_the_environment() -> None:
    config = resolve_env(block(id="user-sim", assistant={"max_turns": 2}))
    assert (config.assistant.harness.id, config.assistant.max_turns) == (HARNESS, 2)
    assert (config.user.harness.id, config.user.max_turns) == ("null", 8)
    assert config.user.runtime.type == "subprocess"


def test_a_resolved_config_resolves_to_itself() -> None:
    config = resolve_env(block(id="user-sim"))
    again = resolve_env(config.model_dump(mode="json", exclude_none=True))
    assert again == config


@pytest.mark.parametrize(
    ("raw", "path", "words", "suggestion"),
    [
        (block(agent={"harnes": {}}), "agent.harnes", "unknown key", "agent.harness"),
        (
            block(agent={"harness": {"id": "null", "envv": {}}}),
            "agent.harness.envv",
            "unknown key",
            "agent.harness.env",
        ),
        (
            block(agent={"runtime": {"type": "docker", "imag": "x"}}),
            "agent.runtime.imag",
            "unknown",
            "agent.runtime.image",
        ),
        (block(agent={"zzz": 1}), "agent.zzz", "valid here: client", None),
        (block(agnt={}), "agnt", "unknown key", "agent"),
        (
            {"taskset": {"id": "reverse-text", "num_taks": 5}},
            "taskset.num_taks",
            "unknown key",
            "taskset.num_tasks",
        ),
        ({"taskset": {"id": "reverse-text", "num_tasks": "x"}}, "taskset.num_tasks", "(got 'x')", None),
        ({"taskset": {"id": "reverse-text", "min_length": 9}}, "taskset", "max_length (8) is smaller", None),
        ({"taskset": {"id": "reverse-txt"}}, "taskset.id", "no taskset 'reverse-txt'", None),
        ({"taskset": {"id": 3}}, "taskset.id", "needs a taskset id", None),
        ({}, "taskset.id", "needs a taskset id", None),
        (block(id="user-simm"), "id", "no env 'user-simm'", None),
        (block(agent={"harness": {"id": "nul"}}), "agent.harness.id", "no harness 'nul'", None),
        (block(agent={"harness": {"id": 3}}), "agent.harness.id", "must be a string", None),
        (block(agent={"max_turns": "many"}), "agent.max_turns", "(got 'many')", None),
        (block(agent={"runtime": {"type": "dockr"}}), "agent.runtime", "'docker'", None),
        (block(agent=5), "agent", "(got 5)", None),
        (block(harness={"id": "null"}), "", "belongs to a seat", None),
    ],
)
def test_errors_name_the_full_path_and_the_nearest_key(raw, path, words, suggestion) -> None:
    before = copy.deepcopy(raw)
    with pytest.raises(ConfigError) as caught:
        resolve_env(raw, PATH)
    assert caught.value.path == (f"{PATH}.{path}" if path else PATH)
    assert words in caught.value.message
    if suggestion:
        assert caught.value.suggestion == f"{PATH}.{suggestion}"
    assert raw == before


@pytest.mark.parametrize(
    ("raw", "suggestion"),
    [
        ({"taskset": {"id": "reverse-txt"}}, "reverse-text"),
        (block(id="user-simm"), "user-sim"),
        (block(agent={"harness": {"id": "nul"}}), "null"),
    ],
)
def test_a_misspelt_id_is_answered_with_an_installed_one(raw, suggestion) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_env(raw)
    assert caught.value.suggestion == suggestion


def test_a_plugin_that_breaks_is_told_apart_from_one_that_is_missing(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needy_taskset.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "broken_taskset.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="needs the package 'a_package_nobody_has'"):
        resolve_env({"taskset": {"id": "needy-taskset"}})
    with pytest.raises(ConfigError, match="cannot be loaded: ZeroDivisionError"):
        resolve_env({"taskset": {"id": "broken-taskset"}})


TOOLS = """
import verifiers.v1 as vf
from braid_chat import tool

class Data(vf.TaskData):
    @tool
    def look_up(self, word: str) -> str:
        return word

class Task(vf.Task[Data]):
    pass

class Tooled(vf.Taskset[Task, vf.TasksetConfig]):
    def load(self):
        return []

__all__ = ["Tooled"]
"""


def test_a_harness_that_would_withhold_the_tools_of_a_task_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tooled.py").write_text(TOOLS)
    assert resolve_env({"taskset": {"id": "tooled"}}).agent.harness.id == HARNESS
    with pytest.raises(
        ConfigError, match=r"'null' does not offer the tools of taskset 'tooled' \(look_up\)"
    ) as caught:
        resolve_env({"taskset": {"id": "tooled"}, "agent": {"harness": {"id": "null"}}}, PATH)
    assert caught.value.path == f"{PATH}.agent.harness.id"


def test_the_module_imports_without_verifiers() -> None:
    code = "import sys, braidrl.configs.environment; sys.exit('verifiers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
