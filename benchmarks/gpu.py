"""What a GPU makes of this project, in a few minutes: training steps, encoding, and the time of an epoch.

    python benchmarks/gpu.py --output my-gpu.json
    python benchmarks/gpu.py --toy --output toy.json

Arms: transformers' padded SimCSE step, sentence-transformers' MultipleNegativesRankingLoss, and our SimCSE, CMLM-CSE
and DiffCSE (replaced-token detection, a generator of 6 layers), all of BERT-base size with fresh weights. Sizes:
batches of 64 and 512 sentences, at most 32 and 256 tokens; the lengths are drawn evenly between a half of that and all
of it. A step is forward, backward, clipping and AdamW, under bf16 autocast where the GPU computes in it, else fp16.

For each: the median of a step's milliseconds; "busy", the milliseconds that kernels and copies run, and "launches",
their number, both from PyTorch's profiler in further steps; and the peak of the allocator. What does not fit into
memory is recorded as such. Nothing is downloaded. --toy runs tiny models on a CPU: it shows that the script works, and
no speed.

--compiled measures the first size alone, and further arms: our SimCSE and CMLM-CSE compiled by torch.compile, and
SimCSE in CUDA graphs (`--torch_compile_mode reduce-overhead --pad_to_multiple_of 256` of a run). Nothing is encoded.
`--backend eager` traces the steps and compiles nothing: on a CPU compiling takes minutes.
"""

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from common import (
    device,
    interleaved,
    parser,
    print_table,
    sentence_transformer,
    synchronize,
    timed,
    tokenizer,
    write_record,
)
from step import PlainSimCSE, move, training_step
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import BertConfig

from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.filler import fill_up
from cmlmcse.data.masking import Masking
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding

SIZES = [(64, 32), (64, 256), (512, 32), (512, 256)]  # sentences, tokens
TOY_SIZES = [(4, 8), (8, 16)]
EPOCH = 1_000_000  # sentences of SimCSE's Wikipedia text
PROFILED = 2  # steps
BATCHES = 4  # of each size, in turns: no two have equally many tokens
FILLED = 256  # a multiple of it is the number of tokens in `filled`
COMPILING = 8  # steps before compiled code is measured: each batch twice, for graphs are recorded in the second
FIRST_WORD = 1996  # "the" in BERT's vocabulary; from there on its tokens are words
Loss = Callable[[dict[str, Any]], torch.Tensor]
Arm = Callable[[BertConfig], tuple[nn.Module, Loss]]


def plain(config: BertConfig) -> tuple[nn.Module, Loss]:
    """transformers' padded SimCSE step."""
    model = PlainSimCSE(config)
    return model, lambda batch: model(batch["padded"])


