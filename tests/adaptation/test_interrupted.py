"""adapt that is stopped or killed says what it keeps, and goes on to the bit."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cmlmcse.adaptation import budget, choice, pipeline, processes, rounds
from cmlmcse.adaptation.choice import Change
from cmlmcse.adaptation.clock import Clock
from cmlmcse.adaptation.command import main
from cmlmcse.adaptation.files import REQUEST
from cmlmcse.adaptation.request import SAME, check_request, keep_request
from cmlmcse.common.errors import InputError, Stopped
from cmlmcse.common.signals import terminable
from cmlmcse.training.checkpoints import TEMPORARY
from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from support import warm
from support.paths import ROOT

FIRST, SECOND = "crops-0.0003", "crops-0.0001"  # the folders of the two arms
RESUME = ["--resume_from_checkpoint", "auto"]


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch):
    """Two arms of 4 steps, both trained on to 8, with a checkpoint every second step."""
    monkeypatch.setattr(budget, "COMPARED_STEPS", 4)
    monkeypatch.setattr(rounds, "EVERY", 2)


@pytest.fixture(scope="module")
def words(corpus, backbone) -> list[str]:
    """The command without its folder."""
    fields = ["--views", "crops", "--per_device_train_batch_size", "16", "--bf16", "false"]
    return [backbone, str(corpus), "--max_steps", "8", *fields]


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory) -> Path:
    """The folder of the command that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    assert adapt_until("none", words, folder) == 0
    return folder


def adapt_until(path: str, words: list[str], folder: Path) -> int:
    """Adapt, in a process that is killed when it opens, renames or removes this path in the folder. Its status."""
    script = ROOT / "tests" / "support" / "killable.py"
    command = [warm.python(), script, folder, path, "adapt", *words, "--output_dir", folder, *RESUME]
    return subprocess.run(list(map(str, command)), capture_output=True, check=False, timeout=240).returncode


def stopped_by(words: list[str], folder: Path, capsys) -> tuple[int, str]:
    """Adapt in this process until it stops → the status and the last line."""
    with pytest.raises(SystemExit) as stop:
        main([*words, "--output_dir", str(folder)])
    return stop.value.code, capsys.readouterr().err.strip().splitlines()[-1]


def line(cause: str, folder: Path) -> str:
    """What the last line must say."""
    kept = f"finished arms and checkpoints in {folder} are kept"
    return f"stopped: {cause}; {kept}; go on with the same command and --resume_from_checkpoint auto"


def results_of(folder: Path) -> dict[str, Any]:
    """results.json without the seconds."""
    results = json.loads((folder / "results.json").read_text())
    del results["seconds"]
    for arm in results["adapt"]["arms"].values():
        del arm["seconds"]
    (results["adapt"]["second_split"] or {}).pop("seconds", None)
    return results


def assert_equal(found: Path, expected: Path) -> None:
    """The results and the weights of the export, to the bit; nothing half-written is left."""
    assert results_of(found) == results_of(expected)
    names = [sorted(path.name for path in (folder / "export").iterdir()) for folder in (found, expected)]
    assert names[0] == names[1]
    weights = [(folder / "export" / "model.safetensors").read_bytes() for folder in (found, expected)]
    assert weights[0] == weights[1]
    assert not [path for name in (TEMPORARY, ".export.incomplete") for path in found.rglob(name)]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_in_an_arm(words, whole, tmp_path):
    """By SIGKILL: while the second arm saves a checkpoint, in the first round and in the second; between its two
    records, when those of the first round are gone; and while the report is written."""
    folder, second = tmp_path / "out", tmp_path / "out" / "arms" / SECOND
    assert adapt_until(f"{SECOND}/{TEMPORARY}/checkpoint-4/trainer_state.json", words, folder) == -signal.SIGKILL
    assert (folder / "arms" / FIRST / "results.json").exists()
    assert [path.name for path in second.glob("checkpoint-*")] == ["checkpoint-2"]
    assert adapt_until(f"{SECOND}/{TEMPORARY}/checkpoint-8/trainer_state.json", words, folder) == -signal.SIGKILL
    assert json.loads((second / "run.json").read_text())["steps"] == 4
    assert adapt_until(f"{SECOND}/.results.json", words, folder) == -signal.SIGKILL
    assert json.loads((second / "run.json").read_text())["steps"] == 8
    assert not (second / "results.json").exists()
    assert adapt_until("out/report.md", words, folder) == -signal.SIGKILL
    assert not (folder / "results.json").exists()
    assert adapt_until("none", words, folder) == 0
    assert_equal(folder, whole)


