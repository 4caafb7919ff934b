"""`braid eval`: resolution of the target, and evaluations of external endpoints."""

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import renderers.client

from braidrl.cli import main
from braidrl.configs.core.errors import ConfigError, ConfigErrors
from braidrl.configs.core.load import load_config, to_toml
from braidrl.configs.eval import EvalConfig
from braidrl.configs.eval_command import EvalCommandConfig
from braidrl.configs.model import RendererConfig
from braidrl.entrypoints.eval.command import open_output
from braidrl.entrypoints.eval.target import orchestrator_config, resolve
from braidrl.monitors.metrics import MetricsWriter
from braidrl.monitors.record import outcome
from braidrl.orchestrator.engines.pool import ReplicaError
from braidrl.orchestrator.eval.standalone import open_evaluation
from braidrl.utils.publish import publish_bytes
from braidrl.utils.run_folder import RunFolder
from tests.support.scripted_model import ScriptedModel
from tests.support.stub_trainer import orchestrator_config as run_config

SOURCE = {"env": {"taskset": {"id": "stub-tasks", "num_tasks": 3}}, "name": "held"}
SOURCES = json.dumps([SOURCE])


def load(*args: str) -> EvalCommandConfig:
    return load_config(EvalCommandConfig, list(args), "braid eval")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with weights of step 2, a checkpoint of step 3, and evaluation sources."""
    made = RunFolder(tmp_path / "run")
    source = SOURCE | {"rollouts_per_task": 4, "sampling": {"temperature": 0.5, "max_tokens": 16}}
    config = run_config(tmp_path / "base", made.root, "http://nowhere/v1", seed=5).model_copy(
        update={"eval": EvalConfig.model_validate({"interval": 10, "source": [source]})}
    )
    config.model.dtype = "bfloat16"
    publish_bytes(made.configs / "orchestrator.toml", to_toml(config).encode())
    publish_bytes(made.weights(2) / "config.json", b"{}")
    publish_bytes(made.trainer_checkpoint(3) / "progress.json", b'{"step": 3}')
    publish_bytes(made.trainer_checkpoint(3) / "model.safetensors", b"")
    return made


def test_settings_come_from_the_run_unless_overridden(run: RunFolder) -> None:
    args = ["--model.path", str(run.root), "--step", "2"]
    config, target = resolve(load(*args))
    assert (target.version, target.model, target.served, target.source) == (
        2,
        str(run.weights(2)),
        True,
        None,
    )
    assert (config.seq_len, config.seed, config.renderer) == (256, 5, RendererConfig(name="qwen3"))
    assert config.inference.seq_len == 256 and config.inference.model == config.model
    assert config.model.dtype == "bfloat16"
    (source,) = config.source
    assert (source.name, source.rollouts_per_task, source.sampling.temperature) == ("held", 4, 0.5)
    assert target.base_url == [f"http://127.0.0.1:{config.inference.port}/v1"]

    flags = [
        "--rollouts_per_task",
        "8",
        "--sampling.temperature",
        "0",
        "--seed",
        "7",
        "--inference.port",
        "8123",
    ]
    config, target = resolve(load(*args, *flags))
    (source,) = config.source
    assert (source.rollouts_per_task, source.sampling.temperature, source.sampling.max_tokens) == (8, 0.0, 16)
    assert config.seed == config.inference.seed == 7
    assert orchestrator_config(config, target).client.base_url == ["http://127.0.0.1:8123/v1"]
    config, _ = resolve(load(*args, "--source", json.dumps([SOURCE | {"name": "other"}])))
    assert [source.name for source in config.source] == ["other"]


def test_checkpoint_without_weights_is_exported_first(run: RunFolder, tmp_path: Path) -> None:
    config, target = resolve(load("--model.path", str(run.root), "--output_dir", str(tmp_path / "out")))
    assert target.version == 3 and target.source is not None
    assert target.source.checkpoint == run.trainer_checkpoint(3)
    assert target.model == config.model.path == str(tmp_path / "out" / "models" / "step_000003")


def test_endpoint_is_queried_with_its_model_name(tmp_path: Path) -> None:
    args = ["--client.base_url", "http://there/v1", "--model.path", "folder", "--source", SOURCES]
    config, target = resolve(load(*args))
    assert (target.served, target.model, target.base_url) == (False, "folder", ["http://there/v1"])
    assert orchestrator_config(config, target).client.base_url == ["http://there/v1"]
    assert resolve(load(*args, "--client.model", "name"))[1].model == "name"
    with pytest.raises(ConfigError, match=r"step: is 3, but the endpoint .* omit step"):
        resolve(load(*args, "--step", "3"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model.path", "/nowhere"], "model.path: there is no folder /nowhere"),
        (["--model.path", "hub/model"], "source: nothing to evaluate on"),
        (["--model.path", "hub/model", "--step", "1"], "model.path: there is no folder hub/model"),
        (["--model.path", "m", "--seed", "1", "--inference.seed", "2"], "inference.seed differs from seed"),
        (["--model.path", "m", "--rollouts", "2"], "rollouts: unknown key"),
        (
            ["--model.path", "m", "--inference.replicas", "2"],
            "inference.replicas: is 2, but an evaluation starts one server",
        ),
        (
            ["--model.path", "m", "--source", SOURCES.replace("num_tasks", "num_task")],
            "source[0].env.taskset.num_task: ",
        ),
    ],
)
def test_invalid_targets_raise_one_line_errors(args: list[str], message: str) -> None:
    with pytest.raises((ConfigError, ConfigErrors)) as raised:
        resolve(load(*args))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_dry_run_prints_a_config_that_loads(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--model.path", str(run.root), "--step", "2", "--dry-run"]) == 0
    shown = tomllib.loads(capsys.readouterr().out)
    again, target = resolve(EvalCommandConfig.model_validate(shown))
    assert again.model.path == target.model == str(run.weights(2)) and target.version == 2
    assert [source.model_dump() for source in again.source] == [
        source.model_dump() for source in EvalCommandConfig.model_validate(shown).source
    ]


def test_runs_and_evaluations_are_not_overwritten(tmp_path: Path) -> None:
    out = RunFolder(tmp_path / "out")
    open_output(out, 3, clean=False)
    publish_bytes(out.configs / "eval.toml", b"")
    MetricsWriter(out.metrics("eval")).log(3, {"reward": 1.0})
    open_output(out, 4, clean=False)
    with pytest.raises(ConfigError, match="already contains an evaluation of v3; remove it with --clean"):
        open_output(out, 3, clean=False)
    open_output(out, 3, clean=True)
    assert not out.root.exists()
    publish_bytes(out.configs / "rl.toml", b"")
    for clean in (False, True):
        with pytest.raises(ConfigError, match="not the folder of an evaluation; set another output_dir"):
            open_output(out, 3, clean=clean)
    assert out.root.exists()


async def evaluate(model: ScriptedModel, tmp_path: Path, *args: str) -> tuple[int, RunFolder]:
    """Run the command against a scripted server, in a thread."""
    renderers.client._max_prompt_len_lock = asyncio.Lock()  # bound to the event loop of an earlier test
    async with model.serve() as url:
        words = ["--client.base_url", url, "--source", SOURCES, "--output_dir", str(tmp_path / "out")]
        code = await asyncio.to_thread(main, ["eval", *words, *args])
    return code, RunFolder(tmp_path / "out")


def recorded(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.eval_episodes(0).read_text().splitlines()]


async def test_chat_endpoint_receives_only_standard_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ScriptedModel("abcz")
    model.takes_tokens = False
    flags = [
        "--model.path",
        "m",
        "--rollouts_per_task",
        "2",
        "--success_reward",
        "0.75",
        "--sampling.top_p",
        "0.9",
    ]
    code, run = await evaluate(model, tmp_path, *flags)
    output = capsys.readouterr().out
    assert code == 0, output
    assert "held    0.750 ± 0.000  1.000   1.000   6         0       0.0%       3.0" in output
    assert len(model.requests) == 6 and len({request["seed"] for request in model.requests}) == 6
    for request in model.requests:
        assert (request["model"], request["temperature"], request["top_p"]) == ("m", 1.0, 0.9)
        assert request.keys().isdisjoint({"top_k", "min_p", "cache_salt", "logprobs"})
    assert all(not node["token_ids"] for record in recorded(run) for node in record["traces"][0]["nodes"])
    (line,) = map(json.loads, run.metrics("eval").read_text().splitlines())
    assert line["eval/held/reward/mean"] == 0.75 and line["eval/held/tokens/mean"] == 3


async def test_token_endpoint_receives_tokens(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ScriptedModel(("abcz<|im_end|>", "stop"))
    flags = ["--model.path", str(tiny_model_dir), "--client.model", "m", "--renderer.name", "qwen3"]
    code, run = await evaluate(model, tmp_path, *flags)
    output = capsys.readouterr().out
    assert code == 0, output
    assert "held    0.750 ± 0.000  0.000   3         0       0.0%       5.0" in output
    assert outcome(run).status == "done"
    assert all("token_ids" in request and request["model"] == "m" for request in model.requests)
    assert all(record["traces"][0]["nodes"][-1]["token_ids"] for record in recorded(run))


async def test_evaluation_fails_if_every_episode_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ScriptedModel((400, "no such thing here"))
    model.takes_tokens = False
    code, run = await evaluate(model, tmp_path, "--model.path", "m")
    shown = capsys.readouterr()
    assert code == 1
    assert "every episode of held failed" in shown.err and "no such thing here" in shown.out
    assert outcome(run).status == "failed" and outcome(run).error == "every episode of held failed"
    assert len(recorded(run)) == 3


async def test_missing_model_names_the_served_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = await evaluate(ScriptedModel("a"), tmp_path, "--model.path", "n")
    assert code == 2
    assert "serves 'm', not 'n'; set client.model to one of them" in capsys.readouterr().err


async def test_empty_taskset_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel("a")
    model.takes_tokens = False
    async with model.serve() as url:
        source = json.dumps([{"env": {"taskset": {"id": "stub-tasks", "num_tasks": 0}}, "name": "none"}])
        words = [
            "--client.base_url",
            url,
            "--model.path",
            "m",
            "--output_dir",
            str(tmp_path),
            "--source",
            source,
        ]
        assert await asyncio.to_thread(main, ["eval", *words]) == 2
    assert "source: the taskset of eval source 'none' has no tasks" in capsys.readouterr().err


async def test_unreachable_endpoint_raises_after_the_timeout(tmp_path: Path) -> None:
    args = [
        "--client.base_url",
        "http://127.0.0.1:9/v1",
        "--client.startup_timeout",
        "0.3",
        "--model.path",
        "m",
    ]
    config, target = resolve(load(*args, "--source", SOURCES, "--output_dir", str(tmp_path)))
    with pytest.raises(ReplicaError, match=r"was not ready within 0\.3 s"):
        async with open_evaluation(orchestrator_config(config, target), "m", lambda env, done: None):
            pass
