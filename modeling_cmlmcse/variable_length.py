"""Attention of rows of different lengths in one kernel of a GPU, without padding: which kernel, and its check.

PyTorch's public `varlen_attn` has no dropout (2.10 to 2.13). Its nested tensors have, but cost the host more than ten
times as much work for each block (benchmarks/nested.py), and a small batch on a fast GPU waits for its host. So with
dropout, on older GPUs and in fp32 the operators below them are called directly. These are private to PyTorch. So each
must first pass :func:`passes`, once a process for each precision and size of heads, with dropout or without. If it does
not, attention pads. On an H100 with PyTorch 2.11 FlashAttention passes. The memory-efficient kernel passes without
dropout alone: with it, rows of one token are all dropped or all kept together.

:func:`padded_attention` switches all of this off for a block of code, `ALWAYS_PAD = True` for a whole program.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

try:  # PyTorch 2.10 and newer
    from torch.nn.attention import varlen as public

    varlen_attn: Any = public.varlen_attn
except ImportError:
    varlen_attn = None

logger = logging.get_logger(__name__)

Bounds = tuple[Tensor, Tensor]  # (B + 1,) int32 where the rows of the queries begin and end, and those of the keys
Longest = tuple[int, int]
# (M, heads, D) queries, (S, heads, D) keys and values, bounds, lengths of the longest rows, dropout → (M, heads, D)
Kernel = Callable[[Tensor, Tensor, Tensor, Bounds, Longest, float], Tensor]

ALWAYS_PAD = False  # for users: a model that ships reads no environment
AMPERE = 8  # the first number of its compute capability
ALONE = 64  # rows of one key in the check, each of which shows which dropout it met
KEYS, QUERIES = [1] * ALONE + [3, 40, 7, 5], [1] * ALONE + [3, 40, 1, 0]  # the lengths of all its rows
DROPOUT = 0.25  # of the check


@contextmanager
def padded_attention(always: bool = True) -> Iterator[None]:
    """Attention pads inside the block, whichever kernels there are. With `always` false the block changes nothing."""
    global ALWAYS_PAD
    before = ALWAYS_PAD
    ALWAYS_PAD = before or always
    try:
        yield
    finally:
        ALWAYS_PAD = before


def varlen(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, longest: Longest, dropout: float) -> Tensor:
    """PyTorch's public kernel, without dropout."""
    output: Tensor = varlen_attn(query, key, value, *bounds, *longest)
    return output


def flash(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, longest: Longest, dropout: float) -> Tensor:
    """FlashAttention (Dao 2023), which `varlen_attn` calls too."""
    return torch.ops.aten._flash_attention_forward(query, key, value, *bounds, *longest, dropout, False, False)[0]


def memory_efficient(
    query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, longest: Longest, dropout: float
) -> Tensor:
    """The kernel of xFormers (Rabe & Staats 2021), which attention with a mask gets on every GPU."""
    operator, batch = torch.ops.aten._efficient_attention_forward, (query[None], key[None], value[None])
    return operator(*batch, None, *bounds, *longest, dropout, 0, True)[0].squeeze(0)


def find_kernel(query: Tensor, dropout: float, scaling: float, empty_rows: bool = False) -> Kernel | None:
    """The kernel for queries (M, heads, D) like these; None if there is none, and attention has to pad.

    Half precision on Ampere and newer takes FlashAttention. fp32, and fp16 on older GPUs such as the V100, take the
    memory-efficient kernel, unless there may be rows without a query (`empty_rows`). Heads have at most 256 dimensions,
    in multiples of 8, and the usual scale. Compiled code takes the public kernel alone.
    """
    size = query.shape[-1]
    if not query.is_cuda or size > 256 or size % 8 or scaling != size**-0.5 or switched_off():
        return None
    if query.dtype in (torch.float16, torch.bfloat16) and generation_of(query.device) >= AMPERE:
        if varlen_attn is not None and dropout == 0.0:
            return varlen
        kernel: Kernel = flash
    elif not empty_rows and query.dtype in (torch.float16, torch.float32):
        kernel = memory_efficient
    else:
        return None
    if torch.compiler.is_compiling() or not passes(kernel, query.device, query.dtype, size, dropout > 0):
        return None
    return kernel


@torch.compiler.assume_constant_result
def switched_off() -> bool:
    """Whether the user wants padded attention."""
    return ALWAYS_PAD


