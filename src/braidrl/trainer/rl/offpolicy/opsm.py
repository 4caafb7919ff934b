"""Off-policy sequence masking (SPEC section 5)."""

import torch
from torch import Tensor

from braidrl.configs.trainer.offpolicy import OPSMConfig
from braidrl.trainer.rl.loss import mean
from braidrl.trainer.rl.sequences import sequence_mean


def opsm(
    x: Tensor, reference: Tensor, advantages: Tensor, sequence: Tensor | None, config: OPSMConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Which rl members keep their policy loss (bool[N]), and metrics; all are float[N] of the members.

    A token goes where its advantage is negative and the mean of reference - x over its sequence is above `delta`:
    the policy has moved away from it already. Log-probs that are not finite take no part in the mean. The metric
    `opsm_clipfrac` is the share of sequences that lose a token.
    """
    gone = reference - x.detach()
    finite = torch.isfinite(gone)
    kl = torch.zeros_like(gone)
    kl[finite] = sequence_mean(gone[finite], None if sequence is None else sequence[finite])
    drop = (advantages < 0) & (kl > config.delta)
    owner = torch.zeros_like(drop, dtype=torch.long) if sequence is None else sequence
    sequences, index = owner.unique(return_inverse=True)
    lost = torch.zeros(len(sequences), dtype=torch.bool, device=x.device)
    lost[index[drop]] = True
    return ~drop, {"opsm_clipfrac": mean(lost)}
