"""What a model's folder records, and what a name that is no folder costs."""

from pathlib import Path

import pytest
import transformers.utils

from cmlmcse.adaptation.files import ARMS
from cmlmcse.common.errors import InputError
from cmlmcse.hub.push import check_checkpoint
from cmlmcse.models import folders
from cmlmcse.models.encoders import load_encoder


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were asked for on a Hub that cannot be reached."""
    asked: list[str] = []

    def unreachable(source: str, name: str, **_: object) -> None:
        asked.append(f"{source}/{name}")
        raise OSError("We couldn't connect to 'https://huggingface.co' to load the files\nmore")

    monkeypatch.setattr(transformers.utils, "cached_file", unreachable)
    monkeypatch.setattr(folders, "_unreachable", {})
    return asked


def test_model_that_cannot_be_found_is_asked_for_once_a_minute(
    tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study asks for several files in each of its runs, and each try takes 25 seconds without a network."""
    reason = "no/body: neither a folder nor a model on the Hub: We couldn't connect to .* to load the files$"
    for name in ("config.json", "modules.json", "config.json"):
        with pytest.raises(InputError, match=reason):
            folders.cached_file("no/body", name)
    assert tries == ["no/body/config.json"]
    with pytest.raises(InputError, match="an/other: neither"):
        folders.cached_file("an/other", "config.json")
    now = folders.time.monotonic()
    monkeypatch.setattr(folders.time, "monotonic", lambda: now + folders.REMEMBERED)
    with pytest.raises(InputError, match="no/body: neither"):
        folders.cached_file("no/body", "config.json")
    assert tries == ["no/body/config.json", "an/other/config.json", "no/body/config.json"]


@pytest.mark.parametrize("began", [ARMS, "checkpoint-20"])
def test_a_folder_that_is_not_finished_says_so(began: str, tmp_path: Path) -> None:
    """The folder of adapt and that of a run have no model before their end: their names are right all the same."""
    with pytest.raises(InputError, match=r"found no config.json in it; check the name$"):
        load_encoder(str(tmp_path))
    with pytest.raises(InputError, match=r"found no config.json; check the name$"):
        check_checkpoint(str(tmp_path))
    (tmp_path / began).mkdir()
    for load in (load_encoder, check_checkpoint):
        with pytest.raises(InputError, match="not finished: wait for it, or go on with its command and"):
            load(str(tmp_path))
