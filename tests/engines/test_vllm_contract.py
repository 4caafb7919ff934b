"""Requests to parts of vLLM that need a GPU, validated with vLLM's own types."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from braidrl.transport.transfer import Offer, Rendezvous

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

READ = """\
import inspect, json, sys
from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
from vllm.distributed.weight_transfer import nccl_common, nccl_engine
place, update = json.load(sys.stdin)
init = nccl_engine.NCCLWeightTransferInitInfo(**place)
print(init.master_address, init.master_port, init.world_size, init.rank_offset, init.packed)
print(nccl_engine.NCCLWeightTransferUpdateInfo(**update))
assert list(inspect.signature(nccl_common.trainer_init).parameters)[0] == "init_info"
assert list(inspect.signature(PyNcclCommunicator.broadcast).parameters)[1:] == ["tensor", "src", "stream"]
"""


def test_vllm_reads_the_messages_of_the_weight_transfer(vllm_python: Path) -> None:
    offer = Offer("http://127.0.0.1:1", "token", ["a.weight"], ["bfloat16"], [[7, 4]])
    sent = msgspec.json.encode([Rendezvous("127.0.0.1", 4567, 3), offer.update_info])
    run = subprocess.run([vllm_python, "-c", READ], input=sent, capture_output=True, timeout=240)
    assert run.returncode == 0, run.stderr.decode()
    assert "127.0.0.1 4567 3 1 False" in run.stdout.decode()
    assert "names=['a.weight'], dtype_names=['bfloat16'], shapes=[[7, 4]]" in run.stdout.decode()
