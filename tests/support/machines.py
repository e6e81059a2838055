"""Two machines, pretended: two launchers with configuration/accelerate/machines.yaml, which meet on the loopback."""

import os
import socket
import subprocess
import time
from pathlib import Path

import yaml

from support import warm
from support.paths import ROOT

PATIENCE = 1500  # seconds; on two busy cores a launch may take half of them, on quiet ones half a minute


def on_two_machines(folder: Path, *command: object, restarts: int = 0) -> str:
    """Run a script, or `-m MODULE`, with its arguments in a folder that both machines share: one process on each, over
    gloo → standard output of both.

    Args:
        folder: the working folder; the configuration's file is written there.
        command: the words after `accelerate launch …`.
        restarts: how often the launchers may start anew after a failure.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fields = yaml.safe_load((ROOT / "configuration" / "accelerate" / "machines.yaml").read_text())
    fields |= {"num_processes": 2, "mixed_precision": "no", "use_cpu": True}
    fields |= {"main_process_ip": "127.0.0.1", "main_process_port": port}
    (folder / "machines.yaml").write_text(yaml.safe_dump(fields))
    launch = [warm.python(), "-m", "accelerate.commands.launch", "--config_file", folder / "machines.yaml"]
    launch += ["--rdzv_backend", "c10d", "--max_restarts", restarts]
    machines: list[subprocess.Popen[str]] = []
    try:
        for machine in range(2):
            words = [str(word) for word in (*launch, "--machine_rank", machine, *command)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # docs/how-to/scale.md says why
            environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
            with open(folder / f"machine-{machine}.log", "w") as log:
                machines.append(subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log, text=True))
            wait_for_port(port, machines[0])
        statuses = [machine.wait(PATIENCE) for machine in machines]
    finally:
        for machine in machines:
            machine.terminate()  # a launcher then ends its process
        for machine in machines:
            machine.wait()
    said = "".join((folder / f"machine-{machine}.log").read_text() for machine in range(2))
    assert statuses == [0, 0], said[-5000:]
    return said


def wait_for_port(port: int, process: subprocess.Popen[str]) -> None:
    """Until the first machine listens, or has ended. The second one would else take its place."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
