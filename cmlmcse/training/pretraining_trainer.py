"""The trainer of stage `pretrain`. It has no contrast: it logs and evaluates the losses of the masked words."""

import math
from collections import Counter
from typing import Any

import torch

from cmlmcse.common.distributed import sums_over_processes
from cmlmcse.common.errors import InputError
from cmlmcse.data.batches import TrainingSentences
from cmlmcse.data.pretraining_text import MaskedCollator
from modeling_cmlmcse.distributed import processes, rank

from .trainer import LossTrainer


class PretrainingTrainer(LossTrainer):
    """Trainer that evaluates the pre-training losses on a development set, with the same masks at every evaluation.

    Raises:
        InputError: sharded weights.
    """

    def __init__(self, *, dev_collator: MaskedCollator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise InputError("stage pretrain expects whole weights on every device, found FSDP or DeepSpeed; use DDP")
        self.dev_collator = dev_collator

    @torch.no_grad()
    def dev_metrics(self) -> dict[str, float]:
        """`mlm_loss`, `perplexity`, `mlm_accuracy`, and the auxiliary network's loss and accuracy if there is one.

        They are means over all predictions in the development set. The processes share the work.
        """
        dev, size = self.eval_dataset, self.args.eval_batch_size
        assert isinstance(dev, TrainingSentences)
        model = self.accelerator.unwrap_model(self.model)
        mode = model.training
        model.eval()
        sums: Counter[str] = Counter()
        for start in range(rank() * size, len(dev), size * processes()):
            rows = list(range(start, min(start + size, len(dev))))
            inputs: Any = self._prepare_inputs(self.dev_collator(dev.__getitems__(rows)))
            masked = inputs["masked"]
            with self.accelerator.autocast():
                found = model.losses(masked)
            terms = model.terms(masked)
            for name, each in found.items():
                sums.update({f"{name} count": terms[name], f"{name}_loss": float(each.total)})
                sums.update({f"{name}_{measure}": float(value) for measure, value in each.sums.items()})
        model.train(mode)
        totals = sums_over_processes(dict(sums))
        counts = {name: max(totals.pop(f"{name} count", 0), 1) for name in ("mlm", "auxiliary")}
        means = {name: total / counts[name.split("_")[0]] for name, total in totals.items()}
        return {**means, "perplexity": math.exp(min(means["mlm_loss"], 100.0))}
