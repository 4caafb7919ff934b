"""The `guess-number` environment, in which the environment acts as the user."""

import pytest
from pydantic import ValidationError

from guess_number import GuessNumberConfig, GuessNumberTask
from guess_number.taskset import halving
from tests.support.environments import play, tasks
from tests.support.scripted_model import ScriptedModel

BLOCK = {"taskset": {"id": "guess-number", "num_tasks": 1}}


def first() -> GuessNumberTask:
    return tasks("guess-number", num_tasks=1)[0]


def test_tasks_follow_from_the_config_alone() -> None:
    drawn = [task.data for task in tasks("guess-number", num_tasks=50)]
    assert drawn == [task.data for task in tasks("guess-number", num_tasks=50)]
    assert drawn != [task.data for task in tasks("guess-number", num_tasks=50, seed=1)]
    assert all(0 <= data.low <= data.secret <= data.high == data.low + 7 <= 99 for data in drawn)
    assert drawn[0].prompt == f"{drawn[0].low}-{drawn[0].high}"


def test_splits_share_no_interval_and_secrets_are_uniform() -> None:
    train, heldout = (
        [task.data for task in tasks("guess-number", split=split)] for split in ("train", "heldout")
    )
    assert not {data.low for data in train} & {data.low for data in heldout}
    for split in (train, heldout):
        places = [data.secret - data.low for data in split]
        assert all(90 < places.count(place) < 160 for place in range(8))


@pytest.mark.parametrize("keys", [{"width": 101}, {"guesses": 0}, {"prompt": "{low}"}])
def test_config_that_makes_no_sense_is_refused(keys: dict) -> None:
    with pytest.raises(ValidationError):
        GuessNumberConfig(id="guess-number", **keys)


def test_the_demonstrator_finds_every_number() -> None:
    for secret in range(10, 18):
        *_, last = dialogue = halving(10, 17, secret, 4)
        assert last == {"role": "assistant", "content": str(secret)}
        assert len(dialogue) <= 7


def test_the_demonstrator_gives_up_like_everybody_else() -> None:
    assert [message["content"] for message in halving(10, 17, 17, 2)] == ["13", "higher", "15"]


def test_a_poor_demonstrator_passes() -> None:
    drawn = [task.data for task in tasks("guess-number", num_tasks=200, demonstrator_accuracy=0.4)]
    guesses = [message["content"] for data in drawn for message in data.demonstration[::2]]
    assert 0.5 < guesses.count("?") / len(guesses) < 0.7
    for data in drawn:
        assert data.demonstration[-1]["role"] == "assistant"
        for guess, answer in zip(data.demonstration[::2], data.demonstration[1::2], strict=False):
            assert data.feedback(guess["content"]) == answer["content"]


@pytest.mark.parametrize(
    ("reply", "feedback"),
    [
        ("12", "higher"),
        ("I say 14!", "lower"),
        ("13", None),
        ("-13", "higher"),
        ("", "a number, please"),
        ("9" * 5000, "a number, please"),
    ],
)
def test_feedback(reply: str, feedback: str | None) -> None:
    data = first().data.model_copy(update={"low": 10, "high": 17, "secret": 13})
    assert data.feedback(reply) == feedback


async def test_the_environment_speaks_as_the_user() -> None:
    task = first()
    data = task.data
    low, secret = str(data.low - 1), str(data.secret)
    model = ScriptedModel(low, "hm", secret)
    episode = await play(model, BLOCK, task)
    (trace,) = episode.traces
    assert episode.ok and trace.num_turns == 3 and trace.num_branches == 1
    assert [message.content for message in trace.messages] == [
        data.prompt,
        low,
        "higher",
        "hm",
        "a number, please",
        secret,
    ]
    assert trace.reward == 0.5 and trace.metrics == {"found": 1.0}


async def test_a_lucky_guess_ends_the_dialogue() -> None:
    task = first()
    (trace,) = (await play(ScriptedModel(str(task.data.secret)), BLOCK, task)).traces
    assert (trace.num_turns, trace.reward, trace.stop_condition) == (1, 1.0, "user_closed")


async def test_guesses_run_out() -> None:
    (trace,) = (await play(ScriptedModel("100"), BLOCK)).traces
    assert trace.ok and trace.num_turns == 4
    assert trace.reward == 0.0 and trace.metrics == {"found": 0.0}


async def test_a_limit_of_the_agent_ends_the_dialogue_cleanly() -> None:
    episode = await play(ScriptedModel("100"), {**BLOCK, "agent": {"max_turns": 2}})
    (trace,) = episode.traces
    assert episode.ok and trace.num_turns == 2 and trace.reward == 0.0


async def test_a_model_that_is_gone_is_an_error_and_no_wrong_guess() -> None:
    episode = await play(ScriptedModel("100", (400, "no such model")), BLOCK)
    (trace,) = episode.traces
    assert not episode.ok and trace.last_error.type == "ProviderError"
    assert trace.rewards == {}
