"""Fixtures of all tests; what is a function lies in tests/support.

The process that hands the tests to the workers reads this file too. So what takes seconds to import is imported where
it is used.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("ACCELERATE_MIXED_PRECISION", "no")  # fp32 on every machine, whatever is faster there
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models lose by threads, and a worker runs on each core

import pytest
import yaml

from support import warm
from support.combinations import left_out

if TYPE_CHECKING:
    from support.local_hub import LocalHub


def pytest_configure(config: pytest.Config) -> None:
    """One server of warm processes for all workers."""
    if not hasattr(config, "workerinput"):
        stack = ExitStack()
        stack.enter_context(warm.server())
        config.add_cleanup(stack.close)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what other cases cover, and order the rest.

    xdist hands each worker a part of the tests in this order, and a worker that is done takes from the end of
    another's part. So each part has slow tests first, those of a file together, and quick ones last."""
    config.hook.pytest_deselected(items=[item for item in items if left_out(item.nodeid)])
    items[:] = [item for item in items if not left_out(item.nodeid)]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    files = [list(tests) for _, tests in groupby(slow, key=lambda item: item.path)]
    items.clear()
    for worker in range(workers):
        items += chain.from_iterable(files[worker::workers])
        missing = max(0, (worker + 1) * (len(slow) + len(quick)) // workers - len(items))
        items += quick[:missing]
        del quick[:missing]
    items += quick


def pytest_collection_finish() -> None:
    """All that is imported by now stays, and no collection of garbage looks through it again. That makes each, one or
    more a training run, ten times faster."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def what_is_imported_stays() -> Iterator[None]:
    """What the tests of a file have imported stays too. Looking through it again and again took a fifth of all time."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """What a test changes in the environment ends with it. Transformers marks a run with FSDP there, and Accelerate its
    precision; a later test would inherit them."""
    before = {**os.environ}
    yield
    changed = {name for name, _ in before.items() ^ os.environ.items()} - {"PYTEST_CURRENT_TEST"}
    for name in changed:
        os.environ.pop(name, None)
        os.environ.update({name: before[name]} if name in before else {})


@pytest.fixture(scope="session")
def backbone_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A saved tiny masked-language model with its tokenizer, for each kind; and `shallow`, a BERT of three blocks
    instead of six, for runs whose depth does not matter."""
    from support.tiny import KINDS, OTHER_KINDS, tiny_backbone, tiny_tokenizer

    models = {kind: (kind, tiny_backbone(kind)) for kind in (*KINDS, *OTHER_KINDS)}
    models["shallow"] = ("bert", tiny_backbone("bert", num_hidden_layers=3))
    folders = {}
    for name, (kind, model) in models.items():
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        tiny_tokenizer(kind).save_pretrained(folder)
        folders[name] = str(folder)
    return folders


@pytest.fixture
def sentences() -> list[str]:
    """Sentences of different lengths."""
    return ["the cat sat", "a big red dog ran under the small blue tree and sat on the mat", "w1 w2", "dog"]


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """200 different sentences, one a line."""
    from support.training import write_text

    return write_text(tmp_path / "text.txt")


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> Path:
    """The data folder."""
    from support.training import write_data

    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def recipe(tmp_path, text_file, data_dir, backbone_folders) -> Path:
    """A recipe of a few steps, with a development set of 60 pairs and no scores at the end."""
    from support.training import SHORT_RUN, write_pairs

    dev_set = write_pairs(tmp_path / "dev.tsv")
    fields = {
        "model_name_or_path": backbone_folders["shallow"],
        "train_file": str(text_file),
        "data_dir": str(data_dir),
        "dev_set": str(dev_set),
        "final_evaluation": "none",
        "cmlm_weight": 0.1,
        "pooling": "avg",
        "learning_rate": "1e-3",
        **SHORT_RUN,
        "output_dir": str(tmp_path / "run"),
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalHub]:
    """A Hub of this test's own, which this process's client speaks to; retries do not wait."""
    import huggingface_hub.utils._http as client
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    from support.local_hub import READ_TOKEN, TOKEN, local_hub

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
def warm_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process starts with sys.executable starts at once: see tests/support/warm.py."""
    monkeypatch.setattr(sys, "executable", warm.python())


@pytest.fixture
def pictures() -> None:
    """Asked for by tests that look at pictures."""


@pytest.fixture(autouse=True)
def empty_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a quarter of a tiny run: where no test looks at them, the pictures are empty files."""
    if "pictures" not in request.fixturenames:
        from matplotlib.figure import Figure

        monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: Path(path).touch())


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of the library datasets, where vectors of teachers and neighbours are kept too."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"
