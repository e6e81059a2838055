"""adapt in several processes, started by `accelerate launch -m cmlmcse.adapt` or as it starts them."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from cmlmcse.adaptation.command import main
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
