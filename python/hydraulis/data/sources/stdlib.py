"""The functions and methods of the interpreter's own standard library, as a corpus.

Every machine that can train already has it, and its lengths have the long tail that variable-length
training is about. A document is the source of one function: whole lines, decorators included, exactly the
bytes of the file. A function defined inside another one is no document, since the outer one holds its text.
Reading takes about 2 seconds on one core, nearly all of it parsing. Two Python versions give two corpora;
the fingerprint tells them apart.
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

# Not the library itself: installed packages, the tests (some of them broken on purpose) and caches.
_EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


class StandardLibrary:
    """The source of the running interpreter's standard library."""

    @staticmethod
    def load(progress: Callable[[int, int], None] | None = None, *, root: Path | None = None) -> Corpus:
        """Read every function and method, in the order of the files' paths and then of their lines.

        Args:
            progress: called after each file with the number of files done and of all files.
            root: the folder to read; the standard library when None.

        Returns:
            The corpus. Files that cannot be opened, are not UTF-8 or do not parse are left out and counted.

        Raises:
            InvalidInputError: there is no function (code `corpus_empty`).
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
            message = f"root = '{root}' must have a function in its {len(paths)} source files; choose another"
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
        UnicodeDecodeError: the file is not UTF-8.
        SyntaxError: it does not parse.
        ValueError: it holds a null byte, on some versions of Python.
    """
    source.decode("utf-8")
    with warnings.catch_warnings():
        # The library's own invalid escapes are no concern of a run that turns warnings into errors.
        warnings.simplefilter("ignore")
        module = ast.parse(source)
    # bytes.splitlines breaks where the tokenizer does, at \n, \r and \r\n; str.splitlines at more.
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