@torch.compiler.assume_constant_result
def generation_of(device: torch.device) -> int:
    """The first number of a GPU's compute capability."""
    return torch.cuda.get_device_capability(device)[0]


@cache
def passes(kernel: Kernel, device: torch.device, dtype: torch.dtype, size: int, drops: bool = True) -> bool:
    """Whether a kernel computes what attention is, on a small input. It warns if not. Random state stays as it was.

    Without dropout its output and its gradients must be those of plain attention in fp32. If it is to drop (`drops`), a
    row of one key must be dropped about as often as asked for, and else be scaled; and the backward pass must drop what
    the forward pass dropped: attention is linear in its values, so ⟨output, output⟩ = ⟨values, their gradient⟩.
    """
    try:
        with ExitStack() as undisturbed:
            undisturbed.enter_context(torch.random.fork_rng([] if device.type == "cpu" else [device]))
            undisturbed.enter_context(torch.inference_mode(False))
            undisturbed.enter_context(torch.enable_grad())
            undisturbed.enter_context(torch.autocast(device.type, enabled=False))
            # Gradient checkpointing would else take the backward passes here for its own.
            undisturbed.enter_context(torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is))
            fault = _fault(kernel, device, dtype, size, drops)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        fault = (str(error) or type(error).__name__).splitlines()[0]
    if fault is not None:
        how = "with dropout" if drops else "without dropout"
        logger.warning(
            f"PyTorch's attention kernel {kernel.__name__} failed its check on {device} in {dtype} {how} ({fault}): "
            "attention pads there, which is right and slower. ALWAYS_PAD = True in this module skips the check."
        )
    return fault is None


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _fault(kernel: Kernel, device: torch.device, dtype: torch.dtype, size: int, drops: bool) -> str | None:
    """What is wrong with a kernel; None if nothing is."""
    generator = torch.Generator(device).manual_seed(0)
    tolerance = max(8 * torch.finfo(dtype).eps, 2e-3)  # fp32 may compute in TF32
    rows = [each if kernel is flash else each[:-1] for each in (QUERIES, KEYS)]  # the last one is empty
    lengths = [torch.tensor(each, device=device) for each in rows]
    query, key, value = (
        torch.randn(sum(each), 4, size, device=device, generator=generator).to(dtype).requires_grad_()
        for each in (rows[0], rows[1], rows[1])
    )
    states, longest = (query, key, value), (max(rows[0]), max(rows[1]))
    of_queries, of_keys = (nn.functional.pad(each.cumsum(0), (1, 0)).int() for each in lengths)
    bounds = of_queries, of_keys

    output = kernel(*states, bounds, longest, 0.0)
    expected = _plain(*states, *lengths)
    weights = torch.randn(expected.shape, device=device, generator=generator)
    gradients = [torch.autograd.grad(each.float(), states, weights) for each in (output, expected)]
    names = ("output", "gradient of the queries", "gradient of the keys", "gradient of the values")
    for name, one, other in zip(names, (output, *gradients[0]), (expected, *gradients[1]), strict=True):
        if not _near(one, other, tolerance):
            return f"another {name} than plain attention"
    if not drops:
        return None

    output = kernel(*states, bounds, longest, DROPOUT)
    (gradient,) = torch.autograd.grad(output, value, output.detach())
    alone, own = output[:ALONE].float(), value[:ALONE].float()  # (64, 4, D) of rows of one key
    kept = alone.abs().sum(dim=-1, keepdim=True) > 0  # (64, 4, 1)
    if not _near(alone, kept * own / (1 - DROPOUT), tolerance) or not 0.05 < 1 - float(kept.float().mean()) < 0.5:
        return "another dropout than asked for"
    found, again = output.float().square().sum(), (value.float() * gradient.float()).sum()
    return None if _near(again, found, tolerance) else "another dropout backward than forward"


def _near(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether two tensors differ by no more than this share. NaN is not near."""
    found, expected = found.detach().float(), expected.detach().float()
    return bool((found - expected).norm() <= tolerance * expected.norm())


def _plain(query: Tensor, key: Tensor, value: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Attention of rows with these lengths, written out in fp32: (M, heads, D)."""
    rows = [torch.arange(len(each), device=each.device).repeat_interleave(each) for each in (queries, keys)]
    scores = torch.einsum("mhd,shd->hms", query.float(), key.float()) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(rows[0][:, None] != rows[1], -torch.inf)
    return torch.einsum("hms,shd->mhd", scores.softmax(dim=-1), value.float())