@pytest.mark.slow
def test_sigterm_in_an_arm(words, whole, tmp_path, capsys, monkeypatch):
    """The step is finished and saved, the first arm is kept; the same command goes on, to the bit."""
    step, folder, steps = ContrastiveTrainer.training_step, tmp_path / "out", []

    def signalled(self, *given):
        steps.append(self.state.global_step)
        if len(steps) == 7:  # the third of the second arm
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *given)

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ContrastiveTrainer, "training_step", signalled)
    assert stopped_by(words, folder, capsys) == (143, line("by SIGTERM", folder))
    assert signal.getsignal(signal.SIGTERM) is handler
    assert (folder / "arms" / FIRST / "results.json").exists()
    assert sorted(path.name for path in (folder / "arms" / SECOND).glob("checkpoint-*")) == [
        "checkpoint-2",
        "checkpoint-3",
    ]
    assert not [name for name in ("export", "results.json", "report.md") if (folder / name).exists()]
    main([*words, "--output_dir", str(folder), *RESUME])
    assert steps[:10] == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]  # no step was made twice
    assert_equal(folder, whole)


@pytest.mark.slow
def test_stopped_between_arms(words, whole, tmp_path, capsys, monkeypatch):
    """By Ctrl-C before the second arm, then by SIGTERM while the averages are compared: no arm is trained twice."""
    train, folder, calls, judge = processes.run, tmp_path / "out", [], choice.judge

    def interrupted(*given):
        calls.append(given)
        if len(calls) == 2:
            raise Stopped("by Ctrl-C; no checkpoint was written yet; the same command starts again", status=130)
        return train(*given)

    def terminated(*given):
        os.kill(os.getpid(), signal.SIGTERM)
        return judge(*given)

    monkeypatch.setattr(processes, "run", interrupted)
    assert stopped_by(words, folder, capsys) == (130, line("by Ctrl-C", folder))
    monkeypatch.setattr(choice, "judge", terminated)
    assert stopped_by([*words, *RESUME], folder, capsys) == (143, line("by SIGTERM", folder))
    assert len(calls) == 5
    assert not [name for name in ("export", "results.json", "report.md") if (folder / name).exists()]
    monkeypatch.setattr(choice, "judge", judge)
    main([*words, "--output_dir", str(folder), *RESUME])
    assert len(calls) == 5
    assert_equal(folder, whole)


