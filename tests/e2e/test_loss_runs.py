"""Losses in whole runs: score centering on captured heads, and a resumed run with all off-policy protections."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.runs import Launch

pytestmark = pytest.mark.slow

RECIPE = """\
algorithm:
  advantage_norm_mode: group_zscore
  policy_loss: grpo
  loss_agg_mode: seq-mean-token-mean
  is_correction: {enable: true, level: token, action: clip}
  m2po: {enable: true}
  opsm: {enable: true}
  entropy_coef: 0.01
  ref_kl: {enable: true, coef: 0.01, kl_type: k3, use_unbiased_kl: true, update_interval: 2,
           ref_hf_model_path: "MODEL"}
trainer:
  mini_batches: 2
"""


def test_score_centering_trains_on_captured_heads(tmp_path: Path, tiny_model_dir: Path) -> None:
    """Strictly on-policy, the captured probabilities equal the trainer's, so the scale of the modelled tail is 1."""
    launch = Launch(tmp_path, tiny_model_dir)
    loss = ["--trainer.loss.type", "icepop", "--trainer.loss.score_centering", "true"]
    head = ["--trainer.loss.score_centering_topk", "40", "--orchestrator.max_off_policy_steps", "0"]
    launch.finish(*loss, *head, "--max_steps", "2")
    for row in launch.rows("trainer"):
        assert row["stepped"] == 1 and row["grad_norm"] > 0
        assert 0.15 < row["score_centering/head_mass"] < 0.9
        assert row["score_centering/tail_scale"] == pytest.approx(1, abs=1e-4)
        assert row["score_centering/logit_correction_l1"] < 1e-3, "every ratio is in the band"
        assert row["mismatch_kl"] < 1e-6


def test_a_recipe_with_every_protection_trains_and_resumes(tmp_path: Path, tiny_model_dir: Path) -> None:
    launch = Launch(tmp_path, tiny_model_dir)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("MODEL", str(tiny_model_dir)))
    launch.finish("@", str(recipe), "--max_steps", "2")
    first, second = launch.rows("trainer")
    names = ("is_clip_ratio", "m2_before", "m2po_clip_ratio", "opsm_clipfrac", "reference_kl", "pg_loss")
    for row in (first, second):
        assert row["stepped"] == 2 and row["grad_norm"] > 0
        assert all(name in row for name in (*names, "is_approx_k3_kl", "entropy/rl", "clip_ratio"))
    assert 0 <= first["reference_kl"] < second["reference_kl"], "the policy leaves the reference"
    saved = launch.run.trainer_checkpoint(2)
    policy, reference = (load_file(saved / f"{name}.safetensors") for name in ("model", "reference"))
    assert all((reference[name] == tensor).all() for name, tensor in policy.items()), "refreshed after step 2"

    launch.finish("@", str(recipe), "--max_steps", "3", "--resume")
    third = launch.rows("trainer")[2]
    assert third["step"] == 3 and third["reference_kl"] < second["reference_kl"]
