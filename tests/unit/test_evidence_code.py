"""Identity of code: the closure of a script's imports below a root."""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

import pytest
from refill.config import PROJECT
from refill.evidence.code import CodeError, closure, code_hash, imports
from refill.evidence.hashes import sha256_bytes

FILES = {
    "run.py": "import json\nimport numpy as np\nfrom pack.a import f\n",
    "pack/__init__.py": "",
    "pack/a.py": "from pack import b\nfrom . import c\n\ndef f():\n    from .deep.d import g\n",
    "pack/b.py": "WORD = 1\n",
    "pack/c.py": "import pack.deep.e as e\n",
    "pack/unused.py": "import pack.nowhere\n",
    "pack/deep/__init__.py": "from pack.deep.init_helper import *\nname = 1\n",
    "pack/deep/init_helper.py": "",
    "pack/deep/d.py": "from ..b import WORD\nfrom pack.deep import name\n",
    "pack/deep/e.py": "try:\n    import x\nexcept ImportError:\n    from pack import late\n",
    "pack/late.py": "",
    "json/unrelated.txt": "",
}
CLOSED = sorted(FILES.keys() - {"pack/unused.py", "json/unrelated.txt"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        if name != "json/unrelated.txt":
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return tmp_path


def test_every_form_of_import_is_followed(root: Path) -> None:
    found = closure(root / "run.py", root)
    assert list(found) == CLOSED
    assert found["pack/b.py"] == sha256_bytes(b"WORD = 1\n")


@pytest.mark.parametrize("name", CLOSED)
def test_a_change_in_any_imported_file_changes_the_hash(root: Path, name: str) -> None:
    before = code_hash(root / "run.py", root)
    path = root / name
    path.write_text(path.read_text() + "# changed\n")
    assert code_hash(root / "run.py", root) != before


def test_what_is_not_imported_and_touch_change_nothing(root: Path) -> None:
    before = code_hash(root / "run.py", root)
    (root / "pack/unused.py").write_text("x = 2\n")
    (root / "pack/b.py").touch()
    assert code_hash(root / "run.py", root) == before


def test_a_changed_file_of_the_same_size_is_seen(root: Path) -> None:
    before = code_hash(root / "run.py", root)
    (root / "pack/b.py").write_text("WORD = 2\n")
    assert code_hash(root / "run.py", root) != before


TRICKY = '''\
"""Prose:
import pack.in_docstring
from pack import prose
"""
x = "#"; import pack.a  # import pack.in_comment
y = {"a": """
import pack.in_string
"""}
if x: from pack.b import (  # the first
    c,  # (one)
    d as e,
)
from pack \\
    import g, \\
    h
def f(import_it, frommage):
    raise ValueError("it's \\" import pack.quoted") \\
        from None
class A:
    def f(self):
        yield from pack
        from . import i ; from ..j import k
\tfrom pack import*
'''


def test_imports_in_strings_and_comments_are_no_statements() -> None:
    found = [(i.line, "." * i.level + i.module, i.names) for i in imports(TRICKY, "x.py")]
    assert found == [
        (5, "pack.a", ()),
        (9, "pack.b", ("c", "d")),
        (13, "pack", ("g", "h")),
        (22, ".", ("i",)),
        (22, "..j", ("k",)),
        (23, "pack", ("*",)),
    ]


def test_imports_are_those_that_pythons_parser_finds() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    folders = [PROJECT / "workflow", library / "asyncio", library / "email", library / "unittest"]
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        text = path.read_text()
        expected = []
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                names = tuple(alias.name for alias in node.names)
                expected.append((node.lineno, node.level, node.module or "", names))
            elif isinstance(node, ast.Import):
                expected += [(node.lineno, 0, alias.name, ()) for alias in node.names]
        found = [(i.line, i.level, i.module, i.names) for i in imports(text, str(path))]
        assert sorted(found) == sorted(expected), path


def test_packages_without_init_are_followed(root: Path) -> None:
    (root / "bare/inner").mkdir(parents=True)
    (root / "bare/inner/m.py").write_text("")
    for text in ("import bare.inner.m", "from bare.inner import m", "from bare import inner"):
        (root / "run.py").write_text(text + "\n")
        found = list(closure(root / "run.py", root))
        assert found == (["run.py"] if text.endswith("inner") else ["bare/inner/m.py", "run.py"])


def test_a_module_wins_over_a_folder_without_init_of_its_name(root: Path) -> None:
    (root / "pack/b/__pycache__").mkdir(parents=True)
    assert "pack/b.py" in closure(root / "run.py", root)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import pack.nowhere", r"run\.py:1: no module 'pack\.nowhere'"),
        ("\nfrom pack.nowhere import x", r"run\.py:2: no module 'pack\.nowhere'"),
        ("from pack import nowhere", r"neither a module nor a name 'nowhere'"),
        ("from pack.b.inner import x", r"no module 'pack\.b\.inner'"),
        ("from . import x", "relative import outside of a package"),
        ("from pack import (a", r"run\.py:1: not valid Python"),
    ],
)
def test_an_import_that_cannot_be_followed_is_an_error(
    root: Path, text: str, expected: str
) -> None:
    (root / "run.py").write_text(text + "\n")
    with pytest.raises(CodeError, match=expected):
        closure(root / "run.py", root)


def test_a_relative_import_above_the_root_is_an_error(root: Path) -> None:
    (root / "pack/b.py").write_text("from ... import x\n")
    with pytest.raises(CodeError, match="relative import"):
        closure(root / "run.py", root)


@pytest.mark.parametrize(
    "init",
    [
        "x: int = 1",
        "x, y = 1, 2",
        "import os as x",
        "def x(): ...",
        "class x: ...",
        "if 1:\n  x = 1",
        "from os import *",
        "def __getattr__(name): ...",
        "try:\n  x = 1\nexcept E:\n  pass",
    ],
)
def test_names_that_a_package_binds_are_no_modules(root: Path, init: str) -> None:
    (root / "pack/__init__.py").write_text(init + "\n")
    (root / "run.py").write_text("from pack import x\n")
    assert list(closure(root / "run.py", root)) == ["pack/__init__.py", "run.py"]


def test_a_script_outside_of_the_root_is_an_error(root: Path, tmp_path: Path) -> None:
    with pytest.raises(CodeError, match="is not below"):
        closure(root / "run.py", root / "pack")


def test_extra_files_and_folders_count(root: Path) -> None:
    templates = root / "templates"
    templates.mkdir()
    (templates / "page.html").write_text("a")
    plain = code_hash(root / "run.py", root)
    first = code_hash(root / "run.py", root, [templates])
    (templates / "page.html").write_text("b")
    second = code_hash(root / "run.py", root, [templates])
    assert len({plain, first, second}) == 3
    with pytest.raises(CodeError, match="no such file"):
        code_hash(root / "run.py", root, [root / "none"])


def test_the_hash_does_not_depend_on_where_the_root_is(root: Path) -> None:
    moved = root.parent / "moved"
    before = code_hash(root / "run.py", root)
    root.rename(moved)
    assert code_hash(moved / "run.py", moved) == before
    moved.rename(root)


def test_the_projects_own_edges_can_be_followed() -> None:
    scripts = PROJECT / "workflow/scripts"
    for script in scripts.glob("*.py"):
        assert script.name in closure(script, scripts)
