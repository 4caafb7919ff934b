"""Tasks from a JSONL file, graded by a user-defined function."""

import json
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.environment import resolve_env
from jsonl import JsonlConfig
from tests.support.environments import play, tasks
from tests.support.scripted_model import ScriptedModel

LINES = [{"id": f"line-{number}", "prompt": f"{number} + 1?", "answer": number + 1} for number in range(40)]
MODULE = """
def halves(task, trace, *, right=1.0):
    return right if trace.last_reply == str(task.answer) else right / 2

async def later(task, trace):
    return 0.25

def nothing(trace):
    return 0.0
"""


def write(path: Path, *lines: dict | str) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "tasks.jsonl", *LINES)


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of an importable module with reward functions."""
    (tmp_path / "rewards_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rewards_of_a_test", raising=False)
    return "rewards_of_a_test"


def test_a_line_is_a_task_with_all_its_fields(tmp_path: Path) -> None:
    chat = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    whole = {"prompt": "a", "system_prompt": "s", "demonstration": "d"}
    path = write(tmp_path / "x.jsonl", whole, "", {"prompt": chat})
    first, second = (task.data for task in tasks("jsonl", path=str(path)))
    assert (first.idx, first.prompt, first.system_prompt, first.demonstration) == (0, "a", "s", "d")
    assert [message.content for message in second.prompt] == ["user", "assistant", "user"]


def test_the_prompt_may_have_another_name(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", {"question": "why?"})
    (task,) = tasks("jsonl", path=str(path), prompt_key="question")
    assert task.data.prompt == task.data.question == "why?"


def test_splits_share_nothing_and_lose_nothing(data: Path) -> None:
    train, heldout, whole = (
        [task.data.id for task in tasks("jsonl", path=str(data), split=split)]
        for split in ("train", "heldout", "all")
    )
    assert train and heldout and sorted(train + heldout) == sorted(whole) and len(whole) == 40


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not JSON"),
        ("[]", "not a JSON object with a field 'prompt'"),
        ({"text": "a"}, "not a JSON object with a field 'prompt'"),
        ({"prompt": 3}, "line 2: field prompt"),
        ({"prompt": "a", "timeout": "soon"}, "field timeout is invalid"),
    ],
)
def test_a_line_that_is_no_task_is_named(tmp_path: Path, line: dict | str, words: str) -> None:
    path = write(tmp_path / "x.jsonl", LINES[0], line)
    with pytest.raises(ValueError, match=words):
        tasks("jsonl", path=str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl is not a file"):
        tasks("jsonl", path=str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"reward": "no_such_module.f"}, "no_such_module"),
        ({"reward": "jsonl.no_such_function"}, "is not a function"),
        ({"reward": "exact"}, "must be"),
        ({"reward": "jsonl.exact", "reward_kwargs": {"field": "a"}}, "unexpected keyword"),
        ({"reward": "rewards_of_a_test.nothing"}, "too many positional"),
        ({"reward": "nowhere.py:f"}, "nowhere.py"),
    ],
)
def test_a_reward_that_cannot_be_called_is_an_error_of_the_config(
    rewards: str, task: dict, words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        JsonlConfig.model_validate({"id": "jsonl", "path": "x", "task": task})
    with pytest.raises(ConfigError, match="cannot be called"):
        resolve_env({"taskset": {"id": "jsonl", "path": "x", "task": task}})


@pytest.mark.parametrize(
    ("task", "reply", "reward"),
    [
        ({}, "1", 1.0),
        ({}, "It is 1.", 0.0),
        ({"reward": "jsonl:contains"}, "It is 1.", 1.0),
        ({"reward": "jsonl.exact", "reward_kwargs": {"key": "id"}}, "line-0", 1.0),
        ({"reward": "rewards_of_a_test.halves", "reward_kwargs": {"right": 3.0}}, "2", 1.5),
        ({"reward": "rewards_of_a_test:later"}, "", 0.25),
    ],
)
async def test_scoring_through_verifiers(
    data: Path, rewards: str, task: dict, reply: str, reward: float
) -> None:
    episode = await play(ScriptedModel(reply), {"taskset": {"id": "jsonl", "path": str(data), "task": task}})
    (trace,) = episode.traces
    assert episode.ok and trace.reward == reward


async def test_a_function_may_lie_in_a_file(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    task = {"reward": f"{tmp_path}/mine.py:halves"}
    episode = await play(ScriptedModel("1"), {"taskset": {"id": "jsonl", "path": str(data), "task": task}})
    assert episode.traces[0].reward == 1.0


async def test_a_reward_that_raises_is_an_error_and_no_wrong_answer(data: Path) -> None:
    task = {"reward": "jsonl.exact", "reward_kwargs": {"key": "solution"}}
    episode = await play(ScriptedModel("1"), {"taskset": {"id": "jsonl", "path": str(data), "task": task}})
    (trace,) = episode.traces
    assert not trace.ok and "solution" in trace.last_error.message
    assert trace.rewards == {"graded": None}
