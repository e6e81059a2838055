"""The benchmark for GPUs, on a CPU with tiny models: that it runs and what it writes. It shows no speed."""

import importlib
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from torch.autograd import DeviceType

from support.paths import ROOT


@pytest.fixture
def gpu(monkeypatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu")


@pytest.mark.slow
def test_toy_run(gpu, tmp_path, monkeypatch, capsys):
    """Every arm at every size has a time, and the epoch is that of CMLM-CSE's smallest step."""
    path = tmp_path / "toy.json"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--toy", "--repetitions", "1", "--output", str(path)])
    gpu.main()
    record = json.loads(path.read_text())
    assert (record["title"], record["toy"], record["precision"]) == ("Tiny models: no speed", True, "float32")
    assert list(record["steps"]) == ["4 × 8", "8 × 16"]
    assert all(set(arms) == set(gpu.ARMS) for arms in record["steps"].values())
    assert all(arm["step"] > 0 for arms in record["steps"].values() for arm in arms.values())
    step = record["steps"]["4 × 8"]["CMLM-CSE, ours"]["step"]
    assert record["epoch_hours"] == pytest.approx(1_000_000 / 4 * step / 1000 / 3600)
    assert set(record["sentences_per_second"]) == {"ours", "sentence-transformers"}
    assert "A step, batch × tokens: 8 × 16" in capsys.readouterr().out


def test_it_expects_a_gpu(gpu, monkeypatch, capsys):
    """Without one it says how to try it."""
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        gpu.main()
    assert stopped.value.code == 2
    assert "expected a GPU, found none; --toy runs tiny models on the CPU" in capsys.readouterr().err


def test_work_of_a_gpu(gpu):
    """Kernels and copies count, the calls of the host and a user's own marks do not; all by step."""
    kinds = [(DeviceType.CUDA, False, 3000.0, 30), (DeviceType.CUDA, False, 600.0, 6), (DeviceType.CPU, False, 9.0, 9),
             (DeviceType.CUDA, True, 9000.0, 3)]  # fmt: skip
    names = "device_type", "is_user_annotation", "self_device_time_total", "count"
    events = [SimpleNamespace(**dict(zip(names, kind, strict=True))) for kind in kinds]
    assert gpu.gpu_work(events, 3) == {"busy": 1.2, "launches": 12.0}
