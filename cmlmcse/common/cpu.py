"""Process settings that save memory in PyTorch's CPU kernels. Commands apply them before anything else."""

import os

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
