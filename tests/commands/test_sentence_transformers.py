"""The objectives as losses of sentence-transformers: the same numbers as in our training, and in its Trainer."""

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from peft import LoraConfig
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.losses import (
    CachedMultipleNegativesRankingLoss,
    CosineSimilarityLoss,
    EmbedDistillLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.models import Normalize, Pooling, Transformer
from tokenizers import processors
from transformers import EarlyStoppingCallback, TrainerCallback

from cmlmcse.hub.export import export
from cmlmcse.models.encoders import load_encoder
from cmlmcse.sentence_transformers import BottleneckLoss, ConditionalMLMLoss, ObjectiveTrainer, ReplacedTokenLoss
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.batches import make_batch
from support.tiny import tiny_tokenizer

LOSSES = {"cmlm": ConditionalMLMLoss, "rtd": ReplacedTokenLoss, "retromae": BottleneckLoss}


def encoder(folder: str, *more) -> SentenceTransformer:
    """A SentenceTransformer with averaged pooling."""
    transformer = Transformer(folder)
    return SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_embedding_dimension()), *more], device="cpu"
    )


def features(model: SentenceTransformer, sentences: list[str]) -> dict:
    return {name: value for name, value in model.preprocess(sentences).items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("kind", ("bert", "roberta", "distilbert", "mpnet", "modernbert"))
@pytest.mark.parametrize("name", LOSSES)
def test_the_same_loss_and_gradients_as_our_training(name, kind, backbone_folders, sentences):
    """In fp64, without dropout, on the same masked sentences: the parts of the loss, and the gradient of each weight of
    the encoder."""
    model = encoder(backbone_folders[kind]).double()
    given = {"rtd_condition": "before_head"} if name == "rtd" else {}
    loss = LOSSES[name](model, weight=0.3).double().eval()
    fields = {"cmlm_weight": 0.0, f"{name}_weight": 0.3, "pooling": "avg", "projection": "none", **given}
    ours = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], **fields).double().eval()
    ours.objectives[name].load_state_dict(loss.objective.state_dict())
    batch = make_batch(kind, sentences, masked_views=2)
    loss.mask = lambda columns: batch["masked"]
    parts = loss([features(model, sentences)], torch.zeros(len(sentences)))
    expected = TrainingLosses(ours)(**batch)
    assert set(parts) == {"contrast", name}
    assert parts["contrast"].item() == pytest.approx(expected.logs["contrastive_loss"].item(), abs=1e-10)
    assert parts[name].item() == pytest.approx(0.3 * expected.logs[f"{name}_loss"].item(), abs=1e-10)
    sum(parts.values()).backward()
    expected.loss.backward()
    theirs = dict(model[0].auto_model.named_parameters())
    for weight, parameter in ours.backbone.named_parameters():
        torch.testing.assert_close(theirs[weight].grad, parameter.grad, rtol=1e-6, atol=1e-9, msg=weight)


@pytest.mark.parametrize("name", LOSSES)
def test_a_model_with_our_code(name, backbone_folders, sentences, tmp_path):
    """A folder loaded with `trust_remote_code=True` gives the same loss and gradients as its plain backbone."""
    ours = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["shallow"], cmlm_weight=0.0, pooling="avg")
    ours.save_pretrained(tmp_path)
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    found = []
    for model in (SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True),
                  encoder(backbone_folders["shallow"])):  # fmt: skip
        torch.manual_seed(3)
        loss = LOSSES[name](model, masked_lm=backbone_folders["shallow"], weight=1.0).eval()
        parts = loss([features(model, sentences)], torch.zeros(len(sentences)))
        parts[name].backward()
        table = model[0].auto_model.get_input_embeddings().weight
        found.append((type(model[0].auto_model).__name__, parts[name].detach(), table.grad))
    assert [kind for kind, _, _ in found] == ["CMLMCSEForSentenceEmbedding", "BertModel"]
    torch.testing.assert_close(found[0][1:], found[1][1:])


