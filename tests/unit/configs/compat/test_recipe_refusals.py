"""Invalid `algorithm` sections: one line of error that names both keys."""

from pathlib import Path

import pytest

from tests.support.recipes import MINIMAL, dry_run


@pytest.mark.parametrize(
    ("section", "flags", "message"),
    [
        (
            "{clip_ratio_low: 0.3}",
            "--trainer.loss.clip_ratio_low 0.2",
            'algorithm.clip_ratio_low is 0.3, but trainer.loss.clip_ratio_low is "0.2"; the first expands into',
        ),
        (
            "{policy_loss: grpo}",
            "--trainer.loss.type ipo",
            'algorithm.policy_loss is "grpo", but trainer.loss.type is "ipo"',
        ),
        (
            "{clip_ratio_low: 0.3}",
            "--trainer.loss.type ipo",
            'algorithm.clip_ratio_low is 0.3, but trainer.loss.type is "ipo"; the first expands into trainer.loss.c',
        ),
        (
            "{advantage_estimator: grpo}",
            "--orchestrator.train.algo.type rae",
            'algorithm.advantage_estimator is "grpo", but orchestrator.train.algo.type is "rae"',
        ),
        (
            "{advantage_norm_mode: none}",
            "--orchestrator.train.algo.type rae",
            'algorithm.advantage_norm_mode is "none", but orchestrator.train.algo.type is "rae"',
        ),
        (
            "{m2po: {enable: false}}",
            "--trainer.m2po.threshold 0.1",
            "algorithm.m2po.enable is false, but trainer.m2po is set",
        ),
        (
            "{m2po: {enable: true}}",
            "--trainer.m2po None",
            'algorithm.m2po.threshold is 0.04, but trainer.m2po is "None"',
        ),
        (
            "{opsm: {enable: true, delta: 0.2}}",
            "--trainer.opsm.delta 0.1",
            'algorithm.opsm.delta is 0.2, but trainer.opsm.delta is "0.1"',
        ),
        (
            "{ref_kl: {enable: true, ref_hf_model_path: a}}",
            "--trainer.reference_kl.path b",
            'algorithm.ref_kl.ref_hf_model_path is "a", but trainer.reference_kl.path is "b"',
        ),
        (
            "{ref_kl: {enable: true}}",
            "",
            "algorithm.ref_kl: enable = true needs one reference, but none is set; set either ref_hf_model_path to a "
            "Hugging Face folder, or ref_dist_ckpt_path to a checkpoint",
        ),
        (
            "{ref_kl: {enable: true, ref_hf_model_path: a, ref_dist_ckpt_path: b}}",
            "",
            "algorithm.ref_kl: enable = true needs one reference, but two are set",
        ),
        ("{clip_ratio_hi: 1}", "", "did you mean 'algorithm.clip_ratio_high'? [{file}]"),
        ("{is_correction: {enabled: true}}", "", "did you mean 'algorithm.is_correction.enable'? [{file}]"),
        ("{opsm: {reference: old}}", "", "algorithm.opsm.reference: unknown key; valid here: enable, delta"),
        (
            "{advantage_norm_mode: zscore}",
            "",
            "algorithm.advantage_norm_mode: input should be 'group_mean', 'group_zscore'",
        ),
        (
            "{advantage_estimator: mine}",
            "",
            "'mine' is not \"grpo\", the only algorithm of this section; for any other, remove advantage_estimator",
        ),
        ("{policy_loss: custom}", "", 'trainer.loss.type ("custom" takes trainer.loss.import_path)'),
        ("{clip_ratio_c: 1}", "", "algorithm.clip_ratio_c: input should be greater than 1 (got 1)"),
        ("{loss_agg_mode: prompt}", "", "algorithm.loss_agg_mode: input should be 'token-mean' or 'seq-mean"),
        ("[1]", "", "algorithm: input should be a valid dictionary"),
        (
            "{m2po: {enable: true}}",
            "--trainer.use_rollout_log_probs true",
            "remove m2po, or set use_rollout_log_probs = false",
        ),
        (
            "{advantage_norm_mode: batch_mean}",
            "--orchestrator.train.algo.length_weighted_baseline true",
            'remove length_weighted_baseline, or set advantage_norm = "group_mean"',
        ),
    ],
)
def test_what_does_not_fit_is_one_line_that_names_both_keys(
    section: str, flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run(tmp_path, f"{MINIMAL}algorithm: {section}\n", *flags.split()) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert message.replace("{file}", str(tmp_path / "run.yaml")) in error
    assert error.startswith("braid rl: error: ")
