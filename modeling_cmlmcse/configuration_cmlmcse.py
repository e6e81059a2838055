"""Configuration of a CMLM-CSE sentence encoder: the backbone, the pooling, and what training adds to them.

Transformers copies the files of this folder that this one names before it copies those that modeling_cmlmcse.py names.
So what the imports below need stands here:

    import .distributed
    import .packing
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

from transformers import AutoConfig, PretrainedConfig, __version__

from .configuration_checks import check_generator, check_layers, check_pooling
from .field_checks import as_dims, as_dropouts, as_token_id, in_range, one_of
from .losses import CONTRASTIVE_LOSSES
from .pooling import POOLINGS
from .projection import PROJECTIONS
from .prompts import complete_prompts
from .ranking import DISTILLATION_LOSSES

TRANSFORMERS = tuple(int(part) for part in __version__.split(".")[:2])
EXPORT_KEY = "cmlmcse"
COUNTS_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
HEAD_WEIGHTS = "head.safetensors"  # in an export: a head that a plain backbone has no place for
WEIGHTS_WITH_HEAD = "model_with_head.safetensors.index.json"  # lists the backbone's weights and the head's
OWN_FUSION_INITS = ("last", "next", "random", "pretrained")  # the first is the default
FUSION_INITS = (*OWN_FUSION_INITS, "checkpoint")
MASKED_VIEWS = ("both", "first")
CONDITIONS = ("before_head", "after_head")
PROMPT_TEMPLATES = ('This sentence of "{sentence}" means {mask}.', 'This sentence : "{sentence}" means {mask}.')
DENOISINGS = ("position", "pad", "none")  # the first is the default
LEXICAL_SHARE = 8 / 12  # CMLM-CSE Table 6: 8 of 12 layers extract, 3 fuse
FUSION_SHARE = 3 / 12


class CMLMCSEConfig(PretrainedConfig):
    """Everything a CMLM-CSE model needs to be rebuilt (Zhang & Chen 2023); validated at construction.

    This text is also the help of the recipe fields with these names (cmlmcse/training/fields.py).

    Args:
        backbone_config: the backbone's configuration, as an object or a dictionary. The default is BERT-base.
        pooling: how a sentence becomes one vector. `cls_before_pooler` is the raw [CLS] of the last layer (SimCSE's
            evaluation of unsupervised models). `cls` is [CLS] through the training head, at inference too. `avg`,
            `avg_top2` and `avg_first_last` are means over the tokens of the last, the last two, and the first and last
            layers. `prompt` is the last layer's state of the mask token in a template (PromptBERT).
        prompt_template: the template of the pooling `prompt`. {sentence} stands for the sentence, {mask} for the mask
            token. The default is PromptBERT's for BERT.
        second_prompt_template: the template of the second view in training. The default is PromptBERT's for BERT.
        negative_prompt_template: a template that negates the sentence. The mask token's state in it is a hard negative
            of the sentence in training (CoT-BERT, whose loss is `extended_info_nce`). The default is none.
        prompt_denoising: what training subtracts from a vector: the state of the mask token in the template without the
            sentence, whose words keep their positions (`position`, PromptBERT), or with padding tokens in the
            sentence's place, which attention sees (`pad`, CoT-BERT); or nothing (`none`).
        mask_token_id: the mask token that the pooling `prompt` reads. :meth:`from_backbone` fills it in.
        projection: the training head. `mlp` is Linear and Tanh (SimCSE), `batchnorm` is InfoCSE's, `nonlinear` is
            CLEAR's, `none` is none. The default is SimCSE's code: `mlp` for [CLS], `none` for averages.
        normalize: whether embeddings are scaled to length 1, as some finished encoders do. Cosines stay the same, dot
            products do not. Training is the same.
        contrastive_loss: `info_nce` (SimCSE), `nt_xent` (CLEAR), `extended_info_nce`, whose hard negatives are
            compared with the positive too (CoT-BERT), `off_dropout`, whose negatives have no dropout (SimCSE++); it
            encodes each sentence once more; or `cosent`, for pairs with a score (score_column): those with a higher
            score should have a larger cosine (CoSENT, Su 2022).
        contrastive_weight: weight of the contrastive loss. 0 is InfoCSE Table 5, "w/o contrastive loss". Where no other
            loss compares views either, only those are encoded that get a masked sentence.
        matryoshka_dims: numbers of leading dimensions, as 256,128,64, that a vector can be cut to. The contrastive loss
            is the sum of those of the cut vectors, each with weight 1 (Kusupati et al. 2022, Eq. 1); name the full
            size too. The head must be `none`, or stay at inference (`cls`). The default is the full size alone.
        temp: temperature τ of the contrastive loss. The default is SimCSE's, and CoSENT's, which writes 20 for 1/τ.
        hard_negative_weight: number added to the logit of a sentence's own hard negative, which is labelled
            (negative_column), mined (mined_negatives) or made by negative_prompt_template. 0 makes it as likely as any
            other negative, as in supervised SimCSE, whose paper's α is e to this number.
        positive_ratio: factor r of the positive's cosine in the contrastive loss `off_dropout` (SimCSE++; its code's
            script for that loss alone has 0.9).
        dimension_weight: weight of SimCSE++'s contrast between the dimensions of the two views; its code has 0.1. 0 is
            without.
        dimension_temp: temperature t of this contrast (SimCSE++'s code: 5 beside `off_dropout`, 10 beside `info_nce`).
        consistency_weight: weight β of RankCSE's ranking consistency: both views of a sentence should rank the other
            sentences alike (RankCSE: 1). 0 is without.
        distillation_weight: weight γ of the distillation: a sentence should rank the others as a teacher does (RankCSE:
            1), or have its cosines with them. It needs a teacher. 0 is without.
        distillation_loss: what is compared: rankings, by `list_mle` (the whole order) or `list_net` (who comes first),
            as RankCSE has them; or the cosines themselves, by `mse`, the mean squared difference.
        distillation_temp: temperature τ₂ of the student's similarities in the distillation (RankCSE: 0.05).
        teacher_temp: temperature τ₃ of the teacher's in `list_net`. The default, 0.025, is half of
            τ₂'s default, as in RankCSE.
        teacher_share: α, the share of the first of two teachers in the similarities (RankCSE: a third).
        cmlm_weight: λ of L = L_contrast + λ L_MLM, the weight of the conditional MLM. Both losses are means, over
            sentences and over masked words, as in InfoCSE's code; in the paper's Eq. 5 they are sums, whose λ is this
            one divided by the masked words of a sentence. The default is from CMLM-CSE Table 5. 0 builds no auxiliary
            network and is SimCSE.
        lexical_layers: number of frozen lower layers that extract lexical features. The default is 8 of 12 in
            proportion to the backbone's depth (CMLM-CSE Table 6). With 0 the features are the embeddings alone, so
            that the context comes from the vector and the fusion layers.
        fusion_layers: number of trainable fusion layers, at most the backbone's. The default is 3 of 12 in proportion
            (CMLM-CSE Table 6).
        fusion_init: weights that the fusion layers start from; the paper does not say. `last` is the backbone's last
            layers, which were trained to feed its MLM head. `next` is those after the extractor. `random` is fresh
            weights. `pretrained` is the auxiliary network that was pre-trained with the backbone (InfoCSE §3.1). A
            path or Hub name is another model's.
        cmlm_condition: the vector that replaces position 0. `before_head` is the sentence vector that evaluation uses,
            so that this vector must carry the words (InfoCSE). `after_head` is DiffCSE's. The paper does not say.
        masked_views: the views that get a masked sentence of their own. `both` gives twice the masked words for each
            encoder pass (InfoCSE), `first` is CLEAR's. CMLM-CSE does not say.
        lexical_frozen: whether the extractor stays as it is. False is InfoCSE Table 6, "w/o gradient detach".
        lexical_dropout: whether the frozen extractor has dropout. Off by default, because its features are fixed input.
            The paper does not say.
        rtd_weight: weight of replaced-token detection. DiffCSE uses 0.005; 0 is without.
        rtd_condition: the vector that replaces the discriminator's position 0: `after_head` (DiffCSE) or `before_head`.
        rtd_positions: the positions that the generator fills: `masked` (the abstract of DiffCSE's paper) or `all`
            (its code, whose numbers the paper reports).
        rtd_fill: how the generator fills a position: `argmax` (DiffCSE's code) or `sample`.
        generator_config: the generator's configuration. :meth:`from_backbone` fills it in.
        mlm_weight: weight of masked-language modelling on the encoder itself. SimCSE uses 0.1, CLEAR 1; 0 is without.
        mlm_tied: whether the decoder of `mlm_weight` is the encoder's word embeddings, as in RoBERTa's pre-training,
            which CLEAR follows. By default it is a matrix of its own, as in SimCSE's code.
        condenser_weight: weight of Condenser's pre-training loss on the masked sentences, for which `lexical_layers`,
            `fusion_layers` and `fusion_init` hold too (coCondenser: 1). 0 is without.
        retromae_weight: weight of RetroMAE's decoder, which predicts all words from the sentence vector and a few of
            the other words' embeddings. RetroMAE's paper has it in pre-training only; 0 is without.
        decoder_hidden_share: share of the other words that this decoder does not see when it predicts a word
            (RetroMAE: 0.5).
        denosent_weight: weight of DenoSent's decoder, which restores a sentence from its vector and its word embeddings
            under noise. DenoSent's code has 7 beside a contrastive weight of 5, which is 1.4 beside 1; 0 is without.
        denosent_layers: blocks of this decoder, with fresh weights. They may be more than the backbone's: DenoSent has
            16 beside the 12 of BERT-base.
        denosent_noise: share of the numbers of a word embedding that are dropped before this decoder (DenoSent: 0.825).
        exported_dropouts: the backbone's own dropout probabilities by name, which an export has again, where training
            uses others (`backbone_dropout`). :meth:`from_backbone` fills it in.
        prompts: texts by name that are put before a sentence when it is encoded: `query`, `document`, ….
        default_prompt_name: the prompt of texts that are encoded as neither query nor document. The default is none.

    Raises:
        ValueError: a field is out of range or has the wrong type.
    """

    model_type = "cmlmcse"
    # Without the generator's, which may be None: transformers 4 expects every one that is declared.
    sub_configs = {"backbone_config": AutoConfig}  # noqa: RUF012 (transformers reads a plain class attribute)

    def __init__(
        self,
        backbone_config: PretrainedConfig | dict[str, Any] | None = None,
        pooling: str = "cls_before_pooler",
        prompt_template: str = PROMPT_TEMPLATES[0],
        second_prompt_template: str = PROMPT_TEMPLATES[1],
        negative_prompt_template: str | None = None,
        prompt_denoising: str = DENOISINGS[0],
        mask_token_id: int | None = None,
        projection: str | None = None,
        normalize: bool = False,
        contrastive_loss: str = "info_nce",
        contrastive_weight: float = 1.0,
        matryoshka_dims: Sequence[int] | str | None = None,
        temp: float = 0.05,
        hard_negative_weight: float = 0.0,
        positive_ratio: float = 1.0,
        dimension_weight: float = 0.0,
        dimension_temp: float = 5.0,
        consistency_weight: float = 0.0,
        distillation_weight: float = 0.0,
        distillation_loss: str = "list_mle",
        distillation_temp: float = 0.05,
        teacher_temp: float = 0.025,
        teacher_share: float = 0.33,
        cmlm_weight: float = 0.005,
        lexical_layers: int | None = None,
        fusion_layers: int | None = None,
        fusion_init: str = "last",
        cmlm_condition: str = "before_head",
        masked_views: str = "both",
        lexical_frozen: bool = True,
        lexical_dropout: bool = False,
        rtd_weight: float = 0.0,
        rtd_condition: str = "after_head",
        rtd_positions: str = "masked",
        rtd_fill: str = "argmax",
        generator_config: PretrainedConfig | dict[str, Any] | None = None,
        mlm_weight: float = 0.0,
        mlm_tied: bool = False,
        condenser_weight: float = 0.0,
        retromae_weight: float = 0.0,
        decoder_hidden_share: float = 0.5,
        denosent_weight: float = 0.0,
        denosent_layers: int = 16,
        denosent_noise: float = 0.825,
        exported_dropouts: dict[str, float] | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        # The backbone and the vector of a sentence
        self.backbone_config = as_backbone_config(backbone_config)
        depth = self.backbone_config.num_hidden_layers
        self.pooling = one_of("pooling", pooling, POOLINGS)
        self.prompt_template, self.second_prompt_template = prompt_template, second_prompt_template
        self.negative_prompt_template = negative_prompt_template or None
        self.prompt_denoising = one_of("prompt_denoising", prompt_denoising, DENOISINGS)
        self.mask_token_id = as_token_id("mask_token_id", mask_token_id)
        head = POOLINGS[self.pooling].usual_head if projection is None else projection
        self.projection = one_of("projection", head, PROJECTIONS)
        self.normalize = in_range("normalize", normalize, bool, False, True)

        # The contrast of the views, and SimCSE++'s of the dimensions
        self.contrastive_loss = one_of("contrastive_loss", contrastive_loss, CONTRASTIVE_LOSSES)
        self.matryoshka_dims = as_dims(matryoshka_dims, self.hidden_size)
        self.temp = in_range("temp", temp, float, 1e-4, 10.0)
        self.hard_negative_weight = in_range("hard_negative_weight", hard_negative_weight, float, -100.0, 100.0)
        self.positive_ratio = in_range("positive_ratio", positive_ratio, float, 0.0, 10.0)
        self.dimension_weight = in_range("dimension_weight", dimension_weight, float, 0.0, 1e6)
        self.dimension_temp = in_range("dimension_temp", dimension_temp, float, 1e-4, 1e3)

        # What RankCSE and a teacher compare: the order of the other sentences
        self.consistency_weight = in_range("consistency_weight", consistency_weight, float, 0.0, 1e6)
        self.distillation_weight = in_range("distillation_weight", distillation_weight, float, 0.0, 1e6)
        self.distillation_loss = one_of("distillation_loss", distillation_loss, DISTILLATION_LOSSES)
        self.distillation_temp = in_range("distillation_temp", distillation_temp, float, 1e-4, 10.0)
        self.teacher_temp = in_range("teacher_temp", teacher_temp, float, 1e-4, 10.0)
        self.teacher_share = in_range("teacher_share", teacher_share, float, 0.0, 1.0)

        # The two weights of L = L_contrast + λ L_MLM, and the network of the conditional MLM
        self.contrastive_weight = in_range("contrastive_weight", contrastive_weight, float, 0.0, 1e6)
        self.cmlm_weight = in_range("cmlm_weight", cmlm_weight, float, 0.0, 1e6)
        self.lexical_layers = proportion(depth, LEXICAL_SHARE) if lexical_layers is None else lexical_layers
        self.fusion_layers = proportion(depth, FUSION_SHARE) if fusion_layers is None else fusion_layers
        self.fusion_init = one_of("fusion_init", fusion_init, FUSION_INITS)
        self.cmlm_condition = one_of("cmlm_condition", cmlm_condition, CONDITIONS)
        self.masked_views = one_of("masked_views", masked_views, MASKED_VIEWS)
        self.lexical_frozen = in_range("lexical_frozen", lexical_frozen, bool, False, True)
        self.lexical_dropout = in_range("lexical_dropout", lexical_dropout, bool, False, True)

        # Replaced-token detection
        self.rtd_weight = in_range("rtd_weight", rtd_weight, float, 0.0, 1e6)
        self.rtd_condition = one_of("rtd_condition", rtd_condition, CONDITIONS)
        self.rtd_positions = one_of("rtd_positions", rtd_positions, ("masked", "all"))
        self.rtd_fill = one_of("rtd_fill", rtd_fill, ("argmax", "sample"))
        self.generator_config: PretrainedConfig | None = None
        if rtd_weight > 0:
            generator = self.backbone_config if generator_config is None else as_backbone_config(generator_config)
            self.generator_config = check_generator(generator, self.backbone_config)

        # The other auxiliary objectives
        self.mlm_weight = in_range("mlm_weight", mlm_weight, float, 0.0, 1e6)
        self.mlm_tied = in_range("mlm_tied", mlm_tied, bool, False, True)
        self.condenser_weight = in_range("condenser_weight", condenser_weight, float, 0.0, 1e6)
        self.retromae_weight = in_range("retromae_weight", retromae_weight, float, 0.0, 1e6)
        self.decoder_hidden_share = in_range("decoder_hidden_share", decoder_hidden_share, float, 0.0, 1.0)
        self.denosent_weight = in_range("denosent_weight", denosent_weight, float, 0.0, 1e6)
        self.denosent_layers = in_range("denosent_layers", denosent_layers, int, 1, 1000)
        self.denosent_noise = in_range("denosent_noise", denosent_noise, float, 0.0, 1.0)

        # What an export has beside the weights
        self.exported_dropouts = as_dropouts(exported_dropouts)
        self.prompts = complete_prompts(prompts, default_prompt_name)
        self.default_prompt_name = default_prompt_name if self.prompts else None

        # Fields that must fit each other
        check_layers(self)
        check_pooling(self)

        # What transformers and sentence-transformers look for
        reads_layers = POOLINGS[self.pooling].layers != (-1,)  # the latter's; an export's config.json is the backbone's
        kwargs.setdefault("output_hidden_states", reads_layers or self.backbone_config.output_hidden_states)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):  # where Trainer looks for the tokenizer's
            kwargs.setdefault(name, getattr(self.backbone_config, name, None))
        super().__init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers; fields among the keywords are checked too.

        Raises:
            ValueError: the configuration of another kind of model; a field is out of range or has the wrong type.
        """
        kind = config_dict.get("model_type", cls.model_type)
        if kind != cls.model_type:
            raise ValueError(
                "expected a checkpoint of this project, or an export with its code, found a model of the model_type "
                f"{kind!r}; load an export without code with SentenceTransformer(NAME), and start from it or from a "
                "plain backbone with CMLMCSEForSentenceEmbedding.from_backbone(NAME, pooling=…)"
            )
        ours = inspect.signature(cls.__init__).parameters.keys() - cls.sub_configs.keys()  # which transformers merges
        given = {name: kwargs.pop(name) for name in list(kwargs) if name in ours}
        return super().from_dict({**config_dict, **given}, **kwargs)

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a config.json; that of an export is a plain backbone's with our fields under `EXPORT_KEY`.

        Raises:
            ImportError: this transformers cannot load the export's head.
        """
        fields, kwargs = super().get_config_dict(*args, **kwargs)
        if EXPORT_KEY in fields:
            ours, auto_map = fields.pop(EXPORT_KEY), fields.pop("auto_map", {})
            if "transformers_weights" in ours and TRANSFORMERS < (4, 52):
                raise ImportError(
                    f"a model with the pooling {ours.get('pooling')!r} expects transformers 4.52 or newer, found "
                    f"{__version__}; upgrade, or load the model with sentence-transformers, which needs no code"
                )
            # Without the precision here, transformers 5 would take that of the files, which may be fp16.
            precision = {"dtype": fields["dtype"]} if "dtype" in fields else {}
            named = {"model_type": cls.model_type, "auto_map": auto_map, **precision}
            fields = {**named, "backbone_config": fields, **ours}
        return fields, kwargs

    def to_export_dict(self) -> dict[str, Any]:
        """The config.json of an export: the backbone's own, so that it loads without this code too, and under
        `EXPORT_KEY` what this code needs; no auxiliary objective, and no head unless the pooling uses it."""
        fields = {"pooling": self.pooling, "normalize": self.normalize, "temp": self.temp, "cmlm_weight": 0.0}
        if POOLINGS[self.pooling].reads_mask:
            names = ("prompt_template", "second_prompt_template", "mask_token_id")
            fields |= {name: getattr(self, name) for name in names}
        fields["projection"] = "none"
        if POOLINGS[self.pooling].keeps_head:  # transformers 4.52 and newer load the weights that this entry names
            fields |= {"projection": self.projection, "transformers_weights": WEIGHTS_WITH_HEAD}
        if self.prompts:
            fields |= {"prompts": self.prompts, "default_prompt_name": self.default_prompt_name}
        return {**self.backbone_config.to_dict(), **(self.exported_dropouts or {}), EXPORT_KEY: fields}

    @property
    def fusion_start(self) -> int:
        """The block of the backbone that the first fusion block is built like."""
        last = self.backbone_config.num_hidden_layers - self.fusion_layers
        return self.lexical_layers if self.fusion_init == "next" else max(last, 0)

    @property
    def hidden_size(self) -> int:
        """Width H of the embedding, where sentence-transformers looks for it."""
        return self.backbone_config.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        """Blocks of the backbone, where PEFT and others look for it."""
        return self.backbone_config.num_hidden_layers

    @property
    def num_attention_heads(self) -> int:
        """Attention heads of a block, where PEFT and others look for it."""
        return self.backbone_config.num_attention_heads

    @property
    def max_position_embeddings(self) -> int:
        """The longest sequence, where sentence-transformers looks for it. RoBERTa's kind counts from behind the padding
        token, so that its first positions are never used."""
        unused = self.backbone_config.pad_token_id + 1 if self.backbone_config.model_type in COUNTS_FROM_PADDING else 0
        return self.backbone_config.max_position_embeddings - unused

    @property
    def vocab_size(self) -> int:
        """Rows of the word embeddings, where transformers looks for it; the backbone's own."""
        return self.backbone_config.vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        self.backbone_config.vocab_size = value
        if self.generator_config is not None:  # which has the backbone's vocabulary
            self.generator_config.vocab_size = value


def as_backbone_config(given: PretrainedConfig | dict[str, Any] | None) -> PretrainedConfig:
    """The backbone configuration as an object.

    Raises:
        ValueError: not a configuration, or of an unknown model type.
    """
    if given is None:
        return AutoConfig.for_model("bert")
    if isinstance(given, dict):
        fields = dict(given)
        return AutoConfig.for_model(fields.pop("model_type", "bert"), **fields)
    if isinstance(given, PretrainedConfig):
        return copy.deepcopy(given)  # fields of ours change it
    raise ValueError(f"backbone_config must be a configuration or a dictionary, found {type(given).__name__}")


def proportion(depth: int, share: float) -> int:
    """The paper's share of 12 layers in a backbone of `depth`, at least one layer."""
    return max(1, round(depth * share))
