"""Copies the small files of a Hugging Face model into the run's folder, so that an export includes them."""

from pathlib import Path

from hydraulis.config.data import CHAT_FORMATS, DataConfig
from hydraulis.config.hugging_face.read import MODEL_CONFIG
from hydraulis.data.tokenization.chat_template import load_template
from hydraulis.data.tokenization.tokenizer import BYTES, JsonTokenizer
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.files import unreadable_error
from hydraulis.runtime.records.run_directory import CARRIED, RunDirectory

TEMPLATE = "chat_template.jinja"
TOKENIZER_FILES = (
    "added_tokens.json",
    TEMPLATE,
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


def carry(model: Path, run: RunDirectory, data: DataConfig) -> None:
    """Copy config.json and the tokenizer files from a model's folder into a run's folder.

    A chat template of the run's configuration replaces the tokenizer's own. The tokenizer is not copied if
    the run does not use it to read text (see `tokenizer_note`).

    Raises:
        InvalidInputError: A file of the model cannot be read (code `file_unreadable`).
        HydraulisError: A file of the run cannot be written (`file_unwritable`).
    """
    folder = run.folder(CARRIED)
    for name in (MODEL_CONFIG,) if tokenizer_note(str(model), data) else (MODEL_CONFIG, *TOKENIZER_FILES):
        if (model / name).is_file():
            folder.write(name, _content(model / name))
    if data.chat_template and any(source.format in CHAT_FORMATS for _, source in data.placed_sources):
        # transformers prefers this file to a template in tokenizer_config.json.
        folder.write(TEMPLATE, load_template(data.chat_template))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable_error(path, error) from error


def check_tokenizer(weights: str, data: DataConfig) -> None:
    """Refuse a tokenizer that gives other tokens the numbers of the model's tokens.

    Args:
        weights: Folder of the model; empty for none.
        data: Section `data` of the run's configuration.

    Raises:
        InvalidInputError: A token has another text than in the model's tokenizer (code `tokenizer_invalid`).
    """
    own, models = _vocabularies(weights, data)
    other = next((token for token, text in sorted(own.items()) if models.get(token, text) != text), None)
    if other is not None:
        message = (
            f"data.tokenizer = '{data.tokenizer}' is that of another model: token {other} is '{own[other]}', "
            f"and in the tokenizer of {weights} '{models[other]}'; set data.tokenizer = '{weights}'"
        )
        raise InvalidInputError(message, code="tokenizer_invalid")


def tokenizer_note(weights: str, data: DataConfig) -> str:
    """Return a note if a run on text gives a model tokens that its tokenizer lacks, otherwise ''.

    A tokenizer that cannot be read, or of another model, is refused elsewhere (see `check_tokenizer`).

    Args:
        weights: Folder of the model; empty for none.
        data: Section `data` of the run's configuration.
    """
    if not _has_tokenizer(weights, data):
        return ""
    own, models = _vocabularies(weights, data)
    new = min(own.keys() - models.keys(), default=None)
    if data.tokenizer != BYTES and new is None:
        return ""
    example = "" if new is None else f" (token {new}, '{own[new]}', is absent there)"
    return (
        f"{weights} has a tokenizer, and data.tokenizer = '{data.tokenizer}' gives other tokens than the "
        f"model knows{example}: set data.tokenizer = '{weights}'"
    )


def _has_tokenizer(weights: str, data: DataConfig) -> bool:
    """Whether a run on text starts from a model with a tokenizer."""
    return bool(weights) and data.holds_text and (Path(weights) / "tokenizer.json").is_file()


def _vocabularies(weights: str, data: DataConfig) -> tuple[dict[int, str], dict[int, str]]:
    """Return the texts of the run's and of the model's tokens; none where they are not compared."""
    if not _has_tokenizer(weights, data) or data.tokenizer == BYTES:
        return {}, {}
    try:
        return JsonTokenizer(Path(data.tokenizer)).vocabulary, JsonTokenizer(Path(weights)).vocabulary
    except HydraulisError:
        return {}, {}


def carried_folder(checkpoint: Path) -> Path:
    """Return the folder of the copied model files in a checkpoint's run; it may be absent."""
    return checkpoint.absolute().parents[1] / CARRIED


def carried_files(folder: Path) -> list[Path]:
    """List the existing tokenizer files in a folder."""
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]


def check_output(output: Path) -> None:
    """Check that the path of a new model folder is free.

    Raises:
        InvalidInputError: A folder or file of that name exists (code `file_unwritable`).
    """
    if output.exists():
        message = f"output '{output}' exists; name a folder that does not"
        raise InvalidInputError(message, code="file_unwritable")
