"""The loss of a vocabulary head in blocks: the numbers and gradients of PyTorch's own, without all logits."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from modeling_cmlmcse import vocabulary_loss as blocks
from modeling_cmlmcse.backbone import MaskedLMHead
from support.tiny import tiny_config

M, V, W = 11, 17, 5


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch) -> None:
    monkeypatch.setattr(blocks, "CPU_ROWS", 4)  # 11 predictions: two whole blocks and a part


def drawn(precision: torch.dtype = torch.float64, bias: bool = True) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """States, weight and bias that want gradients, and labels."""
    torch.manual_seed(0)
    hidden, weight, offset = (torch.randn(*shape, dtype=precision) for shape in ((M, W), (V, W), (V,)))
    wanted = [each.requires_grad_() for each in (hidden, weight, offset)]
    return wanted[0], wanted[1], wanted[2] if bias else None, torch.randint(V, (M,))


@pytest.mark.parametrize("bias", [True, False])
def test_equals_pytorch(bias) -> None:
    """Value, count of right predictions, and the gradients behind a factor, in fp64."""
    hidden, weight, offset, labels = drawn(bias=bias)
    weights = [each for each in (hidden, weight, offset) if each is not None]
    logits = nn.functional.linear(hidden, weight, offset)
    expected = nn.functional.cross_entropy(logits, labels, reduction="sum")
    expected_grads = torch.autograd.grad(3.5 * expected, weights)
    total, right = blocks.vocabulary_loss(hidden, weight, offset, labels)
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(3.5 * total, weights), expected_grads, rtol=1e-11, atol=1e-12)
    assert int(right) == int((logits.argmax(dim=1) == labels).sum())
    assert not right.requires_grad


def test_large_logits_do_not_overflow() -> None:
    """exp(1000) is infinite in fp64; the loss of a sure and right prediction is 0, of a wrong one the margin."""
    hidden = torch.tensor([[1000.0], [1000.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    total, right = blocks.vocabulary_loss(hidden, weight, None, torch.tensor([0, 1]))
    assert float(total) == pytest.approx(1000.0)
    assert int(right) == 1


@pytest.mark.parametrize("frozen", ["hidden", "weight", "bias"])
def test_what_is_frozen_gets_no_gradient(frozen) -> None:
    """The others get theirs."""
    hidden, weight, offset, labels = drawn()
    named = {"hidden": hidden, "weight": weight, "bias": offset}
    named[frozen].requires_grad_(False)
    blocks.vocabulary_loss(hidden, weight, offset, labels)[0].backward()
    assert [name for name, each in named.items() if each.grad is None] == [frozen]


def test_half_precision_is_summed_in_fp32() -> None:
    """Under autocast in bf16 the loss is fp32 and near the exact one, and weights get gradients of their own kind."""
    hidden, weight, offset, labels = drawn(torch.float32)
    exact = nn.functional.cross_entropy(nn.functional.linear(hidden, weight, offset), labels, reduction="sum")
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = blocks.vocabulary_loss(hidden, weight, offset, labels)
    total.backward()
    total = total.detach()
    assert total.dtype == weight.grad.dtype == hidden.grad.dtype == torch.float32
    assert float(total) == pytest.approx(float(exact.detach()), rel=0.01)
    assert total != exact.detach()  # bf16 has rounded


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that an operation makes."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.size = max(self.size, made.numel())
        return made


def test_all_logits_never_exist() -> None:
    """The largest tensor has a block's logits; in the plain way it has all of them."""
    hidden, weight, offset, labels = drawn()
    with Largest() as ours:
        blocks.vocabulary_loss(hidden, weight, offset, labels)[0].backward()
    with Largest() as plain:
        blocks.all_at_once(nn.functional.linear(hidden, weight, offset), labels)[0].backward()
    assert (ours.size, plain.size) == (max(4 * V, V * W), M * V)


def test_a_changed_decoder_is_called() -> None:
    """A decoder with a hook, or an adapter in its place, is more than its weight: the head is then called whole."""
    head = MaskedLMHead(tiny_config("bert"))
    assert head.scorer() is not None
    handle = head.decoder.register_forward_hook(lambda *_: None)
    assert head.scorer() is None
    handle.remove()
    head.decoder = nn.Sequential(head.decoder)
    assert head.scorer() is None


def test_nothing_is_prepared_for_a_gradient_that_nobody_wants(monkeypatch) -> None:
    """Under no_grad the gradients of the weights, (V, W), are not computed."""
    monkeypatch.setattr(blocks, "_plus", lambda *_: pytest.fail("a gradient was computed"))
    hidden, weight, offset, labels = drawn()
    expected = blocks.all_at_once(nn.functional.linear(hidden, weight, offset), labels)
    with torch.no_grad():
        total, right = blocks.vocabulary_loss(hidden, weight, offset, labels)
    torch.testing.assert_close(total, expected[0].detach())
    assert int(right) == int(expected[1])
