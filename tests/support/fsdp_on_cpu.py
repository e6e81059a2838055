"""train.py under FSDP 2 on CPU processes, for tests: Accelerate offers FSDP to kinds of GPU only.

The processes are declared to be GPUs and their device to be the CPU (ACCELERATE_TORCH_DEVICE); everything else,
Accelerate's own FSDP code, PyTorch's sharding with gloo, Trainer and train.py, runs as it does on GPUs.
"""

import os
import sys
from pathlib import Path

os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accelerate.state import PartialState
from accelerate.utils import DistributedType

PartialState._prepare_backend = lambda self, *args, **options: ("gloo", DistributedType.MULTI_GPU)

import train  # noqa: E402

if __name__ == "__main__":
    train.main()
