"""Linear layers through oneDNN: the numbers and gradients of PyTorch's own, and only where they are meant for."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding, linear
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels
from support.paths import ROOT
from support.tiny import tiny_backbone, tiny_config, tiny_tokenizer

onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of the products that oneDNN does, on a machine where it is faster."""
    done: list[tuple[int, ...]] = []
    multiply = linear._multiply

    def counted(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        done.append((*left.shape, len(right)))
        return multiply(left, right, bias)

    monkeypatch.setattr(linear, "_multiply", counted)
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(linear, "LEAST_WORK", 1)
    return done


@onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(37, 24), (3, 5, 24), (1, 24)])
def test_equals_pytorch(shape, bias, calls):
    """Values and all gradients, in fp64 terms to 1e-5."""
    torch.manual_seed(0)
    layer = nn.Linear(24, 40, bias=bias)
    fast = copy.deepcopy(layer)
    use_fast_cpu_kernels(fast)
    inputs = [torch.randn(shape).requires_grad_() for _ in range(1)]
    inputs.append(inputs[0].detach().clone().requires_grad_())
    weights = torch.randn(*shape[:-1], 40)
    outputs = [module(given) for module, given in zip((layer, fast), inputs, strict=True)]
    for output in outputs:
        (output * weights).sum().backward()
    rows = weights[..., 0].numel()
    assert calls == [(rows, 24, 40), (rows, 40, 24), (40, rows, 24)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, rtol=1e-5, atol=1e-5)
    for one, other in zip(fast.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5)


@onednn
@pytest.mark.parametrize("shape", [(37, 24), (3, 5, 24)])
def test_after_gelu_equals_pytorch(shape, calls):
    """Values and all gradients; GELU's output is not among what is kept."""
    torch.manual_seed(0)
    layer, wide = nn.Linear(24, 40), torch.randn(shape).requires_grad_()
    weights = torch.randn(*shape[:-1], 40)
    kept, found = [], []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        output = linear.linear_after_gelu(wide, layer)
    for result in (output, layer(nn.functional.gelu(wide))):
        result.backward(weights)
        found.append([result.detach(), wide.grad, *(parameter.grad for parameter in layer.parameters())])
        wide.grad = None
        layer.zero_grad(set_to_none=True)
    assert len(calls) == 3  # and none in the other
    assert {tensor.data_ptr() for tensor in kept} == {wide.data_ptr(), layer.weight.data_ptr()}
    for fast, plain in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-5)


@onednn
def test_after_gelu_hooks_and_other_layers_are_called(calls):
    """A layer that somebody watches, or has replaced, is called as it is."""
    wide, seen = torch.randn(7, 24), []
    watched = nn.Linear(24, 40)
    watched.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    other = nn.Sequential(nn.Linear(24, 40))
    for layer in (watched, other):
        torch.testing.assert_close(linear.linear_after_gelu(wide, layer), layer(nn.functional.gelu(wide)))
    torch.testing.assert_close(seen[0], nn.functional.gelu(wide))
    assert calls == []


@onednn
def test_only_the_gradients_that_are_asked_for(calls):
    """A frozen layer costs one product in the backward pass, and without gradients there is none; a gradient without
    strides, a sum's, is taken too."""
    layer = nn.Linear(24, 40).requires_grad_(False)
    use_fast_cpu_kernels(layer)
    hidden = torch.randn(7, 24).requires_grad_()
    layer(hidden).sum().backward()
    assert calls == [(7, 24, 40), (7, 40, 24)]
    torch.testing.assert_close(hidden.grad, layer.weight.sum(dim=0).expand(7, 24))
    with torch.no_grad():
        layer(hidden)
    assert len(calls) == 3


@onednn
def test_other_precisions_and_small_products_stay(calls, monkeypatch):
    """fp64, autocast, small products, and a processor on which MKL is as fast."""
    layer = nn.Linear(24, 40)
    use_fast_cpu_kernels(layer)
    hidden = torch.randn(7, 24)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(hidden).dtype == torch.bfloat16
    assert copy.deepcopy(layer).double()(hidden.double()).dtype == torch.float64
    monkeypatch.setattr(linear, "LEAST_WORK", 1 << 24)
    layer(hidden)
    monkeypatch.setattr(linear, "LEAST_WORK", 1)
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: False)
    layer(hidden)
    assert calls == []


