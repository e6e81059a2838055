"""Cheap dropout: its rate, its expectation, its reproducibility, and that it stands in the whole encoder."""

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn

from modeling_cmlmcse.attention import GridLayout, RowLayout, attention_of_blocks, attention_with_dropout
from modeling_cmlmcse.backbone import build_encoder
from modeling_cmlmcse.dropout import Dropout, drop, without_dropout_in_threads
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels
from modeling_cmlmcse.packing import Packing
from support.tiny import tiny_backbone


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_rate_and_expectation(p):
    torch.manual_seed(0)
    noise = drop(torch.ones(1001, 999), p)
    zeros = (noise == 0).double().mean().item()
    assert zeros == pytest.approx(p, abs=5 * (p * (1 - p) / noise.numel()) ** 0.5 + 1 / 65536)
    assert noise[noise != 0].unique().tolist() == pytest.approx([1 / (1 - p)], rel=2e-4)
    assert noise.mean().item() == pytest.approx(1.0, abs=5e-3)


def test_neighbours_are_independent():
    """Four elements come from one word of random bits."""
    torch.manual_seed(0)
    dropped = (drop(torch.ones(400_000), 0.5) == 0).double().view(-1, 4)
    correlations = torch.corrcoef(dropped.T)
    assert (correlations - torch.eye(4)).abs().max() < 5 / 100_000**0.5


@pytest.mark.parametrize("p", [0.0, 1e-7, 1.0])
def test_ends_of_the_range(p):
    states = torch.ones(1000)
    assert torch.equal(Dropout(p)(states), torch.zeros(1000) if p == 1.0 else states)


def test_reproduced_by_the_generator_state():
    layer, states = Dropout(0.1), torch.ones(37, 11)
    state = torch.get_rng_state()
    first = layer(states)
    assert not torch.equal(first, layer(states))
    torch.set_rng_state(state)
    assert torch.equal(first, layer(states))


def test_gradient_and_evaluation():
    states = torch.randn(50, 20, requires_grad=True)
    layer = Dropout(0.3)
    dropped = layer(states)
    dropped.sum().backward()
    assert torch.equal(states.grad * states, dropped)
    assert torch.equal(layer.eval()(states), states)


