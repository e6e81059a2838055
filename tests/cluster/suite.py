"""The Ray Data script of docs/how-to/scale.md on a local cluster of two workers, one of which is lost on the way:
`make test-ray` installs Ray and runs this.

The name keeps it out of `make test`: Ray's processes take over a minute to start and meet on two CPU cores.
"""

import re
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import ray
from pyarrow import parquet
from ray.cluster_utils import Cluster

from cmlmcse.hub.export import export
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.paths import ROOT
from support.tiny import WORDS, tiny_tokenizer

PAGE = ROOT / "docs" / "how-to" / "scale.md"
FILES, ROWS = 24, 40
PATIENCE = 900  # seconds; a cluster's processes take minutes to start on two busy cores
# In the script: what is there; blocks of a file's rows, because Ray makes one block of such small files; batches of
# eight texts; and a pause in each, so that there is time to lose the worker that notes itself.
HERE = {
    'address="auto"': 'address="ADDRESS", log_to_driver=False',
    "filesystem=files)\nvectors": f"filesystem=files).repartition({FILES})\nvectors",
    'filesystem("s3")': 'filesystem("file")',
    "BUCKET": "PLACE",
    '"MODEL"': '"PLACE/MODEL"',
    "batch_size=1024": "batch_size=8",
    "size=16": "size=2",
    "num_gpus=1": "num_cpus=1",
    "        texts = table": """\
        open("PLACE/encodes-" + ray.get_runtime_context().get_node_id(), "w").close()
        __import__("time").sleep(0.2)
        texts = table""",
}


@pytest.fixture
def place(backbone_folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with prompts, and a folder of Parquet files of texts with their numbers."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of Ray's processes
    model = CMLMCSEForSentenceEmbedding.from_backbone(
        backbone_folders["bert"], pooling="avg", cmlm_weight=0.0, prompts={"query": "w1 w2 ", "document": "w3 "}
    )
    export(model.eval(), tiny_tokenizer("bert"), tmp_path / "MODEL")
    rng = np.random.default_rng(0)
    (tmp_path / "texts").mkdir()
    for number in range(FILES):
        texts = [" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(ROWS)]
        rows = range(number * ROWS, (number + 1) * ROWS)
        parquet.write_table(pyarrow.table({"n": rows, "text": texts}), tmp_path / "texts" / f"{number}.parquet")
    return tmp_path


def script(place: Path, address: str) -> str:
    """The page's script, for this place."""
    section = PAGE.read_text().split("## Encode a corpus")[1]
    (code,) = re.findall(r"^```py\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    for written, meant in HERE.items():
        assert written in code, written
        code = code.replace(written, meant)
    return code.replace("PLACE", str(place)).replace("ADDRESS", address)


def written_files(place: Path) -> list[Path]:
    """The files of vectors that are not empty."""
    return [path for path in (place / "vectors").glob("*.parquet") if path.stat().st_size > 0]


def lose_a_worker(place: Path) -> None:
    """Run the script on two workers, and kill one that encodes when the first vectors are written."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    workers = [cluster.add_node(num_cpus=3) for _ in range(2)]
    cluster.wait_for_nodes()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            exec(script(place, cluster.address), {"__name__": "__main__"})
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    end = time.monotonic() + PATIENCE
    try:
        while not written_files(place) and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.1)
        assert failed == []
        assert 0 < len(written_files(place)) < FILES / 2  # each is a block
        cluster.remove_node(
            next(each for each in workers if (place / f"encodes-{each.node_id}").exists()), allow_graceful=False
        )
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert failed == []
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_worker_is_lost(place) -> None:
    """Every row is there once, with its columns, and has the vector that one process gives."""
    lose_a_worker(place)
    assert len(written_files(place)) == FILES
    found = parquet.read_table(place / "vectors").sort_by("n")
    expected = parquet.read_table(place / "texts").sort_by("n")
    assert found["n"].to_pylist() == list(range(FILES * ROWS))
    assert found["text"].to_pylist() == expected["text"].to_pylist()
    model = CMLMCSEForSentenceEmbedding.from_pretrained(place / "MODEL").eval()
    vectors = model.encode_document(expected["text"].to_pylist(), tokenizer=tiny_tokenizer("bert"))
    np.testing.assert_allclose(np.stack(found["embedding"].to_numpy()), vectors, atol=1e-5)
