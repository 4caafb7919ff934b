"""`braid verify`: correct code passes, and failed checks name the fault."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verifiers.v1 import Episode

import braidrl.inference.engines.torch as engine
from braidrl.cli import main
from braidrl.orchestrator.pipeline.records import append_records
from braidrl.trainer.rl.loss import LossInputs, LossOutputs
from braidrl.trainer.rl.losses import LOSS_FUNCTIONS
from braidrl.trainer.verify.checks import compare, cuts
from braidrl.trainer.verify.probe import Gradient, Probe
from braidrl.transport.types import TrainingBatch, TrainingSample, encode
from tests.support.episodes import episode, trace
from tests.support.trainer_batches import make_batch, make_sample

CONFIG = """\
seq_len = 40
output_dir = "{folder}/run"
seed = 3
[model]
path = "{model}"
[inference]
threads = 1
[trainer]
threads = 1
{trainer}
[[orchestrator.train.source]]
name = "sums"
env.taskset.id = "reverse-text"
sampling.temperature = 0.8
[[orchestrator.train.source]]
name = "taught"
env.taskset.id = "reverse-text"
algo = {{ type = "opd", teacher = {{ name = "t", base_url = "http://127.0.0.1:9/v1" }} }}
"""
OWN_LOSS = """\
from braidrl.trainer.rl.loss import LossOutputs
def loss(inputs, scale):
    gain = inputs.advantages * (inputs.trainer_logprobs - inputs.inference_logprobs).exp()
    return LossOutputs(-scale * gain[inputs.loss_mask].sum(), {})
"""
CUTS = [
    *(
        "split: short rows (93 tokens)",
        "split: rows as configured (40 tokens)",
        "split: one row (280 tokens)",
    ),
    *("order: reversed", "order: shuffled", "ranks: 2, simulated", "ranks: 3, simulated"),
]
SAMPLER, PACKED = "sampler: log-probs", "packed forward: log-probs"


@pytest.fixture
def verify(tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs the command with trainer settings and returns exit code and report."""

    def run(*flags: str, trainer: str = "") -> tuple[int, dict[str, Any]]:
        config = tmp_path / "run.toml"
        config.write_text(CONFIG.format(folder=tmp_path, model=tiny_model_dir, trainer=trainer))
        code = main(["verify", "@", str(config), "--json", *flags])
        assert not (tmp_path / "run").exists(), "it writes nothing"
        return code, json.loads(capsys.readouterr().out)

    return run


def failed(report: dict[str, Any]) -> set[str]:
    return {check["name"] for check in report["checks"] if not check["ok"]}