@pytest.mark.parametrize("name", LOSSES)
def test_trains_and_saves(name, backbone_folders, sentences, tmp_path):
    """In sentence-transformers' Trainer on single sentences: the objective's loss falls, its own weights move, the log
    has both parts, and the saved model is an ordinary one."""
    torch.manual_seed(0)
    model = encoder(backbone_folders["bert"])
    loss = LOSSES[name](model, weight=1.0)
    before = {key: value.clone() for key, value in loss.objective.named_parameters()}
    trainer = trainer_of(model, loss, {"text": sentences * 10}, tmp_path, max_steps=40, logging_steps=10)
    trainer.train()
    values = [row[name] for row in trainer.state.log_history if name in row]
    assert values[-1] < 0.9 * values[0]
    assert [row for row in trainer.state.log_history if "contrast" in row]
    moved = {key for key, value in loss.objective.named_parameters() if not torch.equal(value, before[key])}
    frozen = {key for key, value in loss.objective.named_parameters() if not value.requires_grad}
    assert moved
    assert not moved & frozen
    model.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert np.allclose(again.encode(sentences), model.encode(sentences), atol=1e-6)


def trainer_of(
    model: SentenceTransformer,
    loss,
    rows: dict,
    folder,
    callbacks=(),
    evaluator=None,
    kind=SentenceTransformerTrainer,
    **arguments,
):
    """sentence-transformers' Trainer with batches of 4."""
    arguments = {"logging_steps": 2, "save_strategy": "no", **arguments}
    given = SentenceTransformerTrainingArguments(
        folder, per_device_train_batch_size=4, learning_rate=3e-3, use_cpu=True, report_to="none",
        disable_tqdm=True, **arguments,
    )  # fmt: skip
    table = Dataset.from_dict(rows)
    evaluated = table if "eval_strategy" in arguments else None
    return kind(model, given, table, evaluated, loss=loss, callbacks=list(callbacks), evaluator=evaluator)


def saving_trainer(kind, name: str, backbone: str, sentences: list[str], folder, **options):
    """A Trainer of four steps that saves after two, with a new model and a loss with fresh weights."""
    model = encoder(backbone)
    loss = LOSSES[name](model, weight=1.0, **options)
    rows = {"text": [*sentences, *(f"{sentence} w3" for sentence in sentences)]}
    return trainer_of(model, loss, rows, folder, kind=kind, max_steps=4, save_strategy="steps", save_steps=2)


@pytest.mark.parametrize("name", LOSSES)
def test_resumes_with_the_weights_of_the_objective(name, backbone_folders, sentences, tmp_path):
    """A resumed training ends with the weights, of model and loss, of one that was not interrupted."""
    found = []
    for resumed in (False, True):
        torch.manual_seed(resumed)
        trainer = saving_trainer(ObjectiveTrainer, name, backbone_folders["bert"], sentences, tmp_path)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2") if resumed else None)
        found.append(trainer.loss.state_dict())
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    names = torch.load(tmp_path / "checkpoint-4" / "loss.pt", weights_only=True)
    assert {f"/{key}" for key in found[0] if "model." not in key} == set(names)


def test_losses_by_name_are_resumed(backbone_folders, sentences, tmp_path):
    """A loss for each data set; what stands beside has no weights but the model's."""
    weights = []
    for _ in range(2):
        model = encoder(backbone_folders["bert"])
        losses = {"first": BottleneckLoss(model), "second": MultipleNegativesRankingLoss(model)}
        rows = DatasetDict({place: Dataset.from_dict({"text": sentences, "other": sentences}) for place in losses})
        arguments = SentenceTransformerTrainingArguments(tmp_path, use_cpu=True, report_to="none")
        trainer = ObjectiveTrainer(model, arguments, rows, loss=losses)
        trainer.create_optimizer_and_scheduler(4)
        weights.append(trainer.own_weights())
        if len(weights) == 1:
            trainer._save_optimizer_and_scheduler(str(tmp_path))
        else:
            trainer._load_optimizer_and_scheduler(str(tmp_path))
    assert {key.split("/")[0] for key in weights[0]} == {"first"}
    torch.testing.assert_close(weights[1], weights[0])


