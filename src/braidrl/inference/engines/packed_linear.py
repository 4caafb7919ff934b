"""Linear layers whose weights lie in the layout that the CPU's matrix units want.

A plain linear rearranges its weights in every call (bfloat16) or falls on slow kernels for a handful of rows (float32).
A packed one rearranges them once a weight update, at the price of a second copy. In bfloat16 the results are the same
bit for bit, in float32 up to the order of summation.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class PackedLinear(nn.Linear):
    """A linear on the CPU. `weight` stays what is loaded and updated; `packed` is what computes."""

    packed: Tensor

    def pack(self) -> None:
        """Take over the current `weight`."""
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype == torch.float32 and input.numel() == input.shape[-1]:
            return linear(
                input, self.weight, self.bias
            )  # one row: a plain product of matrix and vector is faster
        return torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, "none", [], "")


def pack_linears(model: nn.Module) -> None:
    """Pack every plain linear of a model on the CPU; call it again whenever weights have changed."""
    packable = {torch.float32} if torch.backends.mkldnn.is_available() else set()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        packable.add(torch.bfloat16)
    for module in model.modules():
        if (
            type(module) is nn.Linear
            and module.weight.device.type == "cpu"
            and module.weight.dtype in packable
        ):
            module.__class__ = PackedLinear
        if isinstance(module, PackedLinear):
            module.pack()
