"""Second-moment trust policy optimisation (SPEC section 5; arXiv 2510.01161)."""

import torch
from torch import Tensor

from braidrl.configs.trainer.offpolicy import M2POConfig


def m2po(old: Tensor, mu: Tensor, config: M2POConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Which rl members of the whole batch stay (bool[N]), and metrics; log-probs are float[N].

    The largest (old - mu)^2 go until the mean of the others is at most `threshold`; one token always stays, and
    of equal ones the earlier. A value that is not finite goes first. A metric is the mean of its float[N] over the
    tokens that are not NaN: `m2_before`, `m2_after` (over finite members), `m2po_clip_ratio`.
    """
    squares = (old - mu).double().square()
    finite = torch.isfinite(squares)
    ordered, order = squares[finite].sort(stable=True)
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=old.device)
    # the means of ever more of the smallest never fall, so those within the threshold come first
    kept = max(int((means <= config.threshold).sum()), min(1, len(ordered)))
    keep = torch.zeros_like(finite)
    keep[finite.nonzero().squeeze(-1)[order[:kept]]] = True
    metrics = {
        "m2_before": squares.where(finite, torch.nan),
        "m2_after": squares.where(keep, torch.nan),
        "m2po_clip_ratio": (~keep).double(),
    }
    return keep, metrics
