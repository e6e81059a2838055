"""A model card without all records, and by a template of the user's own."""

import json
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.tasks import TASKS
from cmlmcse.hub import push
from cmlmcse.hub.card import model_card
from cmlmcse.hub.run_records import read_records
from support.records import RECORD, RESULTS
from support.tiny import tiny_tokenizer


def test_card_without_results():
    """It says so, and its metadata have no model-index."""
    card = model_card(RECORD, {"model": "x"})
    assert "This run was not evaluated." in card
    assert ModelCard(card).data.eval_results is None
    tasks = [name for name in TASKS if name != "pairs"]  # the user's own, which nobody misses
    assert f"Not measured, of the tasks of `cmlmcse evaluate`: {', '.join(tasks)}." in card


@pytest.mark.parametrize("absent", ["recipe", "fields", "steps", "seed", "hardware", "versions", "train_seconds"])
def test_a_record_that_lacks_an_entry(absent):
    record = {name: value for name, value in RECORD.items() if name != absent}
    with pytest.raises(InputError, match=f"run.json: expected the entry '{absent}'"):
        model_card(record, RESULTS)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ card_data }} {{ autor }}", "'autor' is undefined"),
        ("{% if %}", "expected a template"),
        ("{{ use.__class__.__mro__ }}", "is unsafe"),
        ("---\n- {{ name }}\n---\n", "expected metadata, found .*a dict"),
        ("---\nlicense: [\n---\n", "expected metadata, found "),
        (None, "expected a text file"),
    ],
)
def test_wrong_template(template, expected, tmp_path):
    """A field that is not known, a syntax error, a way out of the template, a head that is no metadata, a file that is
    not there."""
    file = tmp_path / "card.md"
    if template is not None:
        file.write_text(template)
    with pytest.raises(InputError, match=expected):
        model_card(RECORD, RESULTS, template=file)


def test_a_recipe_cannot_write_metadata():
    """Names out of a record are text, in the head as below it."""
    record = {**RECORD, "recipe": "x\nlicense: mit\n---\n{{ use }}{% for a in b %}"}
    card = model_card(record, RESULTS)
    assert ModelCard(card).data.license is None
    assert "{{ use }}{% for a in b %}" in card


def test_published_with_a_card_of_ones_own(backbone_folders, monkeypatch, tmp_path):
    """`--card_template`, `--license` and `--language`; the run's plots lie beside the card."""
    from modeling_cmlmcse import CMLMCSEForSentenceEmbedding

    run = tmp_path / "run"
    checkpoint = run / "checkpoint-1"
    CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"]).save_pretrained(checkpoint)
    tiny_tokenizer("bert").save_pretrained(checkpoint)
    (run / "plots").mkdir()
    (run / "plots" / "loss.png").write_bytes(b"png")
    (run / "run.json").write_text(json.dumps(RECORD))
    (run / "results.json").write_text(json.dumps(RESULTS))
    template = tmp_path / "own.md"
    template.write_text(
        "---\n{{ card_data }}\n---\n# Ours: {{ name }}\n{% for plot in plots %}{{ plot.file }}{% endfor %}\n"
    )
    out = tmp_path / "out"
    options = [
        "--export_only",
        "--output_dir",
        out,
        "--card_template",
        template,
        "--license",
        "mit",
        "--language",
        "en",
    ]
    monkeypatch.setattr("cmlmcse.hub.export.verify", lambda *_: {"AutoModel": 0.0})  # tests/hub/test_push_to_hub.py
    monkeypatch.setattr(sys, "argv", ["push_to_hub.py", str(checkpoint), *map(str, options)])
    push.main()
    card = (out / "README.md").read_text()
    assert card.endswith("# Ours: cmlmcse-bert-base\nplots/loss.png")
    assert ModelCard(card).data.license == "mit"
    assert (out / "plots" / "loss.png").read_bytes() == b"png"


def test_records_of_the_folder_that_one_is_in(tmp_path, monkeypatch):
    """`.` is the export of its run as the whole path is."""
    (tmp_path / "export").mkdir()
    (tmp_path / "run.json").write_text(json.dumps(RECORD))
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    monkeypatch.chdir(tmp_path / "export")
    found = read_records(Path("."))
    assert found == read_records(tmp_path / "export")
    assert "sts" in found.results
