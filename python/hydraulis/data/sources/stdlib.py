"""The functions and methods of the Python standard library, as a corpus.

Every machine with Python has it, and its lengths have the long tail of variable-length training. A document
is the source of one function: whole lines with decorators, byte by byte as in the file. Functions inside
another function are part of the outer one. Reading takes about 2 seconds on one core, most of it for parsing.
Two versions of Python give two corpora with different fingerprints.
"""

import ast
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hydraulis.data.corpus import Corpus
from hydraulis.errors import InvalidInputError

# Installed packages, tests (some of them broken on purpose) and caches are not part of the library.
_EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


class StandardLibrary:
    """The standard library of the running interpreter."""

    @staticmethod
    def load(progress: Callable[[int, int], None] | None = None, *, root: Path | None = None) -> Corpus:
        """Read every function and method, in the order of the files' paths and of their lines.

        Args:
            progress: Callback, called after each file with the number of finished files and of all files.
            root: Folder to read; None for the standard library.

        Returns:
            The corpus. Files that cannot be opened, are not UTF-8 or do not parse are left out and counted.

        Raises:
            InvalidInputError: There is no function (code `corpus_empty`).
        """
        root = Path(sysconfig.get_path("stdlib")) if root is None else root
        documents: list[bytes] = []
        num_skipped_files = 0
        paths = _source_files(root)
        for num_done, path in enumerate(paths, start=1):
            try:
                documents += _functions(path.read_bytes())
            except (OSError, SyntaxError, ValueError):
                num_skipped_files += 1
            if progress is not None:
                progress(num_done, len(paths))
        if not documents:
            message = f"root = '{root}' has no function in its {len(paths)} source files; use another folder"
            raise InvalidInputError(message, code="corpus_empty")
        return _corpus(documents, num_skipped_files)


def _source_files(root: Path) -> list[Path]:
    paths: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _EXCLUDED_FOLDERS]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(paths)


def _functions(source: bytes) -> Iterator[bytes]:
    """Yield the source of each outermost function.

    Raises:
        UnicodeDecodeError: The file is not UTF-8.
        SyntaxError: It does not parse.
        ValueError: It has a null byte (some versions of Python).
    """
    source.decode("utf-8")
    with warnings.catch_warnings():
        # Invalid escapes in the library must not fail a run that turns warnings into errors.
        warnings.simplefilter("ignore")
        module = ast.parse(source)
    # Like the tokenizer, bytes.splitlines breaks at \n, \r and \r\n only; str.splitlines breaks at more.
    lines = source.splitlines(keepends=True)
    for node in _outermost_functions(module):
        first = min(part.lineno for part in (node, *node.decorator_list))
        yield b"".join(lines[first - 1 : node.end_lineno])


def _outermost_functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _outermost_functions(child)


def _corpus(documents: list[bytes], num_skipped_files: int) -> Corpus:
    return Corpus(
        token_T=np.frombuffer(b"".join(documents), dtype=np.uint8),
        offset=np.cumsum([0, *map(len, documents)], dtype=np.int64),
        left_out={"files_that_do_not_parse": num_skipped_files},
    )
