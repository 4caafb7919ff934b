"""The `terminal` environment: commands of the simulated shell, errands and grading."""

import json
from itertools import permutations
from pathlib import Path

import pytest
from pydantic import ValidationError

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.environment import resolve_env
from braidrl.configs.model import RendererConfig
from braidrl.configs.sft import SFTDataConfig
from braidrl.trainer.sft.conversations import load_conversations
from braidrl.trainer.sft.data import to_sample
from braidrl.utils.renderer import load_renderer
from braidrl.utils.tiny_model import byte_tokenizer
from terminal import Shell, TerminalConfig, TerminalTask
from terminal.errands import WORDS
from terminal.shell import ShellError
from tests.support.environments import play, tasks
from tests.support.scripted_model import ScriptedModel

FILES = {"a": "kiwi\n", "b": "fig\nlime\n", "c": ""}


def call(command: str) -> list[tuple[str, str]]:
    return [("sh", json.dumps({"command": command}))]


def errand(goal: str) -> TerminalTask:
    return tasks("terminal", num_tasks=1, goals=[goal])[0]


@pytest.mark.parametrize(
    ("command", "output", "changes"),
    [
        ("ls", "a\nb\nc", {}),
        ("ls b", "b", {}),
        ("cat a", "kiwi", {}),
        ("cat *", "kiwi\nfig\nlime", {}),
        ("head b", "fig", {}),
        ("wc a b", "1 1 a\n2 2 b", {}),
        ("grep i b", "fig\nlime", {}),
        ("grep kiwi *", "a:kiwi", {}),
        ("grep pear *", "", {}),
        ("echo 'a  b'   c", "a  b c", {}),
        ("echo fig > d", "", {"d": "fig\n"}),
        ("echo fig>a", "", {"a": "fig\n"}),
        ("echo fig >> a", "", {"a": "kiwi\nfig\n"}),
        ("cat a b > a", "", {"a": "kiwi\nfig\nlime\n"}),
        ("touch d a", "", {"d": ""}),
        ("rm a", "", {"a": None}),
        ("mv a b", "", {"a": None, "b": "kiwi\n"}),
        ("mv a a", "", {}),
        ("cp a d", "", {"d": "kiwi\n"}),
    ],
)
def test_commands(command: str, output: str, changes: dict) -> None:
    files = dict(FILES)
    assert Shell(files).run(command) == output
    assert files == {name: text for name, text in (FILES | changes).items() if text is not None}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "no command"),
        ("dance", "dance: command not found; there are ls, cat"),
        ("cat d", "cat: d: no such file"),
        ("rm a d", "rm: d: no such file"),
        ("cat", "cat: takes 1 or more"),
        ("mv a", "mv: takes 2"),
        ("ls -l", "ls: -l: no such file"),
        ("cat a | wc", "syntax error: | is not supported"),
        ("ls; ls", "syntax error: ; is not supported"),
        ("echo 'a", "syntax error: No closing quotation"),
        ("echo a > b c", "one file name must follow >"),
        ("echo a >", "one file name must follow >"),
        ("echo a > b/c", "there are no folders"),
        (f"echo {'a' * 10_000} > b", "no space left"),
    ],
)
def test_a_command_that_fails_changes_nothing(command: str, words: str) -> None:
    files = dict(FILES)
    with pytest.raises(ShellError, match=words.replace("|", r"\|")):
        Shell(files).run(command)
    assert files == FILES


def test_output_is_bounded() -> None:
    assert len(Shell({"a": "x" * 9000}).run("cat a")) == 2000


def test_no_word_hides_in_another() -> None:
    assert not [pair for pair in permutations(WORDS, 2) if pair[0] in pair[1]]


def test_tasks_follow_from_the_config_alone() -> None:
    drawn = [task.data for task in tasks("terminal", num_tasks=200)]
    assert drawn == [task.data for task in tasks("terminal", num_tasks=200)]
    assert drawn != [task.data for task in tasks("terminal", num_tasks=200, seed=1)]
    goals = [data.goal for data in drawn]
    assert all(30 < goals.count(goal) < 70 for goal in ("read", "find", "move", "write"))


def test_splits_share_nothing() -> None:
    train, heldout = (
        {(task.data.prompt, str(task.data.files)) for task in tasks("terminal", split=split, num_files=1)}
        for split in ("train", "heldout")
    )
    assert train and heldout and not train & heldout


@pytest.mark.parametrize(
    "keys", [{"goals": []}, {"goals": ["dance"]}, {"num_files": 26}, {"max_commands": 0}]
)
def test_config_that_makes_no_sense_is_refused(keys: dict) -> None:
    with pytest.raises(ValidationError):
        TerminalConfig(id="terminal", **keys)