def test_sigterm_on_the_second_split(corpus, encoder, tmp_path, capsys, monkeypatch):
    """The step is finished and saved, and the same command goes on, to the bit."""
    monkeypatch.setattr(budget, "ENCODER_COMPARED_STEPS", 4)
    monkeypatch.setattr(
        choice, "judge", lambda *given: Change("halves+words", "passages are found", 1.0, 2.0, (0.5, 1.5))
    )
    step, steps, stop = ContrastiveTrainer.training_step, [], [None]
    given = [
        encoder,
        str(corpus),
        "--views",
        "title_body",
        "--learning_rate",
        "1e-3",
        "--max_steps",
        "4",
        "--bf16=false",
    ]

    def signalled(self, *given):
        steps.append(self.state.global_step)
        if len(steps) == stop[0]:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *given)

    monkeypatch.setattr(ContrastiveTrainer, "training_step", signalled)
    main([*given, "--output_dir", str(tmp_path / "whole")])
    assert json.loads((tmp_path / "whole" / "results.json").read_text())["adapt"]["second_split"]
    made = list(steps)
    assert made[:5] == [0, 1, 2, 3, 0]
    steps.clear()
    stop[0] = 5  # the first of the second split
    assert stopped_by(given, tmp_path / "out", capsys) == (143, line("by SIGTERM", tmp_path / "out"))
    seconds = tmp_path / "out" / "seconds.json"
    assert float(seconds.read_text()) > 0
    seconds.write_text("5000")
    main([*given, "--output_dir", str(tmp_path / "out"), *RESUME])
    assert 5000 < json.loads((tmp_path / "out" / "results.json").read_text())["seconds"] < 5600
    assert steps == made  # no step was made twice
    assert_equal(tmp_path / "out", tmp_path / "whole")

    steps.clear()
    stop[0], write = None, pipeline.write_folder
    # Both splits are done.
    monkeypatch.setattr(pipeline, "write_folder", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert stopped_by(given, tmp_path / "late", capsys) == (143, line("by SIGTERM", tmp_path / "late"))
    monkeypatch.setattr(pipeline, "write_folder", write)
    main([*given, "--output_dir", str(tmp_path / "late"), *RESUME])
    assert steps == made
    assert_equal(tmp_path / "late", tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--seed", "7"], "expects the seed that it was started with, 42, found 7; give the same command"),
        (["--learning_rate", "1e-3"], "expects the learning_rate that it was started with, none, found 1e-3"),
        (["--max_documents", "200"], "expects the max_documents that it was started with, 200000, found 200"),
        ("text", "expects the text that it was started with, corpus.jsonl, found another content under that name"),
        ("model", "expects the model that it was started with, {model}, found another content under that name"),
    ],
)
def test_another_request_does_not_go_on(change, words, corpus, backbone, tmp_path, capsys, monkeypatch):
    """The arms of the first call have trained on documents that another seed or text holds out."""
    shutil.copytree(backbone, tmp_path / Path(backbone).name)
    shutil.copy(corpus, tmp_path / "corpus.jsonl")
    given = [str(tmp_path / Path(backbone).name), str(tmp_path / "corpus.jsonl"), "--views", "crops", "--bf16=false"]

    def interrupted(*_):
        raise Stopped("by Ctrl-C", status=130)

    monkeypatch.setattr(processes, "run", interrupted)
    assert stopped_by([*given, "--max_steps", "8"], tmp_path / "out", capsys)[0] == 130
    if change == "text":
        lines = (tmp_path / "corpus.jsonl").read_text().splitlines()
        (tmp_path / "corpus.jsonl").write_text("\n".join(reversed(lines)) + "\n")
    if change == "model":
        (tmp_path / Path(backbone).name / "config.json").open("a").write("\n")
    more = change if isinstance(change, list) else []
    words = words.format(model=Path(backbone).name)
    status, said = stopped_by([*given, "--max_steps", "8", *more, *RESUME], tmp_path / "out", capsys)
    assert (status, words in said) == (2, True), said


def test_another_number_of_processes_does_not_go_on(tmp_path, monkeypatch):
    """The batch is that of all processes."""
    args = SimpleNamespace(model="owner/name", text="absent.txt", fields={}, **dict.fromkeys(SAME))
    keep_request(tmp_path, args)
    check_request(tmp_path, args)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="expects the processes that it was started with, 1, found 2; give the same c"):
        check_request(tmp_path, args)


def test_stopped_before_anything_is_written(words, tmp_path, capsys, monkeypatch):
    """Nothing is kept then, and nothing is said to be."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "adapt_in", interrupted)
    status, said = stopped_by(words, tmp_path / "out", capsys)
    assert (status, "stopped: by Ctrl-C; nothing was written yet; the same command starts again" in said) == (130, True)
    assert not (tmp_path / "out").exists()


def test_the_seconds_of_all_calls_are_added(tmp_path, monkeypatch):
    """Of one that was stopped, of one that was killed up to its last run, and of the last one."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def train(words, start_values):
        now[0] += 7

    def stop(words, start_values):
        now[0] += 20
        raise Stopped("by Ctrl-C", status=130)

    with Clock(tmp_path):
        now[0] += 3
    assert not list(tmp_path.iterdir())  # the folder is nobody's yet
    (tmp_path / REQUEST).touch()
    with pytest.raises(Stopped), Clock(tmp_path) as clock:
        clock.around(stop)([], None)
    clock = Clock(tmp_path)
    clock.around(train)([], None)
    now[0] += 1000  # lost
    with Clock(tmp_path) as clock:
        clock.around(train)([], None)
        now[0] += 5
        assert clock.seconds() == 20 + 7 + 7 + 5


