"""Wrong inputs to every command: exit status 2, one line that names the thing, no traceback, and no file touched."""

import gzip
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from datasets import Dataset
from torch.nn import Linear
from transformers import AutoModel, BertConfig, GPT2Config, LlamaConfig, T5Config

from cmlmcse.adaptation.command import adapt
from cmlmcse.common.errors import InputError
from cmlmcse.data.views import VIEWS
from cmlmcse.evaluation.command import evaluate
from cmlmcse.hub.export import export
from cmlmcse.training.command import train
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.commands import MODULES
from support.tiny import WORDS, tiny_backbone, tiny_tokenizer

TRAIN = "quickstart --model_name_or_path backbone --train_file text.txt --data_dir data --output_dir out --use_cpu true"
STUDY = "recipe: quickstart\nseeds: [1]\nbaseline: a\nmetrics: [dev.spearman]\n"
SCORE = "export --data_dir data --tasks stsb_dev"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder of good files, and of bad ones by their names."""
    place = tmp_path_factory.mktemp("inputs")
    backbone, tokenizer = tiny_backbone("bert"), tiny_tokenizer("bert")
    for name in ("backbone", "no-tokenizer", "broken-config", "broken-weights", "other-vocabulary"):
        backbone.save_pretrained(place / name)
        if name != "no-tokenizer":
            tokenizer.save_pretrained(place / name)
    (place / "broken-config" / "config.json").write_text("{")
    (place / "broken-weights" / "model.safetensors").write_bytes(b"no weights")
    small = {
        "vocab_size": 90,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "hidden_size": 8,
        "intermediate_size": 8,
    }
    others = {"gpt2": GPT2Config(**small), "llama": LlamaConfig(**small), "bert": BertConfig(**small, is_decoder=True),
              "t5": T5Config(vocab_size=90, d_model=8, d_kv=8, d_ff=8, num_layers=1, num_heads=1)}  # fmt: skip
    for name, config in others.items():
        AutoModel.from_config(config).save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
    (place / "empty-folder").mkdir()
    (place / "ended").mkdir()
    (place / "ended" / "results.json").write_text("{}")
    model = CMLMCSEForSentenceEmbedding.from_backbone(str(place / "backbone")).eval()
    export(model, tokenizer, place / "export")
    model.save_pretrained(place / "run" / "checkpoint-1")
    tokenizer.save_pretrained(place / "run" / "checkpoint-1")
    (place / "run" / "run.json").write_text("{}")
    (place / "run" / "results.json").write_text("{}")
    lines = [" ".join(WORDS[i : i + 6]) for i in range(50)]
    (place / "text.txt").write_text("\n".join(lines) + "\n")
    (place / "empty.txt").write_text("")
    (place / "blank.txt").write_text("\n \n\t\n")
    (place / "latin1.txt").write_bytes("caf\xe9 au lait\n".encode("latin-1"))
    (place / "two.csv").write_text("a,b\none,two\nthree,four\n")
    (place / "one.jsonl").write_text('{"text": "the only document of the whole text has these words"}\n')
    (place / "strangers.txt").write_text("".join(" ".join(WORDS[i::5]) + "\n" for i in range(5)))
    (place / "titles.jsonl").write_text('{"title": "The same words", "text": "the same words."}\n' * 12)
    (place / "broken.jsonl").write_text('{"text": "one"}\n{"text": \n')
    (place / "broken.parquet").write_bytes(b"PAR1 and no more")
    (place / "broken.txt.gz").write_bytes(gzip.compress(b"one sentence\n" * 99)[:40])
    (place / "text.docx").write_bytes(b"PK")
    (place / "pairs.tsv").write_text("5.0\tone\n")
    (place / "semicolons.csv").write_text("text;n\none;1\ntwo;2\n")
    (place / "scores.tsv").write_text("high\tone\ttwo\n")
    (place / "synonyms.json").write_text("[1, 2]")
    (place / "template.md").write_text("{{ autor }}")
    for name, text in {
        "study-list.yaml": "- a", "study-no-arms.yaml": "recipe: quickstart\nseeds: [1]\n",
        "study-field.yaml": f"{STUDY}arms: {{a: {{tempp: 1}}}}\n", "study.yaml": f"{STUDY}arms: {{a: {{temp: 0.1}}}}\n",
    }.items():  # fmt: skip
        (place / name).write_text(text)
    for folder, rows in {"data": None, "few": "5.0\ta b\tc d\n", "columns": "5.0\ta b\n" * 1500}.items():
        (place / folder / "sts" / "stsb").mkdir(parents=True)
        rows = rows or "".join(f"{i % 6}.0\t{lines[i % 50]}\t{lines[(i + 1) % 50]}\n" for i in range(1500))
        (place / folder / "sts" / "stsb" / "dev.tsv").write_text(rows)
    (place / "there.npy").write_bytes(b"somebody's")
    return place


# The command, its arguments, and what the line must name: one thing or all of several.
BAD = [
    ("train", "", "RECIPE"),
    ("train", "quickstrat", "quickstart"),
    ("train", f"{TRAIN} --temp null", ["temp expects a value", "found null"]),
    ("train", f"{TRAIN} --lora_rr=null", ["lora_rr", "did you mean lora_r?"]),
    ("train", f'{TRAIN} --lr_scheduler_kwargs {{"num_decay_steps":5}}', ["linear", "num_decay_steps"]),
    ("train", f'{TRAIN} --lr_scheduler_type polynomial --lr_scheduler_kwargs {{"lr_end":0.5}}', "polynomial"),
    ("train", f"{TRAIN} --lr_scheduler_type warmup_stable_decay", ["lr_scheduler_kwargs", "num_decay_steps"]),
    ("train", "missing.yaml", "missing.yaml"),
    ("train", f"{TRAIN} --tempp 1", ("unknown field 'tempp'", "did you mean temp?")),
    ("train", f"{TRAIN} --temp hot", ("--temp", "invalid float value: 'hot'")),
    ("train", f"{TRAIN} --temp 0", "temp"),
    ("train", f"{TRAIN} --temp nan", "temp"),
    ("train", f"{TRAIN} --mlm_probability 0", "mlm_probability"),
    ("train", f"{TRAIN} --mlm_probability 1.5", ("mlm_probability must be between 0 and 1, found 1.5",)),
    ("train", f"{TRAIN} --cmlm_weight -1", "cmlm_weight"),
    ("train", f"{TRAIN} --pooling max", ("pooling must be one of", "found 'max'")),
    ("train", f"{TRAIN} --projection deep", "projection"),
    ("train", f"{TRAIN} --contrastive_loss triplet", "contrastive_loss"),
    ("train", f"{TRAIN} --fusion_init first", "fusion_init"),
    ("train", f"{TRAIN} --masked_views third", "masked_views"),
    ("train", f"{TRAIN} --cmlm_condition inside", "cmlm_condition"),
    ("train", f"{TRAIN} --fusion_layers 0", "fusion_layers"),
    ("train", f"{TRAIN} --max_seq_length 1", ("max_seq_length must be at least 3", "found 1")),
    ("train", f"{TRAIN} --max_seq_length 9999", "max_seq_length"),
    ("train", f"{TRAIN} --mini_batch_size 0", "mini_batch_size"),
    ("train", f"{TRAIN} --early_stopping_patience 0", "early_stopping_patience"),
    ("train", f"{TRAIN} --auxiliary_learning_rate -1", "auxiliary_learning_rate"),
    ("train", f"{TRAIN} --stage pretrain --auxiliary_learning_rate 1e-3", "auxiliary_learning_rate"),
    ("train", f"{TRAIN} --early_stopping_patience 3 --dev_set none", "dev_set"),
    ("train", f"{TRAIN} --augmentation substitute", ("expects synonyms", "found none", "--synonyms FILE")),
    ("train", f"{TRAIN} --augmentation substitute --synonyms missing.json", ("expects a JSON file", "missing.json")),
    (
        "train",
        f"{TRAIN} --augmentation substitute --synonyms synonyms.json",
        ("synonyms.json", "JSON object", "found a list"),
    ),
    *(
        ("train", f"{TRAIN} --views {name} --train_file one.jsonl", ("at least 2 documents", "found 1 in one.jsonl"))
        for name in VIEWS if name != "dropout"
    ),
    ("train", f"{TRAIN} --views words --train_file strangers.txt", ("that stand in several documents, found none",)),
    ("train", f"{TRAIN} --max_documents 9", ("max_documents expects views of documents or dev_set auto",)),
    ("train", f"{TRAIN} --views crops --max_documents 0", ("max_documents must be at least 1, found 0",)),
    ("train", f"{TRAIN} --cmlm_weight 1 --contrastive_weight 0 --matryoshka_dims 8", ("found contrastive_weight 0",)),
    ("train", f"{TRAIN} --max_queries 9", ("max_queries expects views search", "found views dropout; leave it out")),
    ("train", f"{TRAIN} --views search --distillation_weight 1 --teacher bm25 --contrastive_weight 0 --max_queries 0",
     ("max_queries must be at least 1, found 0",)),
    ("train", f"{TRAIN} --dev_set auto --train_file one.jsonl", ("at least 100 documents, found 1",)),
    *(
        ("train", f"{TRAIN} --views {name}", f"views {name} expects documents of at least 10 tokens, found none")
        for name in ("crops", "neighbours", "sentence")  # each line of six words is a document
    ),
    ("train", f"{TRAIN} --views title_body --train_file titles.jsonl", ("documents with a title and another text",)),
    (
        "train",
        f"{TRAIN} --mined_negatives 1 --contrastive_weight 0",
        ("mined_negatives expects a contrastive loss", "found contrastive_weight 0"),
    ),
    (
        "train",
        f"{TRAIN} --mined_negatives 1 --contrastive_weight 0 --consistency_weight 1",  # which reads two views alone
        ("mined_negatives expects a contrastive loss", "found contrastive_weight 0"),
    ),
    (
        "train",
        f"{TRAIN} --train_file two.csv --text_column a --positive_column b --negative_column b --contrastive_weight 0",
        ("negative_column expects a contrastive loss", "found contrastive_weight 0"),
    ),
    (
        "train",
        f"{TRAIN} --pooling prompt --negative_prompt_template [MASK] --contrastive_weight 0",
        ("negative_prompt_template expects a contrastive loss", "found contrastive_weight 0"),
    ),
    ("train", f"{TRAIN} --train_file missing.txt", ("missing.txt", "expected a file or a Hub dataset id")),
    # the text is looked for before a model is downloaded
    ("train", f"{TRAIN} --model_name_or_path broken-weights --train_file missing.txt", "missing.txt: expected"),
    ("train", f"{TRAIN} --train_file empty.txt", ("empty.txt", "found an empty file")),
    ("train", f"{TRAIN} --train_file blank.txt", "blank.txt"),
    ("train", f"{TRAIN} --train_file latin1.txt", ("latin1.txt", "expected UTF-8 text, found byte 0xe9 at offset 3")),
    ("train", f"{TRAIN} --train_file two.csv", "text_column"),
    ("train", f"{TRAIN} --train_file two.csv --text_column c", ("expected a column c", "a, b")),
    ("train", f"{TRAIN} --train_file broken.jsonl", "broken.jsonl"),
    ("train", f"{TRAIN} --train_file broken.parquet", "broken.parquet"),
    ("train", f"{TRAIN} --train_file broken.txt.gz", "broken.txt.gz"),
    ("train", f"{TRAIN} --train_file text.docx", "text.docx"),
    ("train", f"{TRAIN} --train_file empty-folder", "empty-folder"),
    ("train", f"{TRAIN} --model_name_or_path ./missing", "missing"),
    ("train", f"{TRAIN} --model_name_or_path empty-folder", ("empty-folder", "expected a tokenizer, found none")),
    ("train", f"{TRAIN} --model_name_or_path gpt2", ("the backbone must be one of bert", "found model_type 'gpt2'")),
    ("train", f"{TRAIN} --model_name_or_path broken-config", "broken-config"),
    ("train", f"{TRAIN} --model_name_or_path broken-weights", "broken-weights"),
    ("train", f"{TRAIN} --model_name_or_path no-tokenizer", "no-tokenizer"),
    ("train", f"{TRAIN} --model_sha256 00", ("model_sha256 00, found",)),
    ("train", f"{TRAIN} --data_dir missing --dev_set stsb", ("missing",)),
    ("train", f"{TRAIN} --data_dir few --dev_set stsb", "dev.tsv"),
    ("train", f"{TRAIN} --data_dir columns --dev_set stsb", "dev.tsv"),
    ("train", f"{TRAIN} --dev_set pairs.tsv", "pairs.tsv"),
    ("train", f"{TRAIN} --dev_set scores.tsv", ["scores.tsv, line 1", "found 'high'", "a header line is not expected"]),
    ("train", f"{TRAIN} --batch_size 8", "did you mean per_device_train_batch_size?"),
    ("train", f"{TRAIN} --lr 1", "did you mean learning_rate?"),
    ("train", f"{TRAIN} --resume_from_checkpoint true", "auto or a checkpoint's folder, found true; write auto"),
    ("train", f"{TRAIN} --train_file semicolons.csv", "expected commas between the columns, found ';' in the header"),
    ("train", f"{TRAIN} --dev_set sts99", ("dev_set must be one of stsb, lee50, auto, none, or a .tsv file, found",)),
    ("train", f"{TRAIN} --final_evaluation everything", ("final_evaluation", "everything", "sts")),
    ("train", f"{TRAIN} --output_dir run", ("found run.json of another run", "--resume_from_checkpoint auto")),
    ("train", f"{TRAIN} --output_dir text.txt", ("output_dir must be a folder that can be written", "text.txt")),
    ("train", f"{TRAIN} --output_dir ended --resume_from_checkpoint auto", ("found a finished run without any",)),
    ("train", f"{TRAIN} --resume_from_checkpoint missing", ("expects auto or a checkpoint folder", "missing")),
    ("train", f"{TRAIN} --fp16 true", ("fp16 needs a GPU, found none",)),
    ("train", f"{TRAIN} --model_name_or_path bert", ("must be an encoder", "found a bert with is_decoder true")),
    ("adapt", "", "MODEL"),
    *(
        ("adapt", f"{name} text.txt --output_dir out", (f"{name}: the model cannot be loaded", *said))
        for name, said in {
            "gpt2": ("the backbone must be one of bert", "found model_type 'gpt2'"),
            "llama": ("the backbone must be one of bert", "found model_type 'llama'"),
            "t5": ("the backbone must be one of bert", "found model_type 't5'"),
            "bert": ("the backbone must be an encoder", "found a bert with is_decoder true"),
        }.items()
    ),
    ("adapt", "empty-folder text.txt --output_dir out", ("empty-folder: expected a model", "found no config.json")),
    ("adapt", "backbone text.txt --output_dir run", ("output_dir must be new or empty", "found results.json in run")),
    ("evaluation", "", "MODEL"),
    ("evaluation", "./missing --data_dir data --tasks stsb_dev", "missing"),
    ("evaluation", "empty-folder --data_dir data --tasks stsb_dev", "empty-folder"),
    ("evaluation", "export --data_dir data --tasks everything", "everything"),
    ("evaluation", "export --data_dir missing --tasks stsb_dev", "missing"),
    ("evaluation", "export --data_dir few --tasks stsb_dev", "dev.tsv"),
    ("evaluation", "backbone --data_dir data --tasks stsb_dev", ("records no pooling", "found none; avg", "adapt")),
    ("evaluation", "backbone --data_dir data --tasks stsb_dev --pooling max", "pooling"),
    ("evaluation", f"{SCORE} --output missing/out.json", "missing"),
    ("evaluation", f"{SCORE} --table out.doc", "--table"),
    ("evaluation", f"{SCORE} --device abacus", "abacus"),
    ("encode", "", "MODEL"),
    ("encode", "export missing.txt --output out.npy", "missing.txt"),
    ("encode", "export latin1.txt --output out.npy", "latin1.txt"),
    ("encode", "export broken.parquet --output out.npy", "broken.parquet"),
    ("encode", "export text.txt --output out.csv", "out.csv"),
    ("encode", "export text.txt --output there.npy", "there.npy"),
    ("encode", "export text.txt --output missing/out.npy", "missing"),
    ("encode", "export text.txt --output out.npy --truncate_dim 0", "truncate_dim"),
    ("encode", "export text.txt --output out.npy --truncate_dim 99", "truncate_dim"),
    ("encode", "export text.txt --output out.npy --dtype fp8", "dtype"),
    ("encode", "export text.txt --output out.npy --device abacus", "abacus"),
    ("encode", "./missing text.txt --output out.npy", "missing"),
    ("push", "", "CHECKPOINT"),
    ("push", "run/checkpoint-1", "--repo_id"),
    ("push", "run/checkpoint-1 --repo_id a/b/c", "a/b/c"),
    ("push", "run/checkpoint-1 --repo_id o/../n", "--repo_id"),
    ("push", "run/checkpoint-1 --export_only", "--output_dir"),
    ("push", "run/checkpoint-1 --export_only --output_dir export", "export"),
    ("push", "run/checkpoint-1 --export_only --output_dir out", "run.json"),
    ("push", "run/checkpoint-1 --export_only --output_dir out --card_template template.md", "run.json"),
    ("push", "missing --export_only --output_dir out", "missing"),
    ("push", "backbone --export_only --output_dir out", "cmlmcse"),
    ("study", "", "STUDY"),
    ("study", "missing.yaml", "missing.yaml"),
    ("study", "study-list.yaml", "study-list.yaml"),
    ("study", "study-no-arms.yaml", "arms"),
    ("study", "study-field.yaml", "tempp"),
    ("study", "study.yaml --index 7", "--index"),
    ("study", "study.yaml --workers 0", "--workers"),
]  # fmt: skip


def state(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Each file, its size, and when and where it was written."""
    files = ((path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in files}


@pytest.mark.parametrize(
    ("command", "arguments", "named"), BAD, ids=[f"{command} {words}" for command, words, _ in BAD]
)
def test_bad_input(command, arguments, named, place, monkeypatch, capsys):
    """The line says what was expected or found, and every file is what it was."""
    before, there = state(place), set(place.rglob("*"))
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", [command, *arguments.split()])
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(MODULES[command]).main()
    said = capsys.readouterr().err
    assert stop.value.code == 2, said
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, said
    for words in (named,) if isinstance(named, str) else named:
        assert words in lines[0], lines[0]
    assert "Traceback" not in said
    left = state(place)
    assert {name: left.get(name) for name in before} == before
    added = [name for name in left if name not in before]
    assert not [name for name in added if "/tokenizer/" not in f"/{name}"], added
    for path in sorted(set(place.rglob("*")) - there, reverse=True):  # empty folders, what a tokenizer left
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: train("simcse-bert-base", train_file=["One.", "Two."]),
            "train_file: .* found a list; write the texts",
        ),
        (lambda: train("simcse-bert-base", model_name_or_path=Linear(1, 1)), "model_name_or_path: .* found a Linear"),
        (lambda: evaluate(Linear(1, 1)), "model: .* found a Linear; save the model to a folder and give its path"),
        (lambda: adapt("model", Dataset.from_dict({"text": ["One."]}), "out"), "text: .* found a Dataset; write"),
        (lambda: adapt(Linear(1, 1), "my.txt", "out"), "model: expected a path or a name, found a Linear"),
    ],
)
def test_the_thing_itself_instead_of_its_path(call: Callable[[], object], said: str) -> None:
    """Callers from Python hand over texts and models; the functions take their paths, and say so in one line."""
    with pytest.raises(InputError, match=said):
        call()
