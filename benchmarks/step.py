"""Seconds of one training step at BERT-base size: this project's against common implementations.

    python benchmarks/step.py --repetitions 5 --output benchmarks/records/step.json
    python benchmarks/step.py --arms plain,simcse,cmlm --bf16

Arms:
    plain       the SimCSE step as it is usually written: transformers' BertModel, both views concatenated and padded
    simcse      our SimCSE step
    cmlm        our CMLM-CSE step, 8 lexical and 3 fusion layers, one masked sentence for each view
    cmlm-first  the same with a masked sentence for the first view only
    cmlm-spare  the arm cmlm with gradient checkpointing
    infocse     an InfoCSE-style step: padded, logits at all positions, unused logits of the extractor, 6 + 2 layers
    simcse-compiled, cmlm-compiled    ours with `torch.compile`; only on request, because compiling takes minutes
    st          the loss of sentence-transformers on (s, s) pairs with its tokenisation, in this loop (its own trainer
                is in trainers.py)

A step is forward, backward, clipping and AdamW. Batches are already on the device, except for `st`. Each round has new
sentences, the same for all arms. The first --warmup rounds do not count. Each arm takes turns with the first of --arms,
step by step, in two processes; its ratio is to those steps of the first arm. --bf16 runs forward passes under autocast.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from common import (
    LENGTH,
    beside_the_first,
    choose,
    device,
    read_batches,
    report,
    sentence_transformer,
    text_parser,
    timed,
    tokenizer,
)
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, BertForMaskedLM, BertModel, PretrainedConfig

from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels

Loss = Callable[[int], Tensor]  # of the round's batch
Builder = Callable[["Batches"], tuple[nn.Module, Loss]]


class Batches:
    """The same sentences for every arm, one batch per round: `lines` of text and `padded` tensors."""

    def __init__(self, lines: list[list[str]]) -> None:
        self.lines, self.tokenizer = lines, tokenizer()
        self.padded: list[dict[str, Tensor]] = [
            dict(self.tokenizer(batch, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"))
            for batch in lines
        ]
        self.tokens = sum(int(batch["attention_mask"].sum()) for batch in self.padded)
        self.fill = self.tokens / sum(batch["attention_mask"].numel() for batch in self.padded)
        self.padded = [move(batch) for batch in self.padded]

    def packed(self, masked_views: int) -> list[dict[str, Any]]:
        """The batches as our collator makes them; no `masked` part for 0 views."""
        tok = self.tokenizer
        masking = Masking.of(tok, 0.15)
        collator = ViewCollator(tok, 0, masking if masked_views else None, masked_views=masked_views)
        tokens = [tok(batch, truncation=True, max_length=LENGTH)["input_ids"] for batch in self.lines]
        return [move(collator([Example(t, 0, row) for row, t in enumerate(batch)])) for batch in tokens]


def move(value: Any) -> Any:
    """Tensors, also inside dictionaries, on the device; other values as they are."""
    if isinstance(value, dict):
        return {name: move(item) for name, item in value.items()}
    return value.to(device()) if isinstance(value, Tensor) else value


def contrast(h: Tensor) -> Tensor:
    """Plain InfoNCE of two concatenated views."""
    first, second = nn.functional.normalize(h, dim=-1).chunk(2)
    return nn.functional.cross_entropy(first @ second.T / 0.05, torch.arange(len(first), device=h.device))


class PlainSimCSE(nn.Module):
    """The SimCSE step as it is usually written."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        unused = {"add_pooling_layer": False} if config.model_type == "bert" else {}
        self.encoder = AutoModel.from_config(config, **unused)
        self.head = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        both = {name: torch.cat([tensor, tensor]) for name, tensor in batch.items()}
        return contrast(self.head(self.encoder(**both).last_hidden_state[:, 0]).tanh())


