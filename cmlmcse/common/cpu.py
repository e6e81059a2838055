"""Settings of the process that make PyTorch's CPU kernels cheaper. Commands make this call before anything else."""

import os

CACHED_KERNELS = "32"  # the shapes that the blocks of one step share


def limit_kernel_caches() -> None:
    """Let oneDNN keep few kernels, unless the environment says how many.

    oneDNN keeps a kernel for each shape that it met, 1,024 of them in each of two caches. No two packed batches have
    the same length, so the kept kernels lie between the large tensors all over the heap, which grows by gigabytes
    (tests/model/test_linear.py). With 32 a step is no slower (benchmarks/RESULTS.md). oneDNN reads the setting at its
    first use, so this has to come before it.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, CACHED_KERNELS)