@pytest.mark.parametrize("goal", ["read", "find", "move", "write"])
async def test_the_demonstration_does_the_errand(goal: str) -> None:
    task = errand(goal)
    first, output, last = task.data.demonstration
    function = first["tool_calls"][0]["function"]
    model = ScriptedModel([(function["name"], function["arguments"])], last["content"])
    (trace,) = (await play(model, {"taskset": {"id": "terminal"}}, task)).traces
    assert trace.ok and trace.reward == 1.0 and trace.num_turns == 2
    assert trace.metrics == {"commands": 1.0, "failed_commands": 0.0, f"done_{goal}": 1.0}
    assert [message.content for message in trace.tool_messages] == [output["content"]]
    assert model.requests[0]["tools"] == task.data.tools
    assert [schema["function"]["parameters"]["required"] for schema in task.data.tools] == [["command"]]


async def test_rollouts_have_files_of_their_own() -> None:
    task = errand("write")
    for _ in range(2):
        (trace,) = (
            await play(ScriptedModel(call("rm *"), "done"), {"taskset": {"id": "terminal"}}, task)
        ).traces
        assert trace.ok and trace.reward == 0.0 and trace.state.files == {}
    assert len(task.data.files) == 3


async def test_a_mistake_is_an_observation() -> None:
    task = errand("read")
    name = task.data.prompt.split()[-1].removesuffix("?")
    model = ScriptedModel(call("cat nothing"), call(f"cat {name}"), task.data.answer)
    (trace,) = (await play(model, {"taskset": {"id": "terminal"}}, task)).traces
    assert [message.content for message in trace.tool_messages] == [
        "cat: nothing: no such file",
        task.data.answer,
    ]
    assert trace.reward == 1.0 and trace.metrics["failed_commands"] == 1.0


async def test_commands_run_out() -> None:
    (trace,) = (
        await play(ScriptedModel(call("ls")), {"taskset": {"id": "terminal", "max_commands": 2}})
    ).traces
    assert trace.ok and trace.num_turns == 2
    assert (trace.stop_condition, trace.reward) == ("out_of_commands", 0.0)


@pytest.mark.parametrize(("goal", "reward"), [("move", 1.0), ("write", 1.0), ("read", 0.0)])
async def test_a_harness_with_a_shell_of_its_own_finds_the_files_and_is_graded_by_them(
    goal: str, reward: float
) -> None:
    """Errands that require an answer get reward 0 here, because the stub's reply is empty."""
    task = errand(goal)
    arguments = task.data.demonstration[0]["tool_calls"][0]["function"]["arguments"]
    harness = {"id": "stub-harness", "commands": [json.loads(arguments)["command"]]}
    block = {"taskset": {"id": "terminal"}, "agent": {"harness": harness}}
    (trace,) = (await play(ScriptedModel("unasked"), block, task)).traces
    assert trace.ok and trace.reward == reward
    assert trace.state.files == task.data.wanted
    assert trace.metrics["failed_commands"] == 0.0


async def test_a_file_that_is_gone_or_changed_in_a_real_shell_is_seen() -> None:
    for command in ("rm *", "echo no >> $(ls | head -1)", "true"):
        block = {
            "taskset": {"id": "terminal"},
            "agent": {"harness": {"id": "stub-harness", "commands": [command]}},
        }
        (trace,) = (await play(ScriptedModel("unasked"), block, errand("write"))).traces
        assert trace.ok and trace.reward == 0.0


def test_a_harness_without_any_shell_is_refused_with_the_configuration() -> None:
    block = {"taskset": {"id": "terminal"}, "agent": {"harness": {"id": "null"}}}
    with pytest.raises(ConfigError, match="'null' gives the agent no shell") as caught:
        resolve_env(block, "source.env")
    assert caught.value.path == "source.env.agent"


def test_demonstrations_teach_the_calls_and_not_what_the_shell_says(tiny_model_dir: Path) -> None:
    data = SFTDataConfig(taskset={"id": "terminal", "num_tasks": 1, "goals": ["read"]})
    (conversation,) = load_conversations(data)
    renderer = load_renderer(str(tiny_model_dir), RendererConfig(name="qwen3", enable_thinking=False))
    sample = to_sample(renderer, conversation)
    learnt = byte_tokenizer().decode(sample.token_ids[sample.ce_weights > 0])
    task = errand("read")
    arguments = task.data.demonstration[0]["tool_calls"][0]["function"]["arguments"]
    assert learnt == (
        f'<tool_call>\n{{"name": "sh", "arguments": {arguments}}}\n</tool_call><|im_end|>'
        f"{task.data.answer}<|im_end|>"
    )
    assert "Run a shell command." in byte_tokenizer().decode(sample.token_ids)
    assert len(sample.token_ids) < 720
