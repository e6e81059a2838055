"""Fixtures of all tests; what is a function lies in tests/support."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models lose by threads, and a worker runs on each core

import huggingface_hub.utils._http as client
import pytest
import yaml
from huggingface_hub import constants
from huggingface_hub.utils import close_session
from matplotlib.figure import Figure

from support.local_hub import READ_TOKEN, TOKEN, LocalHub, local_hub
from support.tiny import KINDS, OTHER_KINDS, tiny_backbone, tiny_tokenizer
from support.training import write_data, write_pairs, write_text


def pytest_collection_finish() -> None:
    """All that is imported by now stays. Without it each of the collections of garbage, one or more a training run, is
    ten times faster."""
    gc.freeze()


@pytest.fixture(scope="session")
def backbone_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A saved tiny masked-language model with its tokenizer, for each kind."""
    folders = {}
    for kind in (*KINDS, *OTHER_KINDS):
        folder = tmp_path_factory.mktemp(kind)
        tiny_backbone(kind).save_pretrained(folder)
        tiny_tokenizer(kind).save_pretrained(folder)
        folders[kind] = str(folder)
    return folders


@pytest.fixture
def sentences() -> list[str]:
    """Sentences of different lengths."""
    return ["the cat sat", "a big red dog ran under the small blue tree and sat on the mat", "w1 w2", "dog"]


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """200 different sentences, one a line."""
    return write_text(tmp_path / "text.txt")


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> Path:
    """The data folder."""
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def recipe(tmp_path, text_file, data_dir, backbone_folders) -> Path:
    """A recipe of a few steps, with a development set of 60 pairs and no scores at the end."""
    dev_set = write_pairs(tmp_path / "dev.tsv")
    fields = {
        "model_name_or_path": backbone_folders["bert"],
        "train_file": str(text_file),
        "data_dir": str(data_dir),
        "dev_set": str(dev_set),
        "final_evaluation": "none",
        "cmlm_weight": 0.1,
        "pooling": "avg",
        "learning_rate": "1e-3",
        "per_device_train_batch_size": 16,
        "max_steps": 12,
        "eval_steps": 6,
        "save_steps": 6,
        "logging_steps": 3,
        "use_cpu": True,
        "disable_tqdm": True,
        "output_dir": str(tmp_path / "run"),
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalHub]:
    """A Hub of this test's own, which this process's client speaks to; retries do not wait."""
    with local_hub(**{TOKEN: "write", READ_TOKEN: "read"}) as hub:
        settings = {"ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
        settings["HUGGINGFACE_CO_URL_TEMPLATE"] = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in {**settings, "HF_TOKEN_PATH": str(tmp_path / "no-login")}.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(client.time, "sleep", lambda seconds: None)
        close_session()
        yield hub
        close_session()


@pytest.fixture
def pictures() -> None:
    """Asked for by tests that look at pictures."""


@pytest.fixture(autouse=True)
def empty_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a quarter of a tiny run: where no test looks at them, the pictures are empty files."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: Path(path).touch())
