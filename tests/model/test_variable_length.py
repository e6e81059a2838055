"""Kernels for rows of different lengths: which one a GPU gets, and the check that each has to pass before it is used.

No GPU is here. Plain loops stand for the kernels, right ones and wrong ones; the real operators run on the meta device,
whose tensors have no values.
"""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modeling_cmlmcse import attention, variable_length
from modeling_cmlmcse.packing import Packing, Selection
from modeling_cmlmcse.variable_length import find_kernel, flash, memory_efficient, passes, varlen

CPU = torch.device("cpu")


class Loop(torch.autograd.Function):
    """Attention row by row, with dropout whose mask the backward pass draws again from a kept state of the generator:
    what a kernel does, or does wrong.

    Args (of `apply`): query, key, value, bounds, dropout, fault.
    """

    @staticmethod
    def forward(ctx, query, key, value, bounds, dropout, fault):
        ctx.save_for_backward(query, key, value)
        ctx.rest = bounds, dropout, fault
        ctx.state = torch.get_rng_state()
        return loop(query, key, value, *ctx.rest)

    @staticmethod
    def backward(ctx, gradient):
        with torch.random.fork_rng([]):
            if ctx.rest[-1] != "another mask backward":
                torch.set_rng_state(ctx.state)
            with torch.enable_grad():
                states = [state.detach().requires_grad_() for state in ctx.saved_tensors]
                found = torch.autograd.grad(loop(*states, *ctx.rest), states, gradient)
        if ctx.rest[-1] == "no gradient of the keys":
            found = (found[0], torch.zeros_like(found[1]), found[2])
        return (*found, None, None, None)


def loop(query: Tensor, key: Tensor, value: Tensor, bounds, dropout: float, fault: str) -> Tensor:
    """Attention row by row, with a fault or without one."""
    if fault == "one row":
        bounds = [torch.tensor([0, len(query)]), torch.tensor([0, len(key)])]
    scaling = 1.0 if fault == "no scale" else query.shape[-1] ** -0.5
    rows = []
    for (a, b), (c, d) in zip(pairwise(bounds[0].tolist()), pairwise(bounds[1].tolist()), strict=True):
        scores = torch.einsum("mhd,shd->hms", query[a:b], key[c:d]) * scaling
        weights = scores.float().softmax(dim=-1).to(query.dtype)
        if fault != "no dropout":
            inverted = dropout > 0 and fault == "dropout is what is kept"
            weights = nn.functional.dropout(weights, 1 - dropout if inverted else dropout)
        rows.append(torch.einsum("hms,shd->mhd", weights, value[c:d]))
    found = torch.cat(rows)
    return found * torch.nan if fault == "no numbers" else found


def stand_in(fault: str = ""):
    """A kernel made of :class:`Loop`."""

    def kernel(query, key, value, bounds, longest, dropout):
        if fault == "not there":
            return torch.ops.aten._there_is_no_such_operator(query)
        return Loop.apply(query, key, value, bounds, dropout, fault)

    return kernel


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    """What was warned of."""
    found: list[str] = []
    monkeypatch.setattr(variable_length.logger, "warning", found.append)
    return found


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
@pytest.mark.parametrize("size", (8, 64))
def test_a_right_kernel_passes(dtype, size, warnings):
    """Within the rounding of its precision, whatever the state of the random generator, which stays as it was."""
    for seed in range(3):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        assert passes(stand_in(), CPU, dtype, size)
        assert torch.equal(torch.get_rng_state(), state)
    assert warnings == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("one row", "another output than plain attention"),
        ("no scale", "another output than plain attention"),
        ("no numbers", "another output than plain attention"),
        ("no gradient of the keys", "another gradient of the keys than plain attention"),
        ("no dropout", "another dropout than asked for"),
        ("dropout is what is kept", "another dropout than asked for"),
        ("another mask backward", "another dropout backward than forward"),
        ("not there", "has no attribute '_there_is_no_such_operator'"),
    ],
)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_a_wrong_kernel_is_refused(fault, said, dtype, warnings):
    """With one warning, however often it is asked about."""
    kernel = stand_in(fault)
    assert [passes(kernel, CPU, dtype, 16) for _ in range(3)] == [False] * 3
    (warning,) = warnings
    assert said in warning
    assert "attention pads there" in warning


@pytest.mark.parametrize("fault", ("no dropout", "dropout is what is kept", "another mask backward"))
def test_a_kernel_that_drops_wrongly_serves_without_dropout(fault, warnings):
    """As PyTorch's memory-efficient one on an H100: scores and vectors do not pad, training does."""
    kernel = stand_in(fault)
    assert passes(kernel, CPU, torch.float32, 16, False)
    assert not passes(kernel, CPU, torch.float32, 16, True)
    assert len(warnings) == 1


