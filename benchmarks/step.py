"""Seconds of one training step at BERT-base size: ours against what people run today, side by side.

    python benchmarks/step.py --repetitions 5 --output benchmarks/step.json

Arms: the plain SimCSE step (transformers' BertModel, both views concatenated and padded, full last layer); our SimCSE
and CMLM-CSE steps; an InfoCSE-style step (padded, logits at all positions, the extractor's own discarded head, 6 + 2
layers); a step of sentence-transformers' MultipleNegativesRankingLoss on (s, s) pairs with its own tokenisation.
"""

from collections.abc import Callable
from typing import Any

import torch
from common import interleaved, parser, report, tokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertModel

from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.training.data import Example, ViewCollator
from modeling_cmlmcse.training.masking import Masking

LENGTH = 32


def optimizer_step(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Clip, step and clear, the same for every arm."""
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()


def trainer_of(model: nn.Module, loss: Callable[[int], Tensor]) -> Callable[[int], None]:
    """One training step of a model, as a function of the repetition."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=3e-5, fused=True)
    model.train()

    def step(repetition: int) -> None:
        loss(repetition).backward()
        optimizer_step(parameters, optimizer)

    return step


def contrast(h: Tensor) -> Tensor:
    """Plain InfoNCE of two concatenated views."""
    first, second = nn.functional.normalize(h, dim=-1).chunk(2)
    return nn.functional.cross_entropy(first @ second.T / 0.05, torch.arange(len(first), device=h.device))


class PlainSimCSE(nn.Module):
    """The SimCSE step as it is usually written."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        both = {name: torch.cat([tensor, tensor]) for name, tensor in batch.items()}
        return contrast(self.head(self.encoder(**both).last_hidden_state[:, 0]).tanh())


class InfoCSEStyle(nn.Module):
    """The InfoCSE step as its reference describes it: 6 frozen layers, 2 fusion layers, logits everywhere."""

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


def sentence_transformers_arm(config: BertConfig, lines: list[list[str]], device: str) -> Callable[[int], None]:
    """A step of sentence-transformers' loss, tokenisation included as in its trainer's collator."""
    import tempfile

    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer

    with tempfile.TemporaryDirectory() as folder:
        BertModel(config).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=LENGTH)
    model = SentenceTransformer(modules=[transformer, Pooling(config.hidden_size, pooling_mode="cls")], device=device)
    objective = MultipleNegativesRankingLoss(model)

    def loss(repetition: int) -> Tensor:
        features = [model.preprocess(lines[repetition]) for _ in range(2)]
        features = [{k: v.to(device) if isinstance(v, Tensor) else v for k, v in f.items()} for f in features]
        return objective(features, None)

    return trainer_of(model, loss)


def build_arms(args: Any, device: str) -> dict[str, Callable[[int], None]]:
    """Every arm, on the same sentences."""
    config, tok = BertConfig(), tokenizer()
    with args.text.open(encoding="utf-8") as file:
        texts = [next(file).strip() for _ in range(args.batch * (args.repetitions + 1))]
    lines = [texts[i : i + args.batch] for i in range(0, len(texts), args.batch)]
    padded = [
        tok(batch, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt").to(device) for batch in lines
    ]
    masking = Masking(0.15, tok.mask_token_id, len(tok), frozenset(tok.all_special_ids))
    collator = ViewCollator(tok, 0, masking)
    tokens = [tok(batch, truncation=True, max_length=LENGTH)["input_ids"] for batch in lines]
    packed = [collator([Example(t, 0, row) for row, t in enumerate(batch)]) for batch in tokens]
    labels = []
    for batch in padded:
        ids = torch.cat([batch["input_ids"]] * 2)
        labels.append(ids.masked_fill((torch.rand(ids.shape, device=device) > 0.15), -100))

    def ours(**fields: Any) -> Callable[[int], None]:
        model = CMLMCSEForSentenceEmbedding(CMLMCSEConfig(backbone_config=BertConfig(), **fields)).to(device)
        keys = ("views", "masked") if model.auxiliary else ("views",)
        batches = [{k: {n: move(v, device) for n, v in b[k].items()} for k in keys} for b in packed]
        return trainer_of(model, lambda repetition: model(**batches[repetition]).loss)

    def plain() -> Callable[[int], None]:
        model = PlainSimCSE(config).to(device)
        return trainer_of(model, lambda repetition: model(dict(padded[repetition])))

    def infocse() -> Callable[[int], None]:
        model = InfoCSEStyle(config).to(device)
        return trainer_of(
            model,
            lambda repetition: model(
                dict(padded[repetition]), torch.cat([padded[repetition]["input_ids"]] * 2), labels[repetition]
            ),
        )

    arms = {
        "SimCSE, plain padded": plain,
        "SimCSE, ours": lambda: ours(cmlm_weight=0.0),
        "CMLM-CSE, ours": lambda: ours(lexical_layers=8, fusion_layers=3),
        "InfoCSE-style, padded": infocse,
        "sentence-transformers MNRL": lambda: sentence_transformers_arm(config, lines, device),
    }
    chosen = args.arms.split(",") if args.arms else list(arms)
    fill = sum(int(b["attention_mask"].sum()) for b in padded) / sum(b["attention_mask"].numel() for b in padded)
    print(f"fill of the padded batches: {fill:.3f}")
    return {name: build() for name, build in arms.items() if name in chosen}


def move(value: Any, device: str) -> Any:
    """A tensor on the device; other values as they are."""
    return value.to(device) if isinstance(value, Tensor) else value


def main() -> None:
    """Time every arm, interleaved; or the peak memory of one."""
    options = parser(__doc__ or "", batch=32, repetitions=5, arms="")
    args = options.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    seconds = interleaved(build_arms(args, device), args.repetitions)
    baseline = next(iter(seconds))
    title = f"One training step, BERT-base, batch {args.batch}, at most {LENGTH} tokens"
    report(title, seconds, baseline, args.output, batch=args.batch)


if __name__ == "__main__":
    main()
