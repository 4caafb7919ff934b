"""An adapter as the policy, served by stock vLLM under its name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from braidrl.orchestrator.engines.pool import Replicas
from tests.engines.servers import serving, settings, wait_ready
from tests.engines.test_vllm_runs import (
    BFLOAT16,
    FLOAT32,
    ON_POLICY,
    WORDS,
    check_steps,
    launch,
    mismatch_under,
)
from tests.engines.test_vllm_server import DEADLINE, check_update, under_way

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RANK = 4


@pytest.fixture(scope="module")
def server(vllm_python: Path, small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    block = {"model": {"path": str(small_model)}, "seq_len": 512, "max_batch_size": 4, "threads": 1}
    block |= settings(vllm_python)
    block["vllm"]["lora_rank"] = RANK
    with serving(folder, block) as url:
        wait_ready(url, folder / "inference.log")
        yield url


@pytest.fixture(scope="module")
def versions(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    """A sequence of adapters and their merged models, as if each were trained from the one before. The first has no
    effect."""
    folder, found = tmp_path_factory.mktemp("weights"), []
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32)
    config = LoraConfig(r=RANK, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = get_peft_model(model, config)
    for version in range(4):
        adapter, merged = folder / f"step_{version}", folder / f"merged_{version}"
        adapted.save_pretrained(str(adapter))
        base = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32)
        PeftModel.from_pretrained(base, str(adapter)).merge_and_unload().save_pretrained(merged)
        found.append((adapter, merged))
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    return found


async def test_it_serves_every_adapter_to_requests_under_way_too(
    server: str, small_model: Path, versions: list[tuple[Path, Path]]
) -> None:
    """Tokens sampled before the update keep the old version and log-probs; the new adapter samples the rest."""
    pool = Replicas([server], live=True)
    await pool.connect(DEADLINE)
    replica, merged = pool.all[0], [path for _, path in versions]
    await pool.update(replica, versions[0][0], 0, DEADLINE)
    for version in (1, 2, 3):
        prompt = [version] * 20
        long = await under_way(pool, small_model, prompt, seed=version)
        await pool.update(replica, versions[version][0], version, DEADLINE)
        await check_update(pool, small_model, prompt, version, long, merged)
    await pool.close()


def test_a_run_trains_and_sends_an_adapter_alone(
    tmp_path: Path, vllm_python: Path, small_model: Path
) -> None:
    """Every step trained on samples of the previous step's adapter, with log-probs that agree with the trainer's."""
    trainer = {"lora": {"rank": 8}, "optim": {"lr": 1e-2}}
    run = launch(tmp_path, small_model, inference=settings(vllm_python), trainer=trainer)
    run.finish(*ON_POLICY, timeout=400)
    check_steps(run, FLOAT32)
    assert mismatch_under(small_model, run, 3) > 1000 * FLOAT32, "the model alone would have done as well"
    assert {file.name for file in run.run.weights(3).iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_a_run_trains_an_adapter_of_a_real_model(tmp_path: Path, vllm_python: Path, smollm2: Path) -> None:
    source = {"env": {"taskset": WORDS}}
    train = {"group_size": 4, "sampling": {"max_tokens": 16}, "source": [source]}
    run = launch(
        tmp_path,
        smollm2,
        seq_len=256,
        model={"path": str(smollm2), "dtype": "bfloat16"},
        trainer={"micro_batch_tokens": 2048, "lora": {"rank": 16}, "optim": {"lr": 1e-3}},
        inference=settings(vllm_python),
        orchestrator={"batch_size": 16, "train": train},
    )
    run.finish(*ON_POLICY, timeout=600)
    print([row["mismatch_kl"] for row in run.rows("trainer")], mismatch_under(smollm2, run, 3))
    check_steps(run, BFLOAT16)
    assert mismatch_under(smollm2, run, 3) > 10 * BFLOAT16, "the model alone would have done as well"
