"""One call that makes a model fast on a CPU: :func:`use_fast_cpu_kernels`.

A model that was only loaded is plain: it runs PyTorch's own layers. `encode` and this project's training make this
call.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import Tensor, nn

from .dropout import dropout_forward
from .linear import has_hooks, linear, linear_after_gelu


def use_fast_cpu_kernels(model: nn.Module) -> None:
    """Make a model faster on a CPU, in place. On other devices and in compiled code nothing changes.

    Three things change, no layer is replaced, and calling it twice is the same as once:

    - every `nn.Linear` whose weights are not offloaded multiplies in oneDNN where that is faster
      (:func:`linear.linear`); its class stays `nn.Linear`, which quantisation and adapters go by;
    - every `nn.Dropout` draws other random numbers from the same generator (:func:`dropout.drop`), so a training that
      goes on after the call goes on differently;
    - a BERT block with GELU computes GELU again in the backward pass instead of keeping its output, the largest tensor
      of the block.

    Results differ from the plain model's by rounding only, except where dropout draws.
    """
    for module in model.modules():
        if hasattr(module, "_hf_hook"):  # Accelerate's, whose forward brings the weights from where they are kept
            continue
        if type(module) is nn.Dropout:
            _give(module, dropout_forward)
        elif type(module) is nn.Linear:
            _give(module, _linear_forward)
        elif _is_bert_block_with_gelu(module):
            _give(module, _feed_forward_chunk)


def _give(module: nn.Module, method: Callable[..., Any]) -> None:
    """Give a module a method in place of its class's, and a replica of it none."""
    for each in (method, _replicate):
        bound = MethodType(each, module)
        if vars(module).get(each.__name__) != bound:
            setattr(module, each.__name__, bound)


def _linear_forward(self: nn.Linear, input: Tensor) -> Tensor:
    """The `forward` of a linear layer."""
    return linear(input, self.weight, self.bias)


_linear_forward.__name__ = "forward"  # a pickled or copied layer finds its method by this name


def _is_bert_block_with_gelu(module: Any) -> bool:
    """Whether a module is a block of BERT's kind whose feed-forward part uses the exact GELU."""
    if not all(hasattr(module, name) for name in ("feed_forward_chunk", "intermediate", "output")):
        return False
    activation: Any = getattr(module.intermediate, "intermediate_act_fn", None)
    return type(activation).__name__ == "GELUActivation" and activation.act is nn.functional.gelu


def _feed_forward_chunk(self: Any, attention_output: Tensor) -> Tensor:
    """(…, H) → (…, H): the second half of a BERT block, as its method of this name, in less memory."""
    if has_hooks(self.intermediate, self.intermediate.intermediate_act_fn, self.output):  # which this would not call
        return self.output(self.intermediate(attention_output), attention_output)
    hidden = linear_after_gelu(self.intermediate.dense(attention_output), self.output.dense)
    return self.output.LayerNorm(self.output.dropout(hidden) + attention_output)


_feed_forward_chunk.__name__ = "feed_forward_chunk"


def _replicate(self: nn.Module) -> nn.Module:
    """A replica for DataParallel, as the method of this name makes it, with the methods of its class. Those of this
    file belong to the module that is replicated, and would compute with its weights."""
    replica = type(self)._replicate_for_data_parallel(self)
    for each in GIVEN:
        if getattr(vars(replica).get(each.__name__), "__func__", None) is each:
            delattr(replica, each.__name__)
    return replica


_replicate.__name__ = "_replicate_for_data_parallel"

GIVEN = (dropout_forward, _linear_forward, _feed_forward_chunk, _replicate)
