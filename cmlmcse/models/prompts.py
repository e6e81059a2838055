"""The prompts of a model: what its folder records for sentence-transformers, changed by what a user gives."""

from typing import TYPE_CHECKING, Any, NamedTuple

from modeling_cmlmcse.prompts import DOCUMENT, QUERY, complete_prompts

if TYPE_CHECKING:
    from modeling_cmlmcse import CMLMCSEForSentenceEmbedding

PROMPTS_FILE = "config_sentence_transformers.json"


class Prompts(NamedTuple):
    """Texts by name that are put before a sentence, and the name of the one for texts that are neither query nor
    document."""

    texts: dict[str, str]
    default: str | None

    @classmethod
    def of(cls, recorded: dict[str, Any]) -> "Prompts":
        """The prompts in the content of `PROMPTS_FILE`.

        Raises:
            ValueError: the content is malformed.
        """
        default = recorded.get("default_prompt_name")
        texts = complete_prompts(recorded.get("prompts"), default)
        return cls(texts, default if texts else None)

    @classmethod
    def of_model(cls, model: "CMLMCSEForSentenceEmbedding") -> "Prompts":
        """The prompts of a loaded model."""
        return cls(model.config.prompts, model.config.default_prompt_name)

    def changed(self, query: str | None, document: str | None) -> "Prompts":
        """These prompts with other texts for queries and documents, where they are given."""
        given = {name: text for name, text in ((QUERY, query), (DOCUMENT, document)) if text is not None}
        return Prompts.of({"prompts": {**self.texts, **given}, "default_prompt_name": self.default})

    def give(self, model: "CMLMCSEForSentenceEmbedding") -> None:
        """Make them the model's, in place."""
        model.config.prompts, model.config.default_prompt_name = self

    @property
    def for_card(self) -> str:
        """A paragraph for a model card; empty if there are no prompts."""
        shown = ", ".join(f"`{text}` ({name})" for name, text in self.texts.items() if text)
        return f"\n\nPrompts: {shown}. `encode_query` and `encode_document` put theirs before each text." * bool(shown)
