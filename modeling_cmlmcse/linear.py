"""Linear layers on a CPU, through the faster of PyTorch's two libraries.

PyTorch multiplies fp32 matrices with MKL, whose best kernels are for Intel's processors. On an AMD EPYC with AVX-512
oneDNN is twice as fast (benchmarks/operations.py). On other devices, in other precisions and in compiled or traced code
nothing changes.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

LEAST_WORK = 1 << 24  # multiplications; below, compiling a kernel for each new shape costs what oneDNN gains
_choice: list[bool] = []  # of this process, once a product has asked
LEAST_GAIN = 1.25  # below, the default stays: near a tie the choice would differ between processes


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(…, K), (L, K) and (L,) → (…, L), as `nn.functional.linear`, gradients included."""
    if _is_large_fp32_on_cpu(hidden, weight) and onednn_is_faster():
        return _OneDNNLinear.apply(hidden.flatten(0, -2), weight, bias, False).unflatten(0, hidden.shape[:-1])
    return nn.functional.linear(hidden, weight, bias)


def linear_after_gelu(wide: Tensor, layer: nn.Linear) -> Tensor:
    """(…, L) → (…, K): `layer(gelu(wide))`. GELU's output, the largest tensor of a transformer block, is not kept: the
    backward pass computes it again."""
    if is_plain(layer) and _is_large_fp32_on_cpu(wide, layer.weight) and onednn_is_faster():
        rows = _OneDNNLinear.apply(wide.flatten(0, -2), layer.weight, layer.bias, True)
        return rows.unflatten(0, wide.shape[:-1])
    return layer(nn.functional.gelu(wide))


def is_plain(layer: nn.Module) -> bool:
    """Whether a linear layer is its weight and bias and no more, so that they may be used without calling it.

    An adapter adds to them, a hook expects to see the layer's input, and Accelerate keeps offloaded weights elsewhere.
    """
    called = hasattr(layer, "_hf_hook") or has_hooks(layer)
    return type(layer) is nn.Linear and not called and not layer.weight.is_meta


def has_hooks(*modules: nn.Module) -> bool:
    """Whether somebody watches what goes through one of these modules."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for module in modules for name in names)


class _OneDNNLinear(torch.autograd.Function):
    """(S, K), (L, K) and (L,) → (S, L), forward and backward products in oneDNN; of the input or of its GELU."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, after_gelu: bool) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.after_gelu = after_gelu
        return _multiply(nn.functional.gelu(input) if after_gelu else input, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        input, weight = ctx.saved_tensors
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input = _multiply(gradient, weight.t())  # (S, K)
            if ctx.after_gelu:
                grad_input = torch.ops.aten.gelu_backward(grad_input, input)
        if ctx.needs_input_grad[1]:
            hidden = nn.functional.gelu(input) if ctx.after_gelu else input
            grad_weight = _multiply(gradient.t(), hidden.t())  # (L, K)
        if ctx.needs_input_grad[2]:
            grad_bias = gradient.sum(dim=0)  # (L,)
        return grad_input, grad_weight, grad_bias, None


def _multiply(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """(A, K), (B, K) and (B,) → left · rightᵀ + bias, (A, B), in oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")


def _is_large_fp32_on_cpu(hidden: Tensor, weight: Tensor) -> bool:
    """Whether a product is large enough, in fp32, on a CPU, and neither compiled nor traced."""
    return (
        hidden.device.type == weight.device.type == "cpu"
        and hidden.dtype == weight.dtype == torch.float32
        and hidden.numel() * len(weight) >= LEAST_WORK
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and bool(torch.backends.mkldnn.enabled)
    )


def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies clearly faster here than PyTorch's default. Measured once a process, in about 30 ms."""
    if not _choice:
        _choice.append(has_onednn() and _measured())
    return _choice[0]


def onednn_choice() -> bool | None:
    """What this process computes with: oneDNN or the default; None if no product has asked yet."""
    return _choice[0] if _choice else None


def take_onednn(choice: bool) -> None:
    """Compute with oneDNN, or with the default, without measuring, as a run did that goes on. On a busy machine a later
    process may measure otherwise, and the last digits would differ."""
    _choice[:] = [choice and has_onednn()]


def has_onednn() -> bool:
    """Whether this PyTorch has oneDNN's products."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _measured() -> bool:
    """Whether oneDNN is clearly faster."""
    left, right = torch.ones(512, 768, device="cpu"), torch.ones(768, 768, device="cpu")
    return second_is_faster(lambda: nn.functional.linear(left, right), lambda: _multiply(left, right))


def second_is_faster(first: Callable[[], Any], second: Callable[[], Any]) -> bool:
    """Whether the second of two ways to compute the same is clearly faster here: the best of six times each."""
    seconds: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        for _ in range(6):  # in turns, so that other work on the machine meets both
            for way, times in zip((first, second), seconds, strict=True):
                start = time.perf_counter()
                way()
                times.append(time.perf_counter() - start)
    return min(seconds[0]) > LEAST_GAIN * min(seconds[1])