SETTINGS = {
    "ipo": "",
    "icepop": 'loss = { type = "icepop" }\nentropy_coef = 0.01\nmicro_batch_tokens = 64',
    "score centering": 'loss = { type = "icepop", score_centering = true, score_centering_topk = 8 }',
    "grpo": 'loss = { type = "grpo" }\nloss_agg_mode = "seq-mean-token-mean"\n'
    'is_correction = { level = "geometric", action = "mask", lower_bound = 0.9 }\n'
    'reference_kl = { path = "MODEL", coef = 0.1, use_unbiased_kl = true }',
    "grpo m2po": 'loss = { type = "grpo" }\nm2po = { threshold = 0.01 }\nopsm = { delta = 0.01 }',
    "gspo": 'loss = { type = "gspo" }\nmini_batches = 2\nuse_rollout_log_probs = true\n'
    'opsm = { reference = "rollout" }',
    "custom": 'loss = { type = "custom", import_path = "FOLDER/own.py:loss", kwargs = { scale = 2.0 } }',
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_loss_passes(verify, name: str, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_LOSS)
    trainer = SETTINGS[name].replace("MODEL", str(tiny_model_dir)).replace("FOLDER", str(tmp_path))
    code, report = verify(trainer=trainer)
    assert code == 0 and report["ok"] and failed(report) == set()
    assert (report["batch"], report["samples"], report["dtype"]) == ("a synthetic batch", 11, "float32")
    names = [check["name"] for check in report["checks"]]
    assert names[-2:] == [SAMPLER, PACKED] and len(names) == 9
    for check in report["checks"]:
        assert 0 <= check["worst"] < 0.1 * check["tolerance"], check


def test_bfloat16_has_tolerances_of_its_own(verify) -> None:
    code, report = verify("--model.dtype", "bfloat16")
    tolerances = {check["name"]: check["tolerance"] for check in report["checks"]}
    assert code == 0 and tolerances["order: reversed"] == 0.1 and tolerances[SAMPLER] == 1


def test_what_passes_is_a_line_each(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(folder=tmp_path, model=tiny_model_dir, trainer=""))
    assert main(["verify", "@", str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    ok = [line.split("  ")[0] for line in lines if line.endswith("  ok")]
    assert sorted(ok) == sorted([*CUTS, SAMPLER, PACKED])
    assert (
        "temperature 0.8, 1" in lines[0] and "loss ipo; a synthetic batch: 11 samples, 280 tokens" in lines[0]
    )


def gain(inputs: LossInputs) -> torch.Tensor:
    member = inputs.loss_mask.nonzero().squeeze(-1)
    return (inputs.advantages * (inputs.trainer_logprobs - inputs.inference_logprobs).exp())[member]


def mean_of_a_row(inputs: LossInputs, config: Any) -> LossOutputs:
    """Faulty loss whose denominator depends on the other samples of the row."""
    return LossOutputs(-gain(inputs).sum() / max(1, len(inputs.advantages)), {})


def by_place(inputs: LossInputs, config: Any) -> LossOutputs:
    """Faulty loss in which the weight of a sample depends on its position in the batch."""
    return LossOutputs(-(gain(inputs) * (1 + inputs.sequence[inputs.loss_mask])).sum(), {})


@pytest.mark.parametrize(
    ("loss", "prefixes"),
    [(mean_of_a_row, ("split: short", "split: one", "order", "ranks: 2")), (by_place, ("order",))],
)
def test_a_loss_that_depends_on_the_cut_is_named(
    verify, monkeypatch, loss, prefixes: tuple[str, ...]
) -> None:
    monkeypatch.setitem(LOSS_FUNCTIONS, "ipo", loss)
    code, report = verify()
    assert code == 1 and not report["ok"]
    assert failed(report) == {name for name in CUTS if name.startswith(prefixes)}
    remedies = {check["remedy"] for check in report["checks"] if not check["ok"]}
    assert len(remedies) == 1 and "a sum over its tokens" in remedies.pop()
    assert all(check["worst"] > 0.01 for check in report["checks"] if not check["ok"])


def test_an_engine_at_another_temperature_is_named(
    verify, monkeypatch, tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = engine.draw
    monkeypatch.setattr(engine, "draw", lambda logits, *rest: draw(logits / 1.1, *rest))
    code, report = verify()
    assert code == 1 and failed(report) == {SAMPLER}
    assert report["checks"][-2]["figures"].keys() == {"worst", "mean", "mismatch_kl"}
    assert main(["verify", "@", str(tmp_path / "run.toml")]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "FAIL" in line]
    assert line.startswith(SAMPLER) and "FAIL: sampler and trainer compute different distributions" in line


def test_weights_that_differ_from_the_folder_are_named(verify, monkeypatch) -> None:
    load = Probe.load.__func__

    def load_other(cls: type[Probe], *args: Any) -> Probe:
        probe = load(cls, *args)
        with torch.no_grad():
            probe.model.get_input_embeddings().weight *= 1.5
        return probe

    monkeypatch.setattr(Probe, "load", classmethod(load_other))
    code, report = verify()
    assert code == 1 and failed(report) == {SAMPLER, PACKED}


def ship(folder: Path, samples: list[TrainingSample]) -> Path:
    path = folder / "step_000001.msgpack"
    path.write_bytes(encode(TrainingBatch(step=1, samples=samples)))
    return path


def test_a_shipped_batch(verify, tmp_path: Path) -> None:
    code, report = verify("--batch", str(ship(tmp_path, make_batch(1, size=5))))
    assert code == 0 and report["samples"] == 5 and report["batch"].endswith("step_000001.msgpack")


def test_a_gradient_of_zero_proves_nothing(verify, tmp_path: Path) -> None:
    sample = make_sample(1)
    sample.advantages = np.zeros_like(sample.advantages)
    code, report = verify("--batch", str(ship(tmp_path, [sample, make_sample(2, "ce")])))
    assert code == 0
    code, report = verify("--batch", str(ship(tmp_path, [sample])))
    assert code == 1 and len(failed(report)) == len(report["checks"]) - 2
    assert report["checks"][0]["worst"] == "nan" and "the gradient is 0" in report["checks"][0]["remedy"]


def record(path: Path, step: int, env: str, *episodes: Episode) -> Path:
    records = [
        played.to_record(float_decimals=None) | {"braid": {"env": env, "step": step}} for played in episodes
    ]
    append_records(path, records)
    return path


def played(name: str, *rewards: float) -> list[Episode]:
    return [episode(trace(reward), group=name) for reward in rewards]


def test_the_newest_step_of_a_run_is_credited_by_its_own_algorithms(verify, tmp_path: Path) -> None:
    folder = tmp_path / "other" / "episodes" / "train"
    record(folder / "step_000001.jsonl", 1, "sums", *played("a", 1.0, 0.0, 0.0))
    path = record(folder / "step_000002.jsonl", 2, "sums", *played("b", 1.0, 0.0), *played("c", 1.0, 1.0))
    record(path, 2, "taught", *played("d", 1.0, 0.0))
    record(path, 2, "gone", *played("e", 1.0, 0.0))
    for batch in (tmp_path / "other", path):
        code, report = verify("--batch", str(batch), "--trainer.loss.type", "grpo")
        assert code == 0 and report["samples"] == 2, (
            "those of c have no signal, those of d and e no algorithm"
        )
        assert report["batch"].startswith(f"step 2 of {batch} without 'taught', 'gone'")


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (None, [], "No such file"),
        (b"junk", [], "step_000001.msgpack: "),
        ([], [], "none of the 0 samples has a token to train"),
        ([make_sample(1, prompt=50)], [], "a sample of 56 tokens, but seq_len is 40; raise seq_len"),
        ("vocabulary", [], "has a vocabulary of 265; set --model.path"),
        (
            [make_sample(1)],
            ["--trainer.loss.type", "icepop", "--trainer.loss.score_centering"],
            "has no top candidates",
        ),
        ([make_sample(1)], ["--model.path", "nowhere"], "model: the engine cannot serve nowhere"),
    ],
)
def test_what_cannot_be_looked_at_is_one_clear_line(
    content, flags, message: str, tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, path = tmp_path / "run.toml", tmp_path / "step_000001.msgpack"
    config.write_text(CONFIG.format(folder=tmp_path, model=tiny_model_dir, trainer=""))
    if content == "vocabulary":
        content = [make_sample(1)]
        content[0].token_ids[3] = 4000
    if isinstance(content, list):
        ship(tmp_path, content)
    elif content is not None:
        path.write_bytes(content)
    assert main(["verify", "@", str(config), "--batch", str(path), *flags]) == 2
    error = capsys.readouterr().err
    (line,) = [line for line in error.splitlines() if line.startswith("braid verify: error: ")]
    assert message in line


def test_batch_needs_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--batch", "--json"]) == 2
    assert "--batch: has no path; give a file of batches" in capsys.readouterr().err


@pytest.mark.parametrize("spoilt", ["loss", "found", "expected"])
def test_nan_is_a_failure(spoilt: str) -> None:
    found, expected = (Gradient(1.0, 2.0, [torch.ones(2), torch.ones(3)], 1.0) for _ in range(2))
    assert compare("x", found, expected, "float32").ok
    if spoilt == "loss":
        found = found._replace(loss=math.nan)
    else:
        (found if spoilt == "found" else expected).gradient[0][1] = math.nan
    assert not compare("x", found, expected, "float32").ok


def test_a_long_batch_is_not_put_into_one_row() -> None:
    samples = [make_sample(seed, prompt=90, completion=10) for seed in range(100)]
    tokens = {cut.max_tokens for cut in cuts(samples, 512, 0) if cut.name.startswith("split")}
    assert tokens == {512, 4096 // 3, 4096}
    assert {cut.max_tokens for cut in cuts(samples, 8192, 0) if cut.name.startswith("split")} == {2730, 8192}
