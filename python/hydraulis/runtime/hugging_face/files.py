"""The small files of a Hugging Face model that a run carries along, so that an export has them too."""

from pathlib import Path

from hydraulis.config.data import DataConfig
from hydraulis.config.hugging_face.read import MODEL_CONFIG
from hydraulis.data.tokenization.chat_template import load_template
from hydraulis.errors import InvalidInputError
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
    """Copy them from the folder of a model into that of a run.

    The chat template is that by which the run writes conversations, where it is not the tokenizer's own. A
    tokenizer that the run does not read its text by is left behind (see `tokenizer_note`).

    Raises:
        InvalidInputError: a file of the model cannot be read (code `file_unreadable`).
        HydraulisError: one of the run cannot be written (`file_unwritable`).
    """
    folder = run.folder(CARRIED)
    for name in (MODEL_CONFIG,) if tokenizer_note(str(model), data) else (MODEL_CONFIG, *TOKENIZER_FILES):
        if (model / name).is_file():
            folder.write(name, _content(model / name))
    if data.chat_template and any(source.format == "chat" for source in data.sources):
        # transformers prefers it to one in tokenizer_config.json.
        folder.write(TEMPLATE, load_template(data.chat_template))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable_error(path, error) from error


def tokenizer_note(weights: str, data: DataConfig) -> str:
    """Say that a run on bytes begins from a model that has a tokenizer; else nothing.

    Args:
        weights: the folder of the model; empty for none.
        data: the section `data` of the run.
    """
    if not weights or not data.reads_bytes or not (Path(weights) / "tokenizer.json").is_file():
        return ""
    return (
        f"{weights} has a tokenizer, and data.tokenizer = 'bytes' gives other tokens than the model knows: "
        f"set data.tokenizer = '{weights}'"
    )


def carried_folder(checkpoint: Path) -> Path:
    """Give the folder in which the run of a checkpoint has them; it need not be there."""
    return checkpoint.absolute().parents[1] / CARRIED


def carried_files(folder: Path) -> list[Path]:
    """List those of the tokenizer that are there."""
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]


def check_output(output: Path) -> None:
    """Refuse to write a model folder where something is.

    Raises:
        InvalidInputError: the folder, or a file of its name, exists (code `file_unwritable`).
    """
    if output.exists():
        message = f"output '{output}' exists; name a folder that does not"
        raise InvalidInputError(message, code="file_unwritable")
