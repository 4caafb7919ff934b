"""Linear layers whose weights lie in the layout that the CPU's matrix units want.

A plain bfloat16 linear rearranges its weights in every call, which is half of the time of a small batch; a packed
one does so once a weight update. The results are the same bit for bit, at the price of a second copy of the weights.
"""

import torch
from torch import Tensor, nn


class PackedLinear(nn.Linear):
    """A bfloat16 linear on the CPU. `weight` stays what is loaded and updated; `packed` is what computes."""

    packed: Tensor

    def pack(self) -> None:
        """Take over the current `weight`."""
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)

    def forward(self, input: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, "none", [], "")


def pack_linears(model: nn.Module) -> None:
    """Pack every plain bfloat16 linear of a model on the CPU; call it again whenever weights have changed."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return
    for module in model.modules():
        if (
            type(module) is nn.Linear
            and module.weight.dtype == torch.bfloat16
            and module.weight.device.type == "cpu"
        ):
            module.__class__ = PackedLinear
        if isinstance(module, PackedLinear):
            module.pack()