def test_a_plan_of_another_version(corpus, backbone, tmp_path, capsys):
    """It is no new folder; and who goes on there is told."""
    (tmp_path / "plan.json").write_text('{"other": 1}')
    given = [backbone, str(corpus), "--max_steps", "8"]
    assert "must be new or empty, found plan.json" in stopped_by(given, tmp_path, capsys)[1]
    assert "expected the plan of this version of cmlmcse" in stopped_by([*given, *RESUME], tmp_path, capsys)[1]


def test_what_else_ends_an_arm_says_so(words, tmp_path, capsys, monkeypatch):
    """A loss that is no number is not Ctrl-C."""

    def diverged(*_):
        raise Stopped("the loss of a batch of step 4 is nan")

    monkeypatch.setattr(processes, "run", diverged)
    assert stopped_by(words, tmp_path / "out", capsys) == (
        1,
        "stopped: crops, rate 0.0003: the loss of a batch of step 4 is nan",
    )


def wait_for_sigterm() -> None:
    """As a library that takes every error for one of its own."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Exception as error:
        raise InputError("a damaged file") from error


def test_sigterm_is_no_error_of_a_library():
    """What catches every error does not catch it; other endings pass; the handler is as before."""
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="by SIGTERM; kept") as stop, terminable(lambda: "kept"):
        wait_for_sigterm()
    assert stop.value.status == 143
    with pytest.raises(SystemExit, match="3"), terminable(lambda: "kept"):
        raise SystemExit(3)
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.fixture
def changing(corpus, backbone, tmp_path) -> tuple[Path, list[str]]:
    """A copy of the text, and the command without its folder."""
    text = shutil.copy(corpus, tmp_path / "corpus.jsonl")
    fields = ["--views", "crops", "--per_device_train_batch_size", "16", "--bf16=false"]
    return Path(text), [backbone, str(text), "--max_steps", "4", *fields]


def append(text: Path) -> None:
    """As another program that writes to it."""
    with text.open("a") as lines:
        lines.write(json.dumps({"title": "new", "text": "one more document"}) + "\n")


CHANGED = "found it changed ({now:,} bytes, {before:,} before); start again with another --output_dir when nothing"


def test_the_text_changes_while_an_arm_trains(changing, tmp_path, capsys, monkeypatch):
    """An arm that trained meanwhile is not kept, and nothing else is trained or written. With the text put back, the
    same command goes on with that arm."""
    text, words = changing
    before, train, calls = text.read_bytes(), processes.run, []

    def changes(*given):
        calls.append(given)
        if len(calls) == 2:
            append(text)
        if len(calls) == 3:
            raise Stopped("by Ctrl-C", status=130)
        return train(*given)

    monkeypatch.setattr(processes, "run", changes)
    out = tmp_path / "out"
    status, said = stopped_by(words, out, capsys)
    assert (status, said.startswith(f"error: {text}: expected text that stays as it is")) == (2, True)
    assert CHANGED.format(now=text.stat().st_size, before=len(before)) in said
    assert len(calls) == 2
    assert [path.name for path in (out / "arms").iterdir()] == [FIRST]
    assert not [name for name in ("export", "results.json", "report.md") if (out / name).exists()]
    assert "expects the text that it was started with" in stopped_by([*words, *RESUME], out, capsys)[1]
    text.write_bytes(before)
    assert stopped_by([*words, *RESUME], out, capsys)[0] == 130
    assert [str(out / "arms" / SECOND) in " ".join(map(str, given)) for given, _ in calls] == [False, True, True]


@pytest.mark.parametrize("place", ["keep_request", "choose"])
def test_the_text_changes_between_the_steps(place, changing, tmp_path, capsys, monkeypatch):
    """Before the first arm, and while its result is scored."""
    text, words = changing
    step, trained = getattr(pipeline, place), []

    def changes(*given):
        result = step(*given)
        append(text)
        return result

    train = processes.run
    monkeypatch.setattr(pipeline, place, changes)
    monkeypatch.setattr(processes, "run", lambda *given: trained.append(given) or train(*given))
    status, said = stopped_by([*words, "--learning_rate", "3e-4"], tmp_path / "out", capsys)
    assert (status, "found it changed" in said) == (2, True)
    assert len(trained) == (place == "choose")
    assert not [name for name in ("export", "results.json", "report.md") if (tmp_path / "out" / name).exists()]
