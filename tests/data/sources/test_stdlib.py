from pathlib import Path

import numpy as np
import pytest

from helpers import refused
from hydraulis.config.data import DataConfig
from hydraulis.data.corpus import Corpus
from hydraulis.data.open import make_datasets
from hydraulis.data.sources.stdlib import StandardLibrary
from hydraulis.data.tokens import plain_tokens
from hydraulis.data.unigram_entropy import compute_unigram_entropy

UNREAD = "files_that_do_not_parse"
SHAPES = b'''\
"""A module."""
import functools

if True:
    def conditional():
        return 1

try:
    pass
except ImportError:
    def fallback(): pass  # the comment belongs to the line

@functools.cache
@functools.wraps(
    print
)
def decorated(x):
    def inner():
        return x
    return inner

async def coroutine():
    return [lambda: 0]

class Outer:
    def method(self):
        """\xc3\xa9"""
        class Local:
            def hidden(self): pass

    class Inner:
        @property
        def nested(self):
            return self

match 1:
    case 1:
        def matched(): pass
'''

SHAPES_DOCUMENTS = [
    b"    def conditional():\n        return 1\n",
    b"    def fallback(): pass  # the comment belongs to the line\n",
    b"@functools.cache\n@functools.wraps(\n    print\n)\ndef decorated(x):\n"
    b"    def inner():\n        return x\n    return inner\n",
    b"async def coroutine():\n    return [lambda: 0]\n",
    b'    def method(self):\n        """\xc3\xa9"""\n        class Local:\n'
    b"            def hidden(self): pass\n",
    b"        @property\n        def nested(self):\n            return self\n",
    b"        def matched(): pass\n",
]


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)
    return root


def documents(corpus: Corpus) -> list[bytes]:
    return [plain_tokens(corpus.read(i)).tobytes() for i in range(len(corpus))]


def test_each_outermost_function_is_one_document(tmp_path: Path) -> None:
    corpus = StandardLibrary.load(root=write(tmp_path, {"shapes.py": SHAPES}))
    assert documents(corpus) == SHAPES_DOCUMENTS
    assert corpus.left_out == {UNREAD: 0}


def test_no_line_comes_twice(tmp_path: Path) -> None:
    corpus = StandardLibrary.load(root=write(tmp_path, {"shapes.py": SHAPES}))
    assert b"".join(documents(corpus)).count(b"def inner") == 1
    assert b"".join(documents(corpus)).count(b"def hidden") == 1


def test_files_are_read_in_the_order_of_their_paths(tmp_path: Path) -> None:
    names = ["b.py", "a/z.py", "a/a.py", "c.txt", "a.py"]
    root = write(tmp_path, {name: f"def f(): '{name}'\n".encode() for name in names})
    found = b"".join(documents(StandardLibrary.load(root=root))).decode().split("'")[1::2]
    assert found == ["a/a.py", "a/z.py", "a.py", "b.py"]


def test_installed_packages_tests_and_caches_are_left_out(tmp_path: Path) -> None:
    folders = ["site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "x/tests/y"]
    files = {f"{folder}/m.py": b"def f(): pass\n" for folder in folders}
    root = write(tmp_path, {**files, "kept/m.py": b"def kept(): pass\n"})
    assert documents(StandardLibrary.load(root=root)) == [b"def kept(): pass\n"]


def test_files_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    files = {
        "good.py": b"def f(): pass\n",
        "latin.py": b"# -*- coding: latin-1 -*-\ndef f(): '\xe9'\n",
        "null.py": b"def f(): pass\n\0",
        "python2.py": b"def f():\n    print 'x'\n",
    }
    (tmp_path / "dangling.py").symlink_to(tmp_path / "gone.py")
    corpus = StandardLibrary.load(root=write(tmp_path, files))
    assert documents(corpus) == [b"def f(): pass\n"]
    assert corpus.left_out == {UNREAD: 4}


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends_are_kept(tmp_path: Path, end: bytes) -> None:
    function = end.join([b"@cache", b"def f():", b"    return '\x0c'", b""])
    root = write(tmp_path, {"m.py": end.join([b"import x", b"", function + b"y = 1"])})
    assert documents(StandardLibrary.load(root=root)) == [function]


def test_a_function_may_end_with_its_file(tmp_path: Path) -> None:
    root = write(tmp_path, {"m.py": b"def f(): pass"})
    assert documents(StandardLibrary.load(root=root)) == [b"def f(): pass"]


def test_warnings_of_the_source_do_not_matter(tmp_path: Path) -> None:
    root = write(tmp_path, {"m.py": b"def f(): return '\\d' is 1\n"})
    assert StandardLibrary.load(root=root).left_out == {UNREAD: 0}


def test_progress_counts_the_files(tmp_path: Path) -> None:
    root = write(tmp_path, {f"{name}.py": b"def f(): pass\n" for name in "abc"})
    calls: list[tuple[int, int]] = []
    StandardLibrary.load(lambda done, total: calls.append((done, total)), root=root)
    assert calls == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("files", [{}, {"m.py": b"x = 1\n"}])
def test_refuses_a_folder_without_functions(tmp_path: Path, files: dict[str, bytes]) -> None:
    root = write(tmp_path, files)
    with refused("corpus_empty", root, f"{len(files)} source files"):
        StandardLibrary.load(root=root)


def test_the_library_of_this_interpreter_has_functions() -> None:
    corpus = StandardLibrary.load()
    # Python 3.11 has 16,033 documents, 8.1 MB, a median of 254, an entropy of 3.04; others are not far off.
    assert len(corpus) > 8_000
    assert len(corpus.token_T) > 4_000_000
    assert 150 < float(np.median(corpus.lengths)) < 500
    assert 0.005 < np.mean(corpus.lengths > 3_000) < 0.05
    data = make_datasets(DataConfig(tokens_per_batch=8), [[corpus]]).train
    assert 2.5 < compute_unigram_entropy(data) < 3.5
    assert corpus.left_out[UNREAD] < 20
    assert 0 < np.count_nonzero(corpus.lengths > 8192) < 100
