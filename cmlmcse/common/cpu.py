"""What a CPU needs to be fast: small kernel caches, which commands set before anything else, and its best precision."""

import os
from functools import cache

CACHED_KERNELS = "32"  # enough for the shapes that recur within one training step


def limit_kernel_caches() -> None:
    """Limit the size of oneDNN's kernel caches, unless the environment already sets it.

    oneDNN caches one kernel per tensor shape, up to 1,024 in each of two caches. Packed batches nearly always differ in
    length, so the caches fill up. The cached kernels lie between the large tensors and fragment the heap, which grows
    by gigabytes (tests/model/test_linear.py). With 32 kernels a step is no slower (benchmarks/RESULTS.md). oneDNN reads
    the setting at its first use, so call this before.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, CACHED_KERNELS)


@cache
def bf16_is_faster() -> bool:
    """Whether this CPU multiplies clearly faster in bf16 than in fp32, as many with AVX-512 BF16 or AMX do.

    Measured once a process, in about 0.1 s. Without such instructions bf16 is emulated, and slower; and an Intel Xeon
    with AVX-512 BF16, but without AMX, was slower too.
    """
    import torch  # commands set the caches before PyTorch is imported

    from modeling_cmlmcse.linear import linear, second_is_faster

    fp32, bf16 = (torch.ones(1024, 768, dtype=precision) for precision in (torch.float32, torch.bfloat16))
    return second_is_faster(lambda: linear(fp32, fp32[:768]), lambda: linear(bf16, bf16[:768]))