def test_a_byte_is_kept_for_an_element():
    """Not a number; and nothing of the input."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        drop(torch.randn(50, 20, requires_grad=True), 0.1)
    assert [(tensor.dtype, tensor.shape) for tensor in kept] == [(torch.bool, (50, 20))]


def attention_case():
    """Three sentences of 4, 1 and 3 tokens and where they stand on a grid; of the second and third only one query."""
    torch.manual_seed(0)
    packing = Packing.from_lengths(torch.tensor([4, 1, 3]), 8, 4)
    index = torch.tensor([0, 1, 2, 3, 4, 6])
    of_queries = Packing.from_lengths(torch.tensor([4, 1, 1]), 6, 4)
    key, value = torch.randn(2, 8, 2, 5, dtype=torch.double).unbind(0)
    return torch.randn(6, 2, 5, dtype=torch.double), key, value, index, (of_queries, packing)


@pytest.mark.parametrize("layout", (GridLayout, RowLayout))
def test_attention_matches_pytorch_in_expectation(layout):
    """The mean over many draws is PyTorch's attention without dropout; other sentences' keys get nothing."""
    query, key, value, index, grids = attention_case()
    mask = grids[1].mask[:, None, None] if layout is GridLayout else None
    rows = grids[1].rows
    own = rows[index][:, None] == rows  # (M, S)
    states = (states.transpose(0, 1) for states in (query, key, value))
    expected = nn.functional.scaled_dot_product_attention(*states, attn_mask=own).transpose(0, 1)
    scaling = query.shape[-1] ** -0.5
    draws = [attention_with_dropout(query, key, value, mask, layout(grids), 0.1, scaling) for _ in range(4000)]
    assert (torch.stack(draws).mean(0) - expected).abs().max() < 0.04
    exact = attention_with_dropout(query, key, value, mask, layout(grids), 1e-7, scaling)
    assert (exact - expected).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ("boolean", "bias", "none", "rows", "window"))
def test_gradients_of_attention(kind):
    """By finite differences, with the same elements dropped each time: queries, keys, values and a bias."""
    query, key, value, _, grids = attention_case()
    mask = grids[1].mask[:, None, None]
    if kind == "none":
        grids = (Packing.from_lengths(torch.tensor([3, 3]), 6, 3), Packing.from_lengths(torch.tensor([4, 4]), 8, 4))
    if kind == "window":
        grids, query = (grids[1], grids[1]), torch.randn_like(key)
    rows = {"rows": RowLayout(grids), "window": RowLayout(grids, 2)}
    layout = rows.get(kind) or GridLayout(grids)
    bias = torch.randn(1, 2, 4, 4, dtype=torch.double)
    inputs = [query, key, value, bias][: 4 if kind == "bias" else 3]

    def attention(query, key, value, bias=None):
        torch.manual_seed(1)
        added = mask if kind == "boolean" else None
        if bias is not None:
            added = bias.masked_fill(~mask, float("-inf"))
        return attention_with_dropout(query, key, value, added, layout, 0.3, query.shape[-1] ** -0.5)

    torch.autograd.gradcheck(attention, [states.requires_grad_() for states in inputs])


def test_attention_keeps_the_tokens_and_a_byte_for_a_weight():
    """And neither the padded grids nor the weights."""
    query, key, value, _, grids = attention_case()
    mask, kept = grids[1].mask[:, None, None], []
    inputs = [states.requires_grad_() for states in (query, key, value)]
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        attention_with_dropout(*inputs, mask, GridLayout(grids), 0.1, query.shape[-1] ** -0.5)
    sizes = [(tuple(tensor.shape), tensor.dtype) for tensor in kept]
    tokens = [((count, 2, 5), torch.double) for count in (6, 8, 8)]
    assert sizes == [*tokens, ((3, 1, 1, 4), torch.bool), ((3 * 2 * 4 * 4,), torch.bool)]


def test_short_rows_in_half_precision_are_computed_in_fp32():
    """To the bit, forward and backward, under autocast too; only the result is rounded."""
    *states, _, grids = attention_case()
    layout, found = RowLayout(grids), []
    for precision, autocast in ((torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        inputs = [each.bfloat16().to(precision).requires_grad_() for each in states]
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            context = attention_with_dropout(*inputs, None, layout, 0.25, inputs[0].shape[-1] ** -0.5)
        assert context.dtype == precision
        context.backward(torch.ones_like(context))
        found.append([context.detach(), *(each.grad for each in inputs)])
    for exact, half, under_autocast in zip(*found, strict=True):
        assert torch.equal(exact.bfloat16(), half)
        assert torch.equal(half, under_autocast)


def test_long_rows_stay_in_half_precision(monkeypatch):
    """Also where the others are short; a grid stays as it is."""
    *_, value, _, grids = attention_case()
    monkeypatch.setattr("modeling_cmlmcse.attention.LEAST_HALF", 4)
    precisions = [block.dtype for block in RowLayout(grids).split(value.bfloat16(), 1)]
    assert precisions == [torch.bfloat16, torch.float32, torch.float32]
    assert GridLayout(grids).split(value.bfloat16(), 1)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("layout", (GridLayout, RowLayout))
def test_attention_without_dropout_trains_in_fp32(layout):
    """To the bit, forward and backward, where the model computes in bf16; without gradients a grid stays in bf16."""
    *states, _, grids = attention_case()
    attend, found = partial(nn.functional.scaled_dot_product_attention, scale=0.5), []
    for precision in (torch.float32, torch.bfloat16):
        inputs = [each.bfloat16().to(precision).requires_grad_() for each in states]
        mask = grids[1].added_mask(precision) if layout is GridLayout else None
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            context = attention_of_blocks(attend, *inputs, mask, layout(grids))
        context.backward(torch.ones_like(context))
        found.append([context.detach(), *(each.grad for each in inputs)])
        with torch.no_grad():
            assert attention_of_blocks(attend, *inputs, mask, layout(grids)).dtype == precision
    for exact, half in zip(*found, strict=True):
        assert half.dtype == torch.bfloat16
        assert torch.equal(exact.bfloat16(), half)


def test_padding_keeps_no_tokens():
    """What stands on a grid is not kept for the way back, which needs only where it stands."""
    kept = []
    packing = Packing.from_lengths(torch.tensor([4, 1, 3]), 8, 4)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        packing.unpack(torch.randn(8, 5, requires_grad=True))
    assert [tensor.dtype for tensor in kept] == [torch.int64]


def test_only_the_call_replaces_dropout():
    """A built encoder is plain. After the call the same layers, with their hooks, draw as :class:`Dropout` does; so
    does a copy."""
    encoder = build_encoder(tiny_backbone("bert").config).eval()
    layers = [module for module in encoder.modules() if isinstance(module, nn.Dropout)]
    called, states = [], torch.ones(64, 8)
    for layer in layers:
        layer.register_forward_hook(lambda *_: called.append(1))

    def drawn(layer: nn.Module) -> torch.Tensor:
        torch.manual_seed(3)
        return layer.train()(states)

    fast, plain = drawn(Dropout(0.1)), drawn(nn.Dropout(0.1))
    assert torch.equal(drawn(layers[0]), plain)
    encoder.eval()
    use_fast_cpu_kernels(encoder)
    assert [module for module in encoder.modules() if isinstance(module, nn.Dropout)] == layers
    assert {type(layer) for layer in layers} == {nn.Dropout}
    assert not any(layer.training for layer in layers)
    for layer in (layers[0], copy.deepcopy(encoder.embeddings.dropout)):
        assert torch.equal(drawn(layer), fast)
    assert torch.equal(layers[0].eval()(states), states)
    assert len(called) == 4


def test_dropout_stays_off_until_the_last_user_ends():
    """Of a model, or of a part of it. What was off stays off; the model can be copied and pickled meanwhile."""
    model = nn.Sequential(nn.Sequential(nn.Dropout(0.5)), nn.Dropout(0.5).eval())
    modes = [module.training for module in model.modules()]
    first, second, third = (without_dropout_in_threads(each) for each in (model, model[0], model))
    for user in (first, second):
        user.__enter__()
    first.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == [True, False, False, False]
    with third:
        second.__exit__(None, None, None)
        for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert not any(module.training for module in each.modules())
    assert [module.training for module in model.modules()] == modes
