"""adapt in several processes, started by `accelerate launch -m cmlmcse.adapt` or as it starts them."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from cmlmcse.adaptation import pipeline, processes
from cmlmcse.adaptation.command import main
from cmlmcse.common.signals import terminable
from support.machines import on_two_machines
from support.processes import launch


@pytest.mark.slow
def test_two_machines(corpus, backbone, tmp_path):
    """One process on each, whose launchers meet on the loopback. Both train every arm; the first one chooses, and
    writes the same kind of folder as one process does. A second launch finds it finished."""
    words = [backbone, corpus, "--output_dir", tmp_path / "out", "--max_steps", 6, "--per_device_train_batch_size", 8]
    words += ["--learning_rate", 3e-3, "--views", "title_body", "--bf16", "false"]
    words += ["--use_cpu", torch.accelerator.is_available()]  # else of itself
    on_two_machines(tmp_path, "-m", "cmlmcse.adapt", *words)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    runs = [json.loads(path.read_text()) for path in (tmp_path / "out" / "arms").glob("*/run.json")]
    assert len(runs) == len(results["adapt"]["arms"]) == 1
    assert [(run["hardware"]["processes"], run["steps"]) for run in runs] == [(2, 6)]
    assert results["adapt"]["best_candidate"] > results["adapt"]["before"]
    assert np.isfinite(SentenceTransformer(str(tmp_path / "out" / "export")).encode(["w1 w2"])).all()
    launch(main, 2, tmp_path, *words, "--resume_from_checkpoint", "auto")


def test_a_wrong_field_ends_all(corpus, backbone, tmp_path):
    """The first process says what is wrong; no other one waits for it."""
    words = [backbone, corpus, "--output_dir", tmp_path / "out", "--views", "none"]
    with pytest.raises(AssertionError, match="error: views must be one of") as failed:
        launch(main, 2, tmp_path, *words)
    assert str(failed.value).count("error") == 1
    assert not (tmp_path / "out").exists()


def terminated_while_it_scores(arguments: list[str]) -> None:
    """adapt, whose first process gets SIGTERM before anything is written, as all get it from a launcher."""
    pipeline.adapt_in = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    main(arguments)


def test_sigterm_before_anything_is_written(corpus, backbone, tmp_path):
    """The first process says so, and leaves no empty folder."""
    words = [backbone, corpus, "--output_dir", tmp_path / "out", "--views", "crops"]
    with pytest.raises(AssertionError, match=r"stopped: by SIGTERM; nothing was written yet; the same command starts"):
        launch(terminated_while_it_scores, 2, tmp_path, *words)
    assert not (tmp_path / "out").exists()


def changed_before_an_arm(arguments: list[str]) -> None:
    """adapt, while whose first process begins something writes to the text."""
    keep = pipeline.keep_request

    def changes(*given: object) -> None:
        keep(*given)
        with open(arguments[1], "a") as text:
            text.write("\n")

    pipeline.keep_request = changes
    main(arguments)


def test_a_changed_text_ends_all(corpus, backbone, tmp_path):
    """The first process finds it; no other one waits for it."""
    text = shutil.copy(corpus, tmp_path / "corpus.jsonl")
    words = [backbone, text, "--output_dir", tmp_path / "out", "--views", "crops", "--max_steps", 4, "--bf16=false"]
    with pytest.raises(AssertionError, match=r"error: .*corpus.jsonl: expected text that stays as it is") as failed:
        launch(changed_before_an_arm, 2, tmp_path, *words)
    assert str(failed.value).count("error: ") == 1
    assert not (tmp_path / "out" / "arms").exists()


def test_sigterm_where_processes_may_wait_for_each_other(monkeypatch):
    """It ends the first process at once while all of them train; before and after that it is answered."""
    found, answer = [], signal.getsignal(signal.SIGTERM)
    for name in ("run", "from_first_process"):
        monkeypatch.setattr(processes, name, lambda *_: found.append(signal.getsignal(signal.SIGTERM)))
    with terminable(lambda: "kept"):
        inside, leading = signal.getsignal(signal.SIGTERM), processes.lead()
        next(leading)([], None)
        assert signal.getsignal(signal.SIGTERM) is inside
        assert list(leading) == []
    assert found == [signal.SIG_DFL, signal.SIG_DFL, inside]  # the last: nothing is left to do
    assert signal.getsignal(signal.SIGTERM) is answer
