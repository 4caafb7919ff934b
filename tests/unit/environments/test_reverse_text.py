"""The `reverse-text` taskset: texts and grading."""

import pytest
import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.types import AssistantMessage
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

from reverse_text import ReverseTextConfig, ReverseTextTaskset
from reverse_text.taskset import similarity, split_of
from tests.support.episodes import trace as make_trace


def tasks(**keys) -> list:
    return list(ReverseTextTaskset(ReverseTextConfig(id="reverse-text", **keys)))


def test_verifiers_finds_it_by_id() -> None:
    config = taskset_config_type("reverse-text").model_validate({"id": "reverse-text", "num_tasks": 3})
    taskset = load_taskset(config)
    assert isinstance(taskset, ReverseTextTaskset)
    assert [task.data.idx for task in taskset] == [0, 1, 2]


def test_tasks_follow_from_the_config_alone() -> None:
    texts = [task.data.text for task in tasks(num_tasks=50)]
    assert texts == [task.data.text for task in tasks(num_tasks=50)]
    assert texts[:3] == ["ynbiqpm", "eydtzi", "wztejdxc"]
    assert texts != [task.data.text for task in tasks(num_tasks=50, seed=1)]
    assert all(4 <= len(text) <= 8 for text in texts)


def test_a_task_carries_its_answer() -> None:
    (task,) = tasks(num_tasks=1, alphabet="xyz", min_length=9, max_length=9, prompt="Reverse {text}!")
    assert task.data.answer == task.data.demonstration == task.data.text[::-1]
    assert task.data.prompt == f"Reverse {task.data.text}!"
    assert set(task.data.text) <= set("xyz") and len(task.data.text) == 9


def test_a_hint_shows_the_answer_whatever_the_demonstrator_does() -> None:
    (task,) = tasks(num_tasks=1, hint="Say {demonstration}.", demonstrator_accuracy=0.0)
    assert task.data.system_prompt == f"Say {task.data.text[::-1]}."
    assert task.data.demonstration == task.data.text
    assert tasks(num_tasks=1)[0].data.system_prompt is None


def test_splits_share_nothing() -> None:
    train = {task.data.text for task in tasks(num_tasks=500)}
    heldout = {task.data.text for task in tasks(num_tasks=500, split="heldout", seed=7)}
    assert not train & heldout
    assert {split_of(text) for text in train} == {"train"}


def test_an_empty_split_is_an_error() -> None:
    with pytest.raises(ValueError, match="is in split 'heldout'"):
        tasks(alphabet="ab", min_length=1, max_length=1, split="heldout")


@pytest.mark.parametrize(
    "keys",
    [
        {"min_length": 9},
        {"alphabet": "aab"},
        {"alphabet": "ab "},
        {"prompt": "reverse!"},
        {"split": "dev"},
        {"hint": "?"},
    ],
)
def test_config_that_makes_no_sense_is_refused(keys) -> None:
    with pytest.raises(ValidationError):
        ReverseTextConfig(id="reverse-text", **keys)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("dcba", 1.0),
        ("dcb", 0.75),
        ("dcbaa", 0.8),
        ("dxba", 0.75),
        ("cba", 0.75),
        ("", 0.0),
        ("zzzz", 0.0),
        ("dcba" + "z" * 96, 0.04),
    ],
)
def test_similarity_by_hand(reply, expected) -> None:
    assert similarity(reply, "dcba") == pytest.approx(expected)


def test_copying_the_text_earns_little() -> None:
    assert similarity("abcdef", "fedcba") == 0.0
    assert similarity("abcde", "edcba") == pytest.approx(0.2)
    texts = [task.data.text for task in tasks(num_tasks=300)]
    assert sum(similarity(text, text[::-1]) for text in texts) / len(texts) < 0.2


@pytest.mark.parametrize("reply", ["right", "wrong", None])
async def test_scoring_through_verifiers(reply) -> None:
    (task,) = tasks(num_tasks=1)
    rollout = make_trace()
    rollout.rewards = {}
    answer = task.data.answer if reply == "right" else reply and task.data.answer[:-1]
    rollout.nodes[1].message = AssistantMessage(content=answer)
    await task.score(rollout)
    expected = {"right": 1.0, "wrong": 1 - 1 / len(task.data.answer), None: 0.0}[reply]
    assert rollout.reward == pytest.approx(expected)
    assert rollout.metrics == {"exact": float(reply == "right")}


def test_it_is_an_ordinary_taskset() -> None:
    assert issubclass(ReverseTextTaskset, vf.Taskset)