@pytest.mark.parametrize("dropped", (torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu")))
def test_where_the_first_use_is(dropped, warnings):
    """The check does not depend on the context of the first use: it needs gradients in any case."""
    with dropped():
        assert passes(stand_in(), CPU, torch.float32, 16)
    assert warnings == []


@pytest.mark.parametrize("reentrant", (False, True))
def test_the_first_use_under_gradient_checkpointing(reentrant, warnings):
    """Its backward pass is not taken for that of the check."""
    kernel, calls, weight = stand_in(), [], torch.ones(3, requires_grad=True)

    def block(states: Tensor) -> Tensor:
        calls.append(passes(kernel, CPU, torch.float32, 16))
        return (states * 2).sin()

    checkpoint(block, weight, use_reentrant=reentrant).sum().backward()
    assert calls == [True, True]
    torch.testing.assert_close(weight.grad, 2 * torch.full((3,), 2.0).cos())


def query_of(dtype: torch.dtype, size: int = 64) -> SimpleNamespace:
    """What stands for queries on a GPU."""
    return SimpleNamespace(is_cuda=True, dtype=dtype, shape=(9, 12, size), device=torch.device("cuda", 0))


A100, V100 = (8, 0), (7, 0)
HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("capability", "dtype", "dropout", "expected"),
    [
        (A100, BRAIN, 0.0, varlen), (A100, HALF, 0.0, varlen), (A100, BRAIN, 0.1, flash), (A100, HALF, 0.1, flash),
        (A100, FULL, 0.0, memory_efficient), (A100, FULL, 0.1, memory_efficient),
        (V100, HALF, 0.0, memory_efficient), (V100, HALF, 0.1, memory_efficient), (V100, FULL, 0.1, memory_efficient),
        (V100, BRAIN, 0.1, None), (A100, torch.float64, 0.1, None),
    ],
)  # fmt: skip
def test_which_kernel(capability, dtype, dropout, expected, monkeypatch):
    """By generation, precision and dropout; none that did not pass its check, none with heads of odd sizes."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(variable_length, "varlen_attn", object())
    asked = []
    monkeypatch.setattr(variable_length, "passes", lambda *kind: not asked.append(kind))
    query, usual = query_of(dtype), 64**-0.5
    assert find_kernel(query, dropout, usual) is expected
    checked = [] if expected in (varlen, None) else [(expected, query.device, dtype, 64, dropout > 0)]
    assert asked == checked
    for size in (26, 264):
        assert find_kernel(query_of(dtype, size), dropout, size**-0.5) is None
    if expected is memory_efficient:
        assert find_kernel(query, dropout, usual, empty_rows=True) is None
    assert find_kernel(query, dropout, 1.0) is None
    if expected is varlen:  # PyTorch before 2.10 has no such kernel
        monkeypatch.setattr(variable_length, "varlen_attn", None)
        assert find_kernel(query, dropout, usual) is flash
    monkeypatch.setattr(variable_length, "passes", lambda *kind: False)
    assert find_kernel(query, 0.1, usual) is None
    monkeypatch.setattr(variable_length, "ALWAYS_PAD", True)
    monkeypatch.setattr(variable_length, "passes", lambda *kind: True)
    assert find_kernel(query, dropout, usual) is None


def test_a_block_that_pads(monkeypatch):
    """The switch is as it was after the block; a block that leaves it changes nothing."""
    assert not variable_length.switched_off()
    with variable_length.padded_attention():
        assert variable_length.switched_off()
    assert not variable_length.switched_off()
    monkeypatch.setattr(variable_length, "ALWAYS_PAD", True)  # the user's
    with variable_length.padded_attention(always=False):
        assert variable_length.switched_off()
    assert variable_length.switched_off()


@pytest.mark.slow
def test_compiled_code_asks_once(monkeypatch):
    """The generation of the GPU and the switch are constants of the graph, which is one."""
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: asked.append(device) or (9, 0))

    def step(states: Tensor) -> Tensor:
        newer = variable_length.generation_of(states.device) >= variable_length.AMPERE
        return states + (2 if newer and not variable_length.switched_off() else 1)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    assert [compiled(torch.zeros(3)).tolist() for _ in range(2)] == [[2.0] * 3] * 2
    assert asked == [CPU]
    torch.compiler.reset()


@pytest.mark.parametrize("counts", ([2, 0, 1], [1, 1, 1], None), ids=("none of one row", "one of each", "all"))
def test_what_the_kernel_gets(counts, monkeypatch):
    """Tokens, bounds and scale, so that it gives what padded attention gives; and whether a row may be empty."""
    torch.manual_seed(0)
    lengths = torch.tensor([3, 1, 4])
    packing = Packing.from_lengths(lengths, 8, 4)
    selection = None
    if counts is not None:
        index = torch.tensor([0, 1, 5] if 0 in counts else [0, 3, 4])
        selection = Selection(index, Packing.from_lengths(torch.tensor(counts), sum(counts), max(counts)))
    asked = []

    def find(query, dropout, scaling, empty_rows):
        asked.append((dropout, scaling, empty_rows))
        return stand_in()

    states = [torch.randn(count, 2, 8) for count in (8 if counts is None else sum(counts), 8, 8)]
    expected = attention.token_attention(*states, packing=packing, selection=selection)
    monkeypatch.setattr(attention, "find_kernel", find)
    found = attention.token_attention(*states, packing=packing, selection=selection)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    dropped = attention.token_attention(*states, packing=packing, selection=selection, dropout=0.9)
    assert not torch.allclose(dropped, expected)
    assert asked == [(p, 8**-0.5, counts == [2, 0, 1]) for p in (0.0, 0.9)]


@pytest.mark.parametrize("kernel", (flash, memory_efficient))
def test_operators_of_pytorch(kernel):
    """They take these arguments, forward and backward, whatever this release of PyTorch calls them."""
    states = [torch.empty(count, 4, 16, device="meta", requires_grad=True) for count in (5, 9, 9)]
    bounds = tuple(torch.empty(4, dtype=torch.int32, device="meta") for _ in range(2))
    output = kernel(*states, bounds, (2, 4), 0.1)
    assert output.shape == (5, 4, 16)
    assert [gradient.shape for gradient in torch.autograd.grad(output.sum(), states)] == [each.shape for each in states]
