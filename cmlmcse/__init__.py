"""The tool around the model: train, evaluate, encode, search and publish sentence encoders.

`from cmlmcse import train, adapt, evaluate` gives the functions that the commands call. Each is imported on first use,
because it imports PyTorch and transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cmlmcse.adaptation.command import adapt
    from cmlmcse.evaluation.command import evaluate
    from cmlmcse.training.command import train

__version__ = "0.1.0"  # setup.cfg reads it from here
__all__ = ["__version__", "adapt", "evaluate", "train"]

FUNCTIONS = {
    "adapt": "cmlmcse.adaptation.command",
    "evaluate": "cmlmcse.evaluation.command",
    "train": "cmlmcse.training.command",
}


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return getattr(import_module(FUNCTIONS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
