"""Tiny models and tokenizers, built in memory; nothing here touches the network."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

ENGLISH = ("the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "big", "small", "red", "blue", "and")
WORDS = [*(f"w{i}" for i in range(60)), *ENGLISH]
KINDS = ("bert", "roberta", "xlm-roberta")
OTHER_KINDS = ("camembert", "electra", "distilbert", "mpnet", "modernbert")  # in tests of what depends on the kind
BERT_TOKENS = ("bert", "electra", "distilbert", "modernbert")  # kinds with BERT's special tokens; the others: RoBERTa's
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
}


def tiny_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A word tokenizer with the special tokens, and their order, of its kind."""
    bert = kind in BERT_TOKENS
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] if bert else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pad, unk, cls, sep, mask = special if bert else (special[1], special[3], special[0], special[2], special[4])
    vocabulary = {word: i for i, word in enumerate(special + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unk))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token=unk,
        cls_token=cls,
        sep_token=sep,
        mask_token=mask,
        model_max_length=64,
    )


def tiny_config(kind: str, dropout: float = 0.1, **sizes: int) -> PretrainedConfig:
    """A configuration of this kind, with every dropout of its encoder at `dropout`."""
    fields = {**SIZES, "vocab_size": len(WORDS) + 5, **sizes}
    fields |= {"pad_token_id": 0} if kind in BERT_TOKENS else {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    if kind == "distilbert":
        fields["hidden_dim"] = fields.pop("intermediate_size")
        return AutoConfig.for_model(kind, dropout=dropout, attention_dropout=dropout, **fields)
    if kind == "modernbert":  # sentences are longer than its window of 4, and blocks 0 and 3 have none
        fields |= {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3, "local_attention": 4}
        fields |= {"embedding_dropout": dropout, "mlp_dropout": dropout, "attention_dropout": dropout}
        return AutoConfig.for_model(kind, **fields)
    fields |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if kind == "electra":
        fields["embedding_size"] = 24
    if kind not in BERT_TOKENS and kind != "mpnet":
        fields["type_vocab_size"] = 1
    return AutoConfig.for_model(kind, **fields)


def tiny_backbone(kind: str, dropout: float = 0.1, **sizes: int) -> PreTrainedModel:
    """A masked-language model of a few thousand weights, seeded."""
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(tiny_config(kind, dropout, **sizes))
    for parameter in model.parameters():  # biases and norms away from their zeros and ones, so that copies show
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def load_reference(kind: str, folder: str) -> PreTrainedModel:
    """transformers' own encoder, without a pooler."""
    never_has_one = kind in ("electra", "distilbert", "modernbert")
    return AutoModel.from_pretrained(folder, **({} if never_has_one else {"add_pooling_layer": False})).eval()