def test_the_objective_is_not_reset_in_silence(backbone_folders, sentences, tmp_path, caplog):
    """The library's Trainer does not save its weights: a warning says so, and a resumed training is refused. So is a
    checkpoint without them, or with those of another loss."""
    start = ("cmlm", backbone_folders["bert"], sentences, tmp_path)
    checkpoint = tmp_path / "checkpoint-2"
    saving_trainer(SentenceTransformerTrainer, *start).train()
    assert sum("which only ObjectiveTrainer" in record.message for record in caplog.records) == 1
    for kind, message in ((ObjectiveTrainer, "loss.pt: expected the weights of these losses, found none"),
                          (ObjectiveTrainer, "found others; make the losses as before"),
                          (SentenceTransformerTrainer, "found fresh ones; train and resume with")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            saving_trainer(kind, *start).train(resume_from_checkpoint=str(checkpoint))
        torch.save({"/objective.head.bias": torch.zeros(3)}, checkpoint / "loss.pt")


@pytest.mark.parametrize("name", LOSSES)
def test_prompts_evaluator_and_card(name, backbone_folders, sentences, tmp_path):
    """A prompt of the Trainer's arguments stands before the text that the objective reads too, and before masking is
    all of it that is added; an evaluator scores; the library's own card names the loss."""
    model = encoder(backbone_folders["bert"])
    loss = LOSSES[name](model)
    read, mask = [], loss.mask
    loss.mask = lambda columns: read.append(mask(columns)) or read[-1]
    scored = EmbeddingSimilarityEvaluator(sentences, sentences[::-1], [0.1, 0.9, 0.9, 0.1], name="own")
    arguments = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "prompts": {"text": "w1 w2 "}}
    trainer = trainer_of(model, loss, {"text": sentences}, tmp_path, evaluator=scored, **arguments)
    trainer.train()
    for masked in read:
        words = masked["input_ids"].index_copy(0, masked["mlm_positions"], masked["mlm_labels"])
        rows = [model.tokenizer.decode(row[1:-1]) for row in words.split(masked["lengths"].tolist())]
        assert sorted(set(rows)) == sorted(f"w1 w2 {sentence}" for sentence in sentences)
    assert read
    assert [row for row in trainer.state.log_history if "eval_own_spearman_cosine" in row]
    model.save_pretrained(str(tmp_path / "saved"))
    assert LOSSES[name].__name__ in (tmp_path / "saved" / "README.md").read_text()


@pytest.mark.parametrize("first", ("adapter", "loss"))
@pytest.mark.parametrize("name", LOSSES)
def test_an_adapter(name, first, backbone_folders, sentences, tmp_path):
    """A LoRA adapter of `add_adapter`, before or after the loss is made: only the adapter and the objective's own
    weights train, the objective alone has a gradient for the adapter, and the saved adapter loads."""
    model = encoder(backbone_folders["bert"])
    adapter = LoraConfig(r=4, target_modules=["query", "value"], task_type="FEATURE_EXTRACTION")
    if first == "adapter":
        model.add_adapter(adapter)
    loss = LOSSES[name](model, weight=1.0)
    if first == "loss":
        model.add_adapter(adapter)
    start = {key: value.clone() for key, value in loss.named_parameters()}
    own = {key for key in start if "objective" in key and loss.get_parameter(key).requires_grad}
    adapted = {key for key in start if "lora_" in key and key.startswith("model.")}
    assert len(adapted) == 2 * 2 * 6  # two matrices for query and value of six layers
    trainer_of(model, loss, {"text": sentences * 4}, tmp_path / "run", max_steps=4).train()
    moved = {key for key, value in loss.named_parameters() if not torch.equal(value, start[key])}
    assert own
    assert moved == adapted | own
    model.zero_grad()
    loss([features(model, sentences)], torch.zeros(4))[name].backward()
    assert all(loss.get_parameter(key).grad.abs().sum() > 0 for key in adapted if "layer.0." in key)
    model.save_pretrained(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "adapter_config.json").exists()
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert np.allclose(again.encode(sentences), model.encode(sentences), atol=1e-6)


@pytest.mark.parametrize("columns", (1, 2))
@pytest.mark.parametrize("name", LOSSES)
def test_no_duplicates(name, columns, backbone_folders, sentences, tmp_path):
    """The sampler NO_DUPLICATES: no batch that reaches the loss has a text twice; in random batches some have."""
    rows = {"anchor": sentences * 4, "positive": [f"{each} w9" for each in sentences] * 4}
    rows = dict(list(rows.items())[:columns])
    repeated = {}
    for sampler in ("no_duplicates", "batch_sampler"):
        model = encoder(backbone_folders["bert"])
        loss = LOSSES[name](model)
        seen: list[list[str]] = []
        loss.register_forward_pre_hook(
            lambda _, given, seen=seen: seen.append([str(row.tolist()) for row in given[0][0]["input_ids"]])
        )
        trainer_of(model, loss, rows, tmp_path / sampler, num_train_epochs=1, batch_sampler=sampler, seed=1).train()
        assert [len(batch) for batch in seen] == [4] * 4
        repeated[sampler] = sum(len(set(batch)) < 4 for batch in seen)
    assert repeated["no_duplicates"] == 0 < repeated["batch_sampler"]