def mnrl(config: BertConfig) -> tuple[nn.Module, Loss]:
    """sentence-transformers' loss of (s, s) pairs, without its tokenisation."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = sentence_transformer(config)
    objective = MultipleNegativesRankingLoss(model)
    return model, lambda batch: objective([dict(batch["padded"]), dict(batch["padded"])], None)


def ours(config: BertConfig, **fields: Any) -> tuple[nn.Module, Loss]:
    """Our losses."""
    model = TrainingLosses(CMLMCSEForSentenceEmbedding(CMLMCSEConfig(backbone_config=config, **fields)))
    return model, lambda batch: model(batch["views"], batch["masked"] if model.objectives else None).loss


def diffcse(config: BertConfig) -> tuple[nn.Module, Loss]:
    """Our DiffCSE step."""
    generator = BertConfig.from_dict({**config.to_dict(), "num_hidden_layers": config.num_hidden_layers // 2})
    return ours(config, cmlm_weight=0.0, rtd_weight=0.005, projection="batchnorm", generator_config=generator)


def compiled(
    config: BertConfig, backend: str = "inductor", mode: str | None = None, **fields: Any
) -> tuple[nn.Module, Loss]:
    """Our losses, compiled; with a mode that records CUDA graphs, of batches that are filled up to few sizes."""
    model, _ = ours(config, **fields)
    assert isinstance(model, TrainingLosses)
    torch.compiler.reset()  # the arms share their code, of which PyTorch compiles eight versions and then no more
    step, views = torch.compile(model, backend=backend, mode=mode), "filled" if mode else "views"

    def loss(batch: dict[str, Any]) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        found: torch.Tensor = step(batch[views], batch["masked"] if model.objectives else None).loss
        return found

    return model, loss


ARMS: dict[str, Arm] = {
    "SimCSE, transformers, padded": plain,
    "MNRL, sentence-transformers": mnrl,
    "SimCSE, ours": partial(ours, cmlm_weight=0.0),
    "CMLM-CSE, ours": ours,
    "DiffCSE, ours": diffcse,
}
COMPILED: dict[str, Arm] = {
    "SimCSE, ours, compiled": partial(compiled, cmlm_weight=0.0),
    "SimCSE, ours, CUDA graphs": partial(compiled, mode="reduce-overhead", cmlm_weight=0.0),
    "CMLM-CSE, ours, compiled": compiled,
}


def make_examples(sentences: int, tokens: int, seed: int) -> list[Example]:
    """Sentences of random words."""
    words, generator = tokenizer(), torch.Generator().manual_seed(seed)
    lengths = torch.randint(tokens // 2, tokens + 1, (sentences,), generator=generator).tolist()
    examples = []
    for number, length in enumerate(lengths):
        inner = torch.randint(FIRST_WORD, len(words), (length - 2,), generator=generator).tolist()
        examples.append(Example([words.cls_token_id, *inner, words.sep_token_id], 0, number))
    return examples


def make_batch(sentences: int, tokens: int, seed: int) -> dict[str, Any]:
    """Sentences of random words: `padded` for the others, `views` and `masked` for ours, `filled` for CUDA graphs."""
    words, examples = tokenizer(), make_examples(sentences, tokens, seed)
    masking = Masking.of(words, 0.15)
    packed = ViewCollator(words, 0, masking)(examples)
    padded = words.pad({"input_ids": [example.tokens for example in examples]}, return_tensors="pt")
    filled = {**packed["views"], **fill_up(packed["views"], FILLED, words.mask_token_id)}
    return move({**packed, "padded": dict(padded), "filled": filled})  # type: ignore[no-any-return]


def gpu_work(events: Iterable[Any], steps: int) -> dict[str, float]:
    """Milliseconds that a step's kernels and copies run, and how many they are, from a profile's averages."""
    work = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    busy = sum(event.self_device_time_total for event in work) / 1000 / steps
    return {"busy": round(busy, 3), "launches": sum(event.count for event in work) / steps}


def measure(step: Callable[[int], Any], repetitions: int, warmup: int) -> dict[str, Any]:
    """Time, GPU work and peak memory of a step; on a CPU its time alone."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = interleaved({"step": timed(step)}, repetitions, warmup)["step"]
    found: dict[str, Any] = {"step": round(1000 * statistics.median(seconds), 3)}
    if on_gpu:
        found["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:  # with the host's events it takes minutes
            for number in range(PROFILED):
                step(number)
            synchronize()
        found |= gpu_work(profiled.key_averages(), PROFILED)
    return found


def steps(
    config: BertConfig, sizes: list[tuple[int, int]], repetitions: int, arms: dict[str, Arm]
) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Each arm's title, and what is measured of every arm's step by then: by "BATCH × TOKENS" and arm."""
    batches = {size: [make_batch(*size, seed=seed) for seed in range(BATCHES)] for size in sizes}
    found: dict[str, dict[str, Any]] = {f"{size[0]} × {size[1]}": {} for size in sizes}
    for title, build in arms.items():
        torch.manual_seed(0)
        model, loss = build(config)
        warmup = COMPILING if title in COMPILED else 3
        for size in sizes:
            step = training_step(model, lambda n, size=size, loss=loss: loss(batches[size][n % BATCHES]), half())
            try:
                measured = measure(step, repetitions, warmup)
            except torch.OutOfMemoryError:
                measured = {"out_of_memory": True}
            except Exception as error:  # what the compiler raises has no common class
                if title not in COMPILED:
                    raise
                measured = {"failed": str(error).strip().split("\n")[0]}
            found[f"{size[0]} × {size[1]}"][title] = measured
            del step
            model.zero_grad()
            torch.cuda.empty_cache()
        yield title, found


def encoding(config: BertConfig, sentences: int, repetitions: int) -> dict[str, float]:
    """Sentences a second of `encode`, ours and sentence-transformers', with 4 to 30 words each, in the precision of
    the steps."""
    texts = [" ".join(["house"] * (4 + 7 * number % 27)) for number in range(sentences)]
    dtype = half() or torch.float32
    model = CMLMCSEForSentenceEmbedding(CMLMCSEConfig(backbone_config=config, cmlm_weight=0.0)).to(device(), dtype)
    other = sentence_transformer(config).to(dtype)
    words = tokenizer()
    arms = {
        "ours": timed(lambda _: model.encode(texts, words, batch_size=128)),
        "ours, batches of its own choice": timed(lambda _: model.encode(texts, words)),
        "sentence-transformers": timed(lambda _: other.encode(texts, batch_size=128)),
    }
    seconds = interleaved(arms, repetitions, warmup=1)
    return {name: round(sentences / statistics.median(values), 1) for name, values in seconds.items()}


def half() -> torch.dtype | None:
    """The half precision that a run on this GPU would train in; None on a CPU."""
    if not torch.cuda.is_available():
        return None
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def report_steps(found: dict[str, dict[str, Any]]) -> None:
    """Print a table for each size."""
    baseline = next(iter(ARMS))
    for size, arms in found.items():
        rows = []
        for title, measured in arms.items():
            base = arms[baseline].get("step")
            ratio = f"{measured['step'] / base:.2f}" if base and "step" in measured else "–"
            numbers = [f"{measured[name]:,.1f}" if name in measured else "–" for name in ("step", "busy", "launches")]
            rows.append([title, *numbers, f"{measured['peak_mib']:,}" if "peak_mib" in measured else "–", ratio])
        header = ["arm", "step ms", "busy ms", "launches", "peak MiB", f"× {baseline}"]
        print_table(f"A step, batch × tokens: {size}", header, rows)


def main() -> None:
    """Measure, print tables, write the record."""
    usual = {"repetitions": 10, "toy": False, "compiled": False, "backend": "inductor"}
    options: argparse.ArgumentParser = parser(__doc__ or "", **usual)
    args = options.parse_args()
    if not torch.cuda.is_available() and not args.toy:
        options.error("expected a GPU, found none; --toy runs tiny models on the CPU")
    sizes, count, config = SIZES, 8192, BertConfig()
    if args.toy:
        sizes, count = TOY_SIZES, 16
        config = BertConfig(hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64)
    arms = dict(ARMS)
    if args.compiled:
        sizes = sizes[:1]
        arms |= {title: partial(build, backend=args.backend) for title, build in COMPILED.items()}
    facts: dict[str, Any] = {
        "precision": str(half() or torch.float32).removeprefix("torch."),
        "cuda": torch.version.cuda,
        "toy": args.toy,
        "repetitions": args.repetitions,
    }
    facts |= {"backend": args.backend} if args.compiled else {}
    record = partial(
        write_record,
        args.output,
        "Tiny models: no speed" if args.toy else "Training steps and encoding on a GPU, BERT-base",
    )
    for title, found in steps(config, sizes, args.repetitions, arms):
        print(f"measured: {title}", flush=True)
        record(**facts, steps=found)  # what is known, should it be stopped
    if args.compiled:
        report_steps(found)
        return
    encoded = encoding(config, count, args.repetitions)
    batch = sizes[0][0]
    milliseconds = found[f"{batch} × {sizes[0][1]}"]["CMLM-CSE, ours"].get("step", float("nan"))
    hours = milliseconds * EPOCH / batch / 3_600_000
    report_steps(found)
    print_table("Encoding", ["arm", "sentences/s"], [[name, f"{value:,.0f}"] for name, value in encoded.items()])
    print(f"\nAn epoch of cmlmcse-bert-base, from its step alone: {hours:.2f} h")
    record(**facts, steps=found, sentences_per_second=encoded, epoch_hours=hours)


if __name__ == "__main__":
    main()
