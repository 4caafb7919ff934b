"""The `ce` component: weighted negative log-likelihood (docs/losses.md)."""

from braidrl.trainer.rl.loss import LossInputs, LossOutputs, mean


def ce_loss(inputs: LossInputs) -> LossOutputs:
    """Sum over members of -x * w. A non-finite x propagates. Metric: `nll`, the unweighted mean of -x."""
    x = inputs.trainer_logprobs[inputs.loss_mask]
    weighted = x if inputs.loss_weights is None else x * inputs.loss_weights[inputs.loss_mask]
    return LossOutputs(-weighted.sum(), {"nll": mean(-x)})
