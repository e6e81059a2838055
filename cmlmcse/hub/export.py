"""Export: a folder that loads as a plain backbone, as this project's model, and as a SentenceTransformer.

The weights are only the encoder's, with the plain backbone's own names. config.json is the plain backbone's with an
`auto_map` and a few fields of ours (`CMLMCSEConfig.to_export_dict`). So the same folder loads

- in `AutoModel.from_pretrained(folder, trust_remote_code=True)`; its `pooler_output` is the sentence embedding,
- in `SentenceTransformer(folder)`, which reads the pooling from modules.json and runs no code of the folder.

An export with `trust_free` holds no code. `verify` loads a folder in a fresh process, without this project, and
compares its embeddings with the model's.
"""

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME

import modeling_cmlmcse
from cmlmcse.common.errors import InputError, as_input_error
from cmlmcse.common.files import new_model_folder
from cmlmcse.data.lengths import forget_lengths
from cmlmcse.models.folders import COSINE
from modeling_cmlmcse.configuration_cmlmcse import HEAD_WEIGHTS, WEIGHTS_WITH_HEAD
from modeling_cmlmcse.families import family_of
from modeling_cmlmcse.modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.pooling import POOLINGS
from modeling_cmlmcse.sentence_transformers_files import write_json, write_sentence_transformers

AUTO_MAP = {
    "AutoConfig": "configuration_cmlmcse.CMLMCSEConfig",
    "AutoModel": "modeling_cmlmcse.CMLMCSEForSentenceEmbedding",
}
TOLERANCE = 1e-5  # the largest allowed difference between two ways to compute the same embedding
SENTENCES = [  # the last is longer than any model's limit: all ways must cut it at the same token
    "Yes.",
    "A man is playing a guitar.",
    "The committee met on Tuesday to discuss the budget, but it could not agree on anything before lunch.",
    " ".join(["a quick brown fox jumps over the lazy dog"] * 60),
]
WAYS = ("encode", "encode_query", "encode_document")  # the last two where the model has prompts
LOAD_SCRIPT = """
import json, sys
sys.modules["modeling_cmlmcse"] = sys.modules["cmlmcse"] = None  # not importable, even where they are installed
import numpy as np, torch
from transformers import AutoModel, AutoTokenizer
folder, out, (with_code, with_sentence_transformers, ways), sentences = *sys.argv[1:3], *map(json.loads, sys.argv[3:])
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder, trust_remote_code=with_code, dtype=torch.float32).eval()
tokens = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
with torch.no_grad():
    output = model(**tokens)
if with_code:
    found = {"AutoModel": output.pooler_output.numpy()}
    found |= {f"AutoModel.{way}": getattr(model, way)(sentences) for way in ways}
else:
    found = {"AutoModel, tokens": (output.last_hidden_state * tokens["attention_mask"][..., None]).numpy()}
if with_sentence_transformers:
    from sentence_transformers import SentenceTransformer
    modules = json.load(open(folder + "/modules.json"))
    plain = all(module["type"].startswith("sentence_transformers.") for module in modules)
    for trust in (False,) * plain + (True,) * with_code:
        name = "SentenceTransformer" + ", with code" * trust
        options = {"model_kwargs": {"dtype": torch.float32}, "trust_remote_code": trust}
        model = SentenceTransformer(folder, device="cpu", **options)
        found |= {f"{name}.{way}": getattr(model, way)(sentences) for way in ways}
np.savez(out, **found)
"""


def export(
    model: CMLMCSEForSentenceEmbedding,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    card: str = "",
    trust_free: bool = False,
    fp16: bool = False,
    similarity: str = COSINE,
) -> Path:
    """Write the Hub folder of a trained model: complete or absent.

    Args:
        model: the trained model; its auxiliary network is not exported.
        tokenizer: its tokenizer.
        folder: a path that does not exist yet.
        card: text of README.md.
        trust_free: leave out the code and the `auto_map`.
        fp16: store the weights in fp16. The configuration still says float32: they load and compute as fp32.
        similarity: sentence-transformers' name of the function that compares the embeddings.

    Raises:
        InputError: the folder exists; or no code for a pooling that needs it; or fp16 cannot hold a weight.
    """
    folder = Path(folder)
    if trust_free and POOLINGS[model.config.pooling].reads_mask:
        raise InputError(
            "pooling prompt expects an export with code, because sentence-transformers has no pooling that reads the "
            "mask token, found trust_free; leave it out"
        )
    if folder.exists():
        raise InputError(f"the export folder must not exist yet, found {folder}; choose another or remove it")
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.backbone.state_dict().items()}
    weights, head = weights | plain_pooler(model), head_of(model)
    if fp16:
        with as_input_error():
            weights, head = as_fp16(weights), as_fp16(head)
    with new_model_folder(folder) as aside:
        save_file(weights, aside / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})
        tokenizer.model_max_length = min(tokenizer.model_max_length, model.max_positions)
        forget_lengths(tokenizer)
        tokenizer.save_pretrained(aside)
        write_tokenizer_config(tokenizer, aside / "tokenizer_config.json")
        write_config(model, aside, trust_free)
        if not trust_free:
            copy_code(aside)
            write_head(head, weights, aside)
        write_sentence_transformers(model.config, head, aside, similarity)
        length = {"max_seq_length": tokenizer.model_max_length, "do_lower_case": False}
        write_json(aside / "sentence_bert_config.json", length)
        (aside / "README.md").write_text(card, encoding="utf-8")
    return folder


