"""Export: a folder that loads as a plain backbone, as this project's model, and as a SentenceTransformer.

The weights are the encoder's alone, under the plain backbone's own names, and config.json is the plain backbone's
with an `auto_map` and a few fields of ours (`CMLMCSEConfig.to_export_dict`). So the same folder loads

- in `AutoModel.from_pretrained(folder, trust_remote_code=True)` with `pooler_output` = the sentence embedding,
- in `SentenceTransformer(folder)`, which reads the pooling from modules.json and needs no trust,
- and, exported with `trust_free`, without any code in it at all.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_relative_import_files

from . import modeling_cmlmcse
from .errors import InputError
from .modeling_cmlmcse import CMLMCSEForSentenceEmbedding

AUTO_MAP = {
    "AutoConfig": "configuration_cmlmcse.CMLMCSEConfig",
    "AutoModel": "modeling_cmlmcse.CMLMCSEForSentenceEmbedding",
}


def export(
    model: CMLMCSEForSentenceEmbedding,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    card: str = "",
    trust_free: bool = False,
) -> Path:
    """Write the Hub folder of a trained model: written aside, then renamed, so that it is whole or not there.

    Args:
        model: the trained model; its auxiliary network stays behind.
        tokenizer: its tokenizer.
        folder: a path that does not exist yet.
        card: text of README.md.
        trust_free: leave out the code and the `auto_map`.

    Raises:
        InputError: the folder exists.
    """
    folder = Path(folder)
    if folder.exists():
        raise InputError(f"the export folder must not exist yet, found {folder}; choose another or remove it")
    aside = folder.with_name(f".{folder.name}.incomplete")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.backbone.state_dict().items()}
    if model.config.pooling == "cls":
        weights |= {f"projection.{name}": tensor.cpu() for name, tensor in model.projection.state_dict().items()}
    save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
    tokenizer.model_max_length = min(tokenizer.model_max_length, model.max_positions)
    tokenizer.save_pretrained(aside)
    write_config(model, aside, trust_free)
    if not trust_free:
        copy_code(aside)
    write_sentence_transformers(model, tokenizer, aside)
    (aside / "README.md").write_text(card, encoding="utf-8")
    aside.rename(folder)
    return folder


def write_json(path: Path, content: Any) -> None:
    """Write JSON, readable and with a newline at its end."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_config(model: CMLMCSEForSentenceEmbedding, folder: Path, trust_free: bool) -> None:
    """config.json of the plain backbone, with the way to this project's classes unless `trust_free`."""
    fields = model.config.to_export_dict()
    fields["architectures"] = [type(model.backbone).__name__]
    fields["dtype"] = str(model.dtype).removeprefix("torch.")
    fields["output_hidden_states"] = needs_all_layers(model)  # sentence-transformers' layer pooling reads them
    for name in ("_name_or_path", "transformers_version") + (("cmlmcse",) if trust_free else ()):
        fields.pop(name, None)
    write_json(folder / "config.json", fields if trust_free else {**fields, "auto_map": AUTO_MAP})


def copy_code(folder: Path) -> None:
    """Copy the modelling file and everything it imports from beside it."""
    source = Path(modeling_cmlmcse.__file__)
    for file in {source, *map(Path, get_relative_import_files(source))}:
        shutil.copy(file, folder / file.name)


def needs_all_layers(model: CMLMCSEForSentenceEmbedding) -> bool:
    """Whether the pooling reads other layers than the last."""
    return model.config.pooling in ("avg_top2", "avg_first_last")


def write_sentence_transformers(
    model: CMLMCSEForSentenceEmbedding, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """modules.json and its parts, in the names that old and new sentence-transformers read."""
    size, depth = model.config.hidden_size, model.config.backbone_config.num_hidden_layers
    modules = [("", "Transformer")]
    if needs_all_layers(model):
        weights = torch.zeros(depth)
        weights[[-2, -1] if model.config.pooling == "avg_top2" else [0, -1]] = 1.0
        config = {"word_embedding_dimension": size, "layer_start": 1, "num_hidden_layers": depth}
        modules.append(write_module(folder, len(modules), "WeightedLayerPooling", config, {"layer_weights": weights}))
    mode = "cls" if model.config.pooling.startswith("cls") else "mean"
    modes = {"pooling_mode_cls_token": mode == "cls", "pooling_mode_mean_tokens": mode == "mean"}
    others = {"pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False}
    pooling = {"word_embedding_dimension": size, **modes, **others}
    modules.append(write_module(folder, len(modules), "Pooling", pooling))
    if model.config.pooling == "cls":
        config = {"in_features": size, "out_features": size, "bias": True}
        config["activation_function"] = "torch.nn.modules.activation.Tanh"
        head = model.projection.dense.state_dict()
        tensors = {f"linear.{name}": tensor.detach().cpu() for name, tensor in head.items()}
        modules.append(write_module(folder, len(modules), "Dense", config, tensors))
    listing = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    write_json(folder / "modules.json", listing)
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": tokenizer.model_max_length, "do_lower_case": False}
    )
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})


def write_module(
    folder: Path, index: int, kind: str, config: dict[str, Any], weights: dict[str, torch.Tensor] | None = None
) -> tuple[str, str]:
    """One sentence-transformers module in its own folder; returns (path, kind)."""
    path = f"{index}_{kind}"
    (folder / path).mkdir()
    write_json(folder / path / "config.json", config)
    if weights is not None:
        save_file(weights, folder / path / "model.safetensors")
    return path, kind
