"""Linear layers with weights prepacked for the matrix units of the CPU.

`nn.Linear` repacks its weights in every call (bfloat16) or uses slow kernels for a few rows (float32). A packed linear
does it once per weight update, at the cost of a second copy of the weights. Results are bitwise equal in bfloat16 and
equal up to the order of summation in float32.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class PackedLinear(nn.Linear):
    """Linear layer on the CPU. `weight` is loaded and updated as usual, `packed` is used to compute."""

    packed: Tensor

    def pack(self) -> None:
        """Repack the current `weight`."""
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype == torch.float32 and input.numel() == input.shape[-1]:
            return linear(input, self.weight, self.bias)  # one row: the plain matrix-vector product is faster
        return torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, "none", [], "")


def pack_linears(model: nn.Module) -> None:
    """Pack every plain linear layer of a model on the CPU. Call it again after every weight change."""
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