class Reader(TrainerCallback):
    """Keeps what the Trainer logs."""

    def __init__(self) -> None:
        self.logged: list[dict] = []

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        self.logged.append(dict(logs))


@pytest.mark.parametrize("name", LOSSES)
def test_callbacks(name, backbone_folders, sentences, tmp_path):
    """A callback reads both parts of the loss, which make up the whole; early stopping ends a run by the evaluation's
    loss, here after three of ten because none can be better by 100."""
    model, reader = encoder(backbone_folders["bert"]), Reader()
    loss = LOSSES[name](model, weight=0.5)
    stopping = EarlyStoppingCallback(2, early_stopping_threshold=100.0)
    trainer = trainer_of(model, loss, {"text": sentences * 10}, tmp_path, (reader, stopping), max_steps=20,
                         eval_strategy="steps", eval_steps=2, metric_for_best_model="eval_loss")  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 6
    training = [row for row in reader.logged if "loss" in row]
    assert len(training) == len([row for row in reader.logged if row.get("eval_loss", 0) > 0]) == 3
    for row in training:
        assert row["contrast"] > 0 < row[name]
        assert row["loss"] == pytest.approx(row["contrast"] + row[name], abs=1e-3)  # each of them rounded


@pytest.mark.parametrize("name", LOSSES)
def test_an_evaluation_draws_nothing(name, backbone_folders, sentences):
    """The Trainer switches the model alone to its evaluation. Then there is no dropout in the objective either, the
    masks are the same each time, and what the training will draw stays. In training it draws."""
    model = encoder(backbone_folders["bert"])
    loss = LOSSES[name](model, weight=1.0, **({"rtd_fill": "sample"} if name == "rtd" else {}))
    given, found = features(model, sentences), {}
    for training in (False, True, False):
        model.train(training)
        states = [torch.get_rng_state()]
        for _ in range(2):
            found.setdefault(training, set()).add(loss([given], torch.zeros(4))[name].item())
            states.append(torch.get_rng_state())
        assert torch.equal(states[0], states[2]) == (not training)
    assert len(found[False]) == 1
    assert len(found[True]) == 2


@pytest.mark.parametrize("columns", (1, 2, 3))
@pytest.mark.parametrize("beside", ("plain", "cached", "matryoshka"))
def test_beside_other_losses(beside, columns, backbone_folders, sentences):
    """Sentences, pairs and triplets; gradient caching and Matryoshka encode by themselves. The contrast is that loss's
    own, and the objective's gradient reaches the encoder."""
    model = encoder(backbone_folders["bert"]).eval()
    plain = MultipleNegativesRankingLoss(model)
    other = {
        "plain": plain,
        "cached": CachedMultipleNegativesRankingLoss(model, mini_batch_size=2),
        "matryoshka": MatryoshkaLoss(model, plain, [32, 16]),
    }[beside]
    loss = ConditionalMLMLoss(model, other, weight=1.0).eval()
    given = [features(model, sentences[part:] + sentences[:part]) for part in range(columns)]
    parts = loss([dict(column) for column in given], torch.zeros(4))
    both = given * 2 if columns == 1 else given
    expected = MatryoshkaLoss(model, plain, [32, 16]) if beside == "matryoshka" else plain
    assert parts["contrast"].item() == pytest.approx(expected(both, torch.zeros(4)).item(), abs=1e-5)
    parts["cmlm"].backward()
    assert model[0].auto_model.encoder.layer[0].output.dense.weight.grad.abs().sum() > 0


def test_the_weight_has_one_name(backbone_folders):
    """A recipe's name of it would change nothing, and is refused; so is the weight of another objective."""
    model = encoder(backbone_folders["bert"])
    for name, loss in LOSSES.items():
        with pytest.raises(TypeError, match=f"takes no {name}_weight, found 5; write weight=5"):
            loss(model, **{f"{name}_weight": 5})
        with pytest.raises(TypeError, match="takes no mlm_weight, found 5; use the loss of that objective"):
            loss(model, mlm_weight=5)


def test_a_loss_that_changes_its_labels(backbone_folders, sentences):
    """Distillation of embeddings: what stands beside is that loss's own value."""
    model = encoder(backbone_folders["bert"]).eval()
    beside = EmbedDistillLoss(model)
    given, teacher = [features(model, sentences)], torch.randn(4, 32)
    found = ConditionalMLMLoss(model, beside).eval()([dict(column) for column in given], teacher)["contrast"]
    assert found.item() == pytest.approx(beside(given * 2, teacher).item(), abs=1e-6)