class InfoCSEStyle(nn.Module):
    """The InfoCSE step as in its paper: 6 frozen layers, 2 fusion layers, logits at all positions."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.head = nn.Sequential(
            nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False), nn.BatchNorm1d(2 * config.hidden_size),
            nn.ReLU(), nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False),
            nn.BatchNorm1d(config.hidden_size, affine=False),
        )  # fmt: skip
        self.extractor = BertForMaskedLM(config).requires_grad_(False)
        fusion = BertForMaskedLM(BertConfig(num_hidden_layers=2))
        self.fusion, self.lm_head = fusion.bert.encoder, fusion.cls

    def forward(self, batch: dict[str, Tensor], masked: Tensor, labels: Tensor) -> Tensor:
        both = {name: torch.cat([tensor, tensor]) for name, tensor in batch.items()}
        h = self.encoder(**both).last_hidden_state[:, 0]
        with torch.no_grad():  # the whole masked-language model runs; its logits are discarded
            states = self.extractor(
                input_ids=masked, attention_mask=both["attention_mask"], output_hidden_states=True
            ).hidden_states[6]
        states = torch.cat([h[:, None], states[:, 1:]], dim=1)
        mask = both["attention_mask"][:, None, None, :].bool()
        logits = self.lm_head(self.fusion(states, attention_mask=mask).last_hidden_state)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return contrast(self.head(h)) + 0.005 * loss


def plain(batches: Batches) -> tuple[nn.Module, Loss]:
    """The plain padded SimCSE arm."""
    model = PlainSimCSE(BertConfig())
    return model, lambda number: model(batches.padded[number])


def infocse(batches: Batches) -> tuple[nn.Module, Loss]:
    """The InfoCSE-style arm."""
    model = InfoCSEStyle(BertConfig())
    both = [torch.cat([batch["input_ids"]] * 2) for batch in batches.padded]
    labels = [ids.masked_fill(torch.rand(ids.shape, device=ids.device) > 0.15, -100) for ids in both]
    return model, lambda number: model(batches.padded[number], both[number], labels[number])


def our_model(**fields: Any) -> CMLMCSEForSentenceEmbedding:
    """A fresh model of BERT-base size."""
    return CMLMCSEForSentenceEmbedding(CMLMCSEConfig(backbone_config=BertConfig(), **fields))


def our_losses(**fields: Any) -> TrainingLosses:
    """A fresh model of BERT-base size with its losses, as the trainer runs it."""
    model = our_model(**fields)
    use_fast_cpu_kernels(model)
    return TrainingLosses(model)


def simcse(batches: Batches) -> tuple[nn.Module, Loss]:
    """Our SimCSE arm."""
    model, packed = our_losses(cmlm_weight=0.0), batches.packed(0)
    return model, lambda number: model(**packed[number]).loss


def cmlm(batches: Batches, masked_views: str = "both", checkpointing: bool = False) -> tuple[nn.Module, Loss]:
    """Our CMLM-CSE arm."""
    model = our_losses(lexical_layers=8, fusion_layers=3, masked_views=masked_views)
    if checkpointing:
        model.gradient_checkpointing_enable()
    packed = batches.packed(2 if masked_views == "both" else 1)
    return model, lambda number: model(**packed[number]).loss


def compiled(build: Builder) -> Builder:
    """A compiled arm. Its first two batches are slow: the second length makes torch compile for dynamic sizes."""

    def build_compiled(batches: Batches) -> tuple[nn.Module, Loss]:
        model, loss = build(batches)
        model.compile()  # in place: the arm's loss calls the compiled forward
        return model, loss

    return build_compiled


def mnrl(batches: Batches) -> tuple[nn.Module, Loss]:
    """sentence-transformers' loss. Each step tokenises its views, as the collator of its trainer does."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = sentence_transformer(BertConfig())
    objective = MultipleNegativesRankingLoss(model)
    return model, lambda number: objective([move(model.preprocess(batches.lines[number])) for _ in range(2)], None)


class Arm(NamedTuple):
    """An arm's title in the table, and what builds its model and loss."""

    title: str
    build: Builder


ARMS = {
    "plain": Arm("SimCSE, plain padded", plain),
    "simcse": Arm("SimCSE, ours", simcse),
    "cmlm": Arm("CMLM-CSE, ours", cmlm),
    "cmlm-first": Arm("CMLM-CSE, ours, one masked view", lambda batches: cmlm(batches, "first")),
    "cmlm-spare": Arm("CMLM-CSE, ours, gradient checkpointing", lambda batches: cmlm(batches, checkpointing=True)),
    "simcse-compiled": Arm("SimCSE, ours, compiled", compiled(simcse)),
    "cmlm-compiled": Arm("CMLM-CSE, ours, compiled", compiled(cmlm)),
    "infocse": Arm("InfoCSE-style, padded", infocse),
    "st": Arm("sentence-transformers MNRL", mnrl),
}


def training_step(model: nn.Module, loss: Loss, half: torch.dtype | None = None) -> Callable[[int], None]:
    """One optimizer step as a function of the round: forward, backward, clipping, AdamW. Equal for all arms; under
    autocast to a `half` precision if there is one."""
    model.to(device()).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=3e-5, fused=True)

    def step(number: int) -> None:
        with torch.autocast(device(), half or torch.bfloat16, enabled=half is not None):
            value = loss(number)
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def build_arm(lines: list[list[str]], bf16: bool, title: str) -> Callable[[int], float]:
    """The arm with this title, as a function: number of the round → seconds of its step."""
    build = next(arm.build for arm in ARMS.values() if arm.title == title)
    torch.manual_seed(0)
    return timed(training_step(*build(Batches(lines)), half=torch.bfloat16 if bf16 else None))


def main() -> None:
    """Time each arm in turns with the first."""
    usual = ",".join(key for key in ARMS if not key.endswith("-compiled"))
    options = text_parser(__doc__ or "", batch=32, repetitions=5, warmup=3, arms=usual, bf16=False)
    args = options.parse_args()
    titles = [ARMS[key].title for key in choose(options, args.arms, list(ARMS))]
    if len(titles) < 2:
        options.error(f"--arms expects two or more, to compare the others with the first, found {args.arms}")
    rounds = args.warmup + args.repetitions
    lines = read_batches(args.text, args.batch, rounds)
    batches = Batches(lines)
    tokens = 2 * batches.tokens / rounds
    print(f"{tokens:.0f} tokens a step in both views; fill of the padded batches {batches.fill:.3f}")
    seconds, beside = beside_the_first(partial(build_arm, lines, args.bf16), titles, args.repetitions, args.warmup)
    precision = "bf16 autocast" if args.bf16 else "fp32"
    report(
        f"One training step, BERT-base, batch {args.batch}, at most {LENGTH} tokens, {precision}",
        seconds,
        titles[0],
        args.output,
        amounts={"sentences": args.batch, "tokens": tokens},
        beside=beside,
        fill=batches.fill,
        warmup=args.warmup,
    )


if __name__ == "__main__":
    main()