@onednn
def test_a_choice_that_is_taken_stays(monkeypatch):
    """Nothing is measured then; the default choice is measured once."""
    measured = []
    monkeypatch.setattr(linear, "_choice", [])
    monkeypatch.setattr(linear, "_measured", lambda: measured.append(1) or True)
    assert linear.onednn_choice() is None
    linear.take_onednn(False)
    assert not linear.onednn_is_faster()
    linear.take_onednn(True)
    assert linear.onednn_is_faster()
    assert not measured
    linear._choice.clear()
    assert linear.onednn_is_faster()
    assert linear.onednn_is_faster()
    assert linear.onednn_choice() is True
    assert len(measured) == 1


@onednn
def test_copies_have_their_own_weights(calls):
    """A deep copy multiplies with the copy's weights; a pickled layer is a plain one."""
    layer = nn.Linear(24, 40)
    use_fast_cpu_kernels(layer)
    copied, restored = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    with torch.no_grad():
        layer.weight.zero_()
    hidden = torch.randn(7, 24)
    assert copied(hidden).abs().sum() > layer(hidden).abs().sum() + 1
    assert len(calls) == 2
    torch.testing.assert_close(restored(hidden), copied(hidden), rtol=1e-5, atol=1e-5)


def test_a_replica_computes_with_its_own_weights():
    """DataParallel's replicas share what their modules hold, and are given other weights: layers and blocks compute
    with these."""

    def replicated(module: nn.Module) -> nn.Module:
        replica = module._replicate_for_data_parallel()
        for name, part in module.named_children():
            setattr(replica, name, replicated(part))
        for name, weight in module.named_parameters(recurse=False):
            setattr(replica, name, weight.detach() / 2)
        return replica

    block, hidden = tiny_backbone("bert", dropout=0.0).base_model.encoder.layer[0], torch.randn(7, 32)
    halved = copy.deepcopy(block)
    for weight in halved.parameters():
        weight.data /= 2
    use_fast_cpu_kernels(block)
    replica = replicated(block)
    for fast, plain in ((replica.intermediate.dense, halved.intermediate.dense),
                        (replica.feed_forward_chunk, halved.feed_forward_chunk)):  # fmt: skip
        torch.testing.assert_close(fast(hidden), plain(hidden), rtol=1e-5, atol=1e-5)


@onednn
def test_every_layer_of_the_model_goes_that_way(calls):
    """Encoder, extractor, fusion layers and head, in one training step: the loss and all gradients are MKL's."""
    config = CMLMCSEConfig(tiny_config("bert", dropout=0.0), lexical_layers=2, fusion_layers=2)
    model, tokenizer = CMLMCSEForSentenceEmbedding(config).train(), tiny_tokenizer("bert")
    use_fast_cpu_kernels(model)
    texts = ("the cat sat", "a big dog ran under the red tree", "the small blue mat")
    batch = ViewCollator(tokenizer, 0, masking=Masking(0.5, 4, 80, frozenset(range(5))))(
        [Example(tokenizer(text)["input_ids"], row, 0) for row, text in enumerate(texts)]
    )
    found = []
    for enabled in (True, False):
        with torch.backends.mkldnn.flags(enabled=enabled):
            loss = TrainingLosses(model)(**batch).loss
            loss.backward()
        found.append([loss.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)])
        model.zero_grad(set_to_none=True)
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
    assert len(layers) > 6 * 10
    assert all("forward" in vars(layer) for layer in layers)
    assert len(calls) > 2 * len(layers)
    assert len(found[0]) == len(found[1]) > 100
    for fast, plain in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


GROWTH = """
from cmlmcse.common.cpu import limit_kernel_caches
limit_kernel_caches()
import torch

def resident():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024

def gelu(rows):
    torch.nn.functional.gelu(torch.ones(rows, 1024, requires_grad=True)).sum().backward()

gelu(4000)
start = resident()
for step in range(200):
    gelu(1500 + step * 7 % 2500)
print(resident() - start)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads what Linux says of a process")
def test_memory_does_not_grow_with_the_number_of_shapes() -> None:
    """200 batches of different lengths: 200 megabytes or so, once over 300; with oneDNN's own caches about 2,000."""
    known = {name: value for name, value in os.environ.items() if not name.endswith("_CACHE_CAPACITY")}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH],
        cwd=ROOT, env={**known, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) < 700