def test_one_device(backbone_folders, sentences):
    """DataParallel would split the batch, and the masked sentences would be of other rows."""
    model = encoder(backbone_folders["bert"])
    loss = ConditionalMLMLoss(model)
    loss.model = torch.nn.DataParallel(model)
    with pytest.raises(ValueError, match="found DataParallel"):
        loss([features(model, sentences)], torch.zeros(4))


def test_a_loss_with_labels(backbone_folders, sentences):
    """Scored pairs: the labels reach the other loss."""
    model = encoder(backbone_folders["bert"]).eval()
    loss = ConditionalMLMLoss(model, CosineSimilarityLoss(model)).eval()
    given = [features(model, sentences), features(model, sentences[::-1])]
    values = [loss(given, torch.full((4,), label))["contrast"].item() for label in (0.0, 1.0)]
    assert values[0] != values[1]


def test_the_vector_is_the_poolings(backbone_folders, sentences):
    """A later Normalize changes the contrast alone."""
    losses = []
    for more in ((), (Normalize(),)):
        model = encoder(backbone_folders["bert"], *more).eval()
        loss = ConditionalMLMLoss(model).eval()
        torch.manual_seed(3)
        losses.append(loss([features(model, sentences)], torch.zeros(4))["cmlm"].item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.parametrize("trust", (False, True))
def test_a_mean_of_two_layers(trust, backbone_folders, sentences, tmp_path):
    """The objective reads the vector after both modules of the pooling. The mean keeps its layers' weights, so the
    saved folder gives the embeddings of our own code."""
    ours = CMLMCSEForSentenceEmbedding.from_backbone(
        backbone_folders["shallow"], cmlm_weight=0.0, pooling="avg_first_last"
    )
    export(ours, tiny_tokenizer("bert"), tmp_path / "export")
    model = SentenceTransformer(str(tmp_path / "export"), device="cpu", trust_remote_code=trust)
    loss = ConditionalMLMLoss(model, masked_lm=backbone_folders["shallow"]).eval()
    embedding, vector = loss.encode(features(model, sentences))
    torch.testing.assert_close(vector, embedding)
    loss.train()
    optimizer = torch.optim.SGD([weight for weight in loss.parameters() if weight.requires_grad], lr=1.0)
    sum(loss([features(model, sentences)], torch.zeros(4)).values()).backward()
    optimizer.step()
    model.save_pretrained(str(tmp_path / "trained"))
    encoder = load_encoder(str(tmp_path / "trained"), device="cpu")
    np.testing.assert_allclose(encoder(sentences), model.encode(sentences), atol=1e-5)


def test_refusals(backbone_folders):
    """A model without pooling, without an origin, of an unknown kind."""
    with pytest.raises(ValueError, match="must be a Transformer followed by a Pooling, found Transformer"):
        ConditionalMLMLoss(SentenceTransformer(modules=[Transformer(backbone_folders["bert"])], device="cpu"))
    model = encoder(backbone_folders["bert"])
    model[0].auto_model.config._name_or_path = ""
    with pytest.raises(ValueError, match="name its backbone with masked_lm"):
        ConditionalMLMLoss(model)
    assert ConditionalMLMLoss(model, masked_lm=backbone_folders["bert"]).config["masked_lm"] == backbone_folders["bert"]
    assert (
        ConditionalMLMLoss(model, masked_lm=backbone_folders["bert"], pooling="avg_top2").config["pooling"]
        == "avg_top2"
    )
    with pytest.raises(ValueError, match="cmlm_weight must be a number from 0"):
        ConditionalMLMLoss(model, weight=-1, masked_lm=backbone_folders["bert"])
    for kind in LOSSES.values():
        with pytest.raises(ValueError, match=f"{kind.__name__} expects a weight above 0, found 0; .* other loss alone"):
            kind(model, weight=0, masked_lm=backbone_folders["bert"])
    model.tokenizer.add_tokens([f"new{number}" for number in range(2000)])
    with pytest.raises(ValueError, match=r"must know the tokens of the model's tokenizer, found \d+ of \d+; save"):
        ConditionalMLMLoss(model, masked_lm=backbone_folders["bert"])
    model.tokenizer.backend_tokenizer.post_processor = processors.Sequence([])
    with pytest.raises(ValueError, match="BottleneckLoss expects a tokenizer that puts special tokens"):
        BottleneckLoss(model, masked_lm=backbone_folders["bert"])
