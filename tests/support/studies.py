"""Small studies, and a script in train.py's place that writes records at once."""

import time
from pathlib import Path

import yaml

from cmlmcse.study.plan import Study

STAND_IN = '''
"""Writes what train.py would: the score is 100 · temp + seed; run_name says what goes wrong."""
import json, os, sys, time
from pathlib import Path
fields = dict(zip(sys.argv[2::2], sys.argv[3::2]))
folder, name = Path(fields["--output_dir"]), fields.get("--run_name")
busy = os.open(folder / "busy", os.O_CREAT | os.O_EXCL)  # two at a time would fail here
print("resumed" if "--resume_from_checkpoint" in fields else "fresh", os.environ["OMP_NUM_THREADS"], flush=True)
time.sleep(float(fields.get("--warmup_steps", 0)))
os.remove(folder / "busy")
if name == "fail":
    sys.exit("error: this cannot work")
if name == "half" and "--resume_from_checkpoint" not in fields:
    for step, whole in (("checkpoint-4", True), ("checkpoint-8", False)):
        (folder / step).mkdir()
        if whole:
            (folder / step / "trainer_state.json").touch()
            (folder / step / "rng_state.pth").touch()
    (folder / "export").mkdir()
    os.kill(os.getpid(), 9)
score = 100 * float(fields["--temp"]) + int(fields["--seed"])
(folder / "results.json").write_text(json.dumps({"dev": {"spearman": score}}))
log = [{"step": 2, "loss": 1}, {"step": 2, "eval_dev_score": score - 1}, {"step": 5, "eval_dev_score": score}]
record = {"steps": 5, "git_commit": "abc", "hardware": {"device": "cpu"}, "log": log}
(folder / "run.json").write_text(json.dumps(record))
'''

PLAN = {
    "recipe": "simcse-bert-base",
    "baseline": "plain",
    "seeds": [1, 2, 3],
    "metrics": ["dev.spearman", "sts.avg"],
    "common": {"max_steps": 5},
    "arms": {"plain": {"temp": 0.5}, "hot": {"temp": 0.6, "bf16": False}},
    "published": {"source": "a paper, Table 9", "dev.spearman": {"hot": 83.76}},
}

METHOD_ARMS = {
    "cold": {"temp": 0.1},
    "warm": {"temp": 0.2},
    "low": {"temp": 0.3},
    "high": {"temp": 0.4},
}


def write(folder: Path, **changes: object) -> Path:
    """A study's file; a change to None leaves the entry out."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in {**PLAN, **changes}.items() if v is not None}, sort_keys=False))
    return path


def logs(study: Study) -> dict[str, str]:
    """Arm and seed → the run's log."""
    return {f"{run.arm}-{run.seed}": (run.folder / "log.txt").read_text() for run in study.runs}


def wait_for(path: Path, seconds: float = 60.0) -> None:
    """Until a file is there."""
    end = time.time() + seconds
    while not path.exists():
        assert time.time() < end, f"no {path} after {seconds} s"
        time.sleep(0.02)
