"""What a model's folder records, and what a name that is no folder costs."""

import pytest
import transformers.utils

from cmlmcse.common.errors import InputError
from cmlmcse.models import folders


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
