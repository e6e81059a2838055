"""The examples of docs/how-to/scale.md for schedulers: they parse, and launcher and command take their options."""

import re
import shlex
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser

from cmlmcse.training.parse import parse_recipe
from support.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "scale.md").read_text(encoding="utf-8")
SHELL = {'"$SLURM_NNODES"': "2", '"$SLURM_NODEID"': "1", "$((8 * SLURM_NNODES))": "16", '"$FIRST"': "machine-0",
         '"$JOB_COMPLETION_INDEX"': "1"}  # fmt: skip


def block(section: str) -> str:
    """The fenced block of a section."""
    (found,) = re.findall(r"^```\w*\n(.*?)^```", PAGE.split(f"## {section}\n")[1].split("\n## ")[0], re.M | re.S)
    return found


def launched(command: str, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """What `accelerate launch …` would do; the training command takes the rest."""
    monkeypatch.chdir(ROOT)
    for variable, value in SHELL.items():
        command = command.replace(variable, value)
    words = shlex.split(command)
    assert words[:2] == ["accelerate", "launch"]
    found = launch_command_parser().parse_args(words[2:])
    assert Path(found.config_file).is_file()
    assert found.training_script == "train.py"
    name, *_, run = parse_recipe(found.training_script_args)
    assert (name, run.resume_from_checkpoint) == ("cmlmcse-bert-base", "auto")
    return found


def test_slurm(monkeypatch) -> None:
    """Two machines of 8 GPUs."""
    script = block("SLURM")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    (command,) = re.findall(r"accelerate launch .*?(?=')", script.replace("\\\n", " "), re.S)
    found = launched(command, monkeypatch)
    assert (found.num_machines, found.num_processes, found.machine_rank, found.max_restarts) == (2, 16, 1, 3)
    assert found.rdzv_backend == "c10d"
    assert "--nodes=2" in script


def test_kubernetes(monkeypatch) -> None:
    """The pods are as many as the machines, and the first one's name is that of its set and job."""
    jobs = yaml.safe_load(block("Kubernetes"))
    assert jobs["kind"] == "JobSet"
    name, (job,) = jobs["metadata"]["name"], jobs["spec"]["replicatedJobs"]
    pods = job["template"]["spec"]
    (container,) = pods["template"]["spec"]["containers"]
    found = launched(container["args"][0], monkeypatch)
    assert pods["parallelism"] == pods["completions"] == found.num_machines
    assert found.num_processes == found.num_machines * container["resources"]["limits"]["nvidia.com/gpu"]
    assert found.main_process_ip == f"{name}-{job['name']}-0-0.{name}"
    assert found.rdzv_conf == "timeout=900"
    volumes = {volume["name"] for volume in pods["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