def as_fp16(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights in fp16; whole numbers stay what they are.

    Raises:
        ValueError: fp16 cannot hold a value.
    """
    halves = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    for name, tensor in halves.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"expected weights that fp16 can hold, found larger ones in {name}; keep fp32")
    return halves


@torch.no_grad()
def round_to_fp16(model: torch.nn.Module) -> None:
    """Round the weights of a model to fp16, in place. It still computes in its own precision.

    `model.half().float()` would also round the frequencies of rotary positions, which no file stores.
    """
    for tensor in model.parameters():
        tensor.copy_(tensor.half())


def head_of(model: CMLMCSEForSentenceEmbedding) -> dict[str, torch.Tensor]:
    """The weights of the head that the embedding goes through; none with a pooling that keeps none."""
    if not POOLINGS[model.config.pooling].keeps_head:
        return {}
    head = model.projection.state_dict()
    return {f"projection.{name}": tensor.detach().cpu().contiguous() for name, tensor in head.items()}


def write_head(head: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """A file of the head alone, and a list of all weights, which our configuration names.

    In `model.safetensors` plain transformers would report the head as weights that it did not expect.
    """
    if not head:
        return
    save_file(dict(head), folder / HEAD_WEIGHTS, metadata={"format": "pt"})
    files = {**dict.fromkeys(weights, SAFE_WEIGHTS_NAME), **dict.fromkeys(head, HEAD_WEIGHTS)}
    size = sum(tensor.nbytes for tensor in (*weights.values(), *head.values()))
    write_json(folder / WEIGHTS_WITH_HEAD, {"metadata": {"total_size": size}, "weight_map": files})


def plain_pooler(model: CMLMCSEForSentenceEmbedding) -> dict[str, torch.Tensor]:
    """Weights for the pooler that a plain BertModel or RobertaModel has and this model has not.

    Without them plain transformers would fill the pooler with random numbers and print an alarm. If the pooling keeps
    its head, which is Linear and Tanh, the head is the pooler. Otherwise all is zero, so that nobody takes the plain
    model's `pooler_output` for an embedding.
    """
    if "add_pooling_layer" not in family_of(model.backbone.config).options:
        return {}
    if POOLINGS[model.config.pooling].keeps_head:
        head = model.projection.dense.state_dict()
        return {f"pooler.dense.{name}": tensor.detach().cpu().clone() for name, tensor in head.items()}
    size = model.config.hidden_size
    return {
        "pooler.dense.weight": torch.zeros(size, size, dtype=model.dtype),
        "pooler.dense.bias": torch.zeros(size, dtype=model.dtype),
    }


def write_tokenizer_config(tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Rewrite tokenizer_config.json for transformers 4 and 5: names that both read, and the list of the tokenizer's
    outputs, because the defaults of the two versions differ."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    if fields["tokenizer_class"] == "TokenizersBackend":
        fields["tokenizer_class"] = "PreTrainedTokenizerFast"
    if "extra_special_tokens" in fields:
        fields["additional_special_tokens"] = fields.pop("extra_special_tokens")
    write_json(path, {**fields, "model_input_names": tokenizer.model_input_names})


def write_config(model: CMLMCSEForSentenceEmbedding, folder: Path, trust_free: bool) -> None:
    """config.json of the plain backbone, with an `auto_map` to this project's classes unless `trust_free`."""
    fields = model.config.to_export_dict()
    fields["architectures"] = [type(model.backbone).__name__]
    fields["dtype"] = str(model.dtype).removeprefix("torch.")
    fields["output_hidden_states"] = POOLINGS[model.config.pooling].layers != (
        -1,
    )  # sentence-transformers' layer pooling reads them
    fields |= modernbert_fields(fields)
    for name in ("_name_or_path", "transformers_version") + (("cmlmcse",) if trust_free else ()):
        fields.pop(name, None)
    write_json(folder / "config.json", fields if trust_free else {**fields, "auto_map": AUTO_MAP})


def modernbert_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """ModernBERT's fields as transformers 4 and text-embeddings-inference name them; none of another kind."""
    if not (rotary := fields.get("rope_parameters")):
        return {}
    whole = [place for place, kind in enumerate(fields["layer_types"]) if kind == "full_attention"]
    every = whole[1] - whole[0] if len(whole) > 1 else fields["num_hidden_layers"]  # layer 0 is a whole one
    return {
        "global_rope_theta": rotary["full_attention"]["rope_theta"],
        "local_rope_theta": rotary["sliding_attention"]["rope_theta"],
        "global_attn_every_n_layers": every,
    }


def copy_code(folder: Path) -> None:
    """Copy the model's code: every Python file of its package."""
    for file in Path(modeling_cmlmcse.__file__).parent.glob("*.py"):
        shutil.copy(file, folder / file.name)


def verify(model: CMLMCSEForSentenceEmbedding, tokenizer: PreTrainedTokenizerBase, folder: Path) -> dict[str, float]:
    """Load an exported folder in a fresh process, without this project, and compare it with the model, in float32.

    Returns:
        way of loading → largest difference. The ways are AutoModel and, if installed, SentenceTransformer. The
        difference is absolute, or relative to the largest coordinate if that is above 1, because float32's own error
        grows with it.

    Raises:
        InputError: the folder does not load, or a difference is above `TOLERANCE`.
    """
    with_code = "auto_map" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    ways = WAYS if model.config.prompts else WAYS[:1]
    found = load_fresh(folder, with_code, find_spec("sentence_transformers") is not None, ways)
    if model.dtype != torch.float32 or model.device.type != "cpu":
        model = copy.deepcopy(model).cpu().float()
    with torch.no_grad():
        tokens = tokenizer(SENTENCES, padding=True, truncation=True, return_tensors="pt")
        hidden = model(**tokens).last_hidden_state  # (N, T, H)
    expected = {way: getattr(model, way)(SENTENCES, tokenizer) for way in ways}  # (N, H) each
    expected |= {"AutoModel": model.encode(SENTENCES, tokenizer, prompt=""), "AutoModel, tokens": hidden.numpy()}
    differences = {
        name: largest_difference(array, expected[name if name in expected else name.split(".")[-1]])
        for name, array in found.items()
    }
    name = max(differences, key=differences.__getitem__)
    if differences[name] > TOLERANCE:
        raise InputError(
            f"{name} gives other embeddings than the exported model: expected a difference of at most {TOLERANCE:.0e}, "
            f"found {differences[name]:.1e}; nothing was published, report this checkpoint"
        )
    return differences


def largest_difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of two arrays; infinite if their shapes differ or a value is NaN."""
    if found.shape != expected.shape:
        return float("inf")
    return float(np.nan_to_num(np.abs(found - expected) / max(1.0, np.abs(expected).max()), nan=np.inf).max())


def load_fresh(
    folder: Path, with_code: bool, with_sentence_transformers: bool, ways: Sequence[str] = WAYS[:1]
) -> dict[str, np.ndarray]:
    """The arrays that a fresh process computes for `SENTENCES` with an exported folder.

    The process has no Hub token, no network and no module cache. `ways` are the methods that encode.

    Raises:
        InputError: the process failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "out.npz"
        arguments = [
            str(folder.resolve()),
            str(out),
            *map(json.dumps, ((with_code, with_sentence_transformers, ways), SENTENCES)),
        ]
        done = subprocess.run(
            [sys.executable, "-c", LOAD_SCRIPT, *arguments],
            env=clean_environment(temporary), cwd=temporary, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise InputError(f"the export does not load in a fresh process, nothing was published: {reason[:300]}")
        with np.load(out) as found:
            return dict(found)


def clean_environment(temporary: str) -> dict[str, str]:
    """The environment variables of this process without tokens, this checkout, a GPU and the network."""
    checkout = Path(__file__).resolve().parents[2]
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != checkout]
    kept = {name: value for name, value in os.environ.items() if not name.upper().endswith("TOKEN")}
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HF_MODULES_CACHE": f"{temporary}/modules"}
    return {**kept, **offline, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
