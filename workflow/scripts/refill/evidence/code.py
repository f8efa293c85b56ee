"""Identity of the code behind a result: a script and every helper that it imports.

Snakemake tracks a script by its mtime and its imports not at all, so rules carry the hash from
here as a parameter. Only `import` statements count: a module named in text
(`importlib.import_module("...")`) is not seen, and the package uses none.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from refill.evidence.hashes import sha256_bytes, sha256_file, sha256_tree


class CodeError(ValueError):
    """An import cannot be followed; the text names the file, its line and the module."""


@dataclass(frozen=True)
class Import:
    """One import statement: `from <dots><module> import <names>`, or `import <module>`."""

    line: int
    level: int
    module: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    sha256: str
    imports: tuple[Import, ...]


# Strings and comments, in which an import is no statement. A string ends where its quotes do.
_TEXT = re.compile(
    r'''"""(?:[^\\]|\\.)*?"""|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|#[^\n]*''',
    re.DOTALL,
)

# One import statement, at the start of a line or behind ";" or ":".
_FROM = r"from(?!\w)(?:[.\w \t]|\\\n)+?(?<!\w)import\b"
_REST = r"(?:[ \t]*\([^)]*\)|(?:[^\n;\\]|\\\n)+)"
_STATEMENT = re.compile(rf"(?:^|[;:])[ \t]*((?:{_FROM}|import(?=[ \t\\])){_REST})", re.MULTILINE)


def closure(script: Path, root: Path) -> dict[str, str]:
    """Return the SHA-256 of `script` and of every file below `root` that it imports.

    `root` is the folder that stands on `sys.path` (workflow/scripts). Keys are POSIX paths
    relative to it, sorted. Followed are absolute and relative imports at any depth of the file,
    `from package import submodule`, and the `__init__.py` of every package on the way. Modules
    that are not below `root` (standard library, dependencies) are left to the lock file. Raises
    CodeError for a module of a package below `root` that does not exist.
    """
    base = root.resolve()
    start = script.resolve()
    if not start.is_relative_to(base):
        raise CodeError(f"{script}: is not below {root}; its imports cannot be followed")
    seen: dict[Path, str] = {}
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        source = _source(path)
        seen[path] = source.sha256
        for statement in source.imports:
            waiting.extend(_targets(statement, path, base))
    return dict(sorted((p.relative_to(base).as_posix(), sha256) for p, sha256 in seen.items()))


def code_hash(script: Path, root: Path, extra: Sequence[Path] = ()) -> str:
    """Return one hash for `closure(script, root)` plus the files and folders of `extra`.

    `extra` is for what is read and not imported (a folder of templates); every file below a
    folder counts, except compiled Python. Raises CodeError as `closure`, and for a missing path.
    """
    files = closure(script, root)
    base = root.resolve()
    for path in _files(extra):
        files[Path(os.path.relpath(path.resolve(), base)).as_posix()] = sha256_file(path)
    return sha256_tree(files)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = (p for p in path.rglob("*") if p.is_file())
            yield from (p for p in found if "__pycache__" not in p.parts and p.suffix != ".pyc")
        elif path.is_file():
            yield path
        else:
            raise CodeError(f"{path}: no such file or folder; it is part of a code hash")


def _source(path: Path) -> _Source:
    status = path.stat()
    return _scan(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=4096)
def _scan(path: Path, mtime_ns: int, size: int, inode: int) -> _Source:
    # The stamp of the file is part of the key, so that one Snakemake process reads each version
    # of a helper once, however many rules depend on it.
    data = path.read_bytes()
    return _Source(sha256_bytes(data), tuple(imports(data.decode(), str(path))))


def imports(text: str, path: str) -> list[Import]:
    """Return the import statements of a Python source, at any depth, in their order.

    Parsing a whole file takes milliseconds, and every job of Snakemake is a process that asks
    for the code of every rule: so strings and comments are blanked out, and only the import
    statements are parsed. Raises CodeError for one that is not valid.
    """
    bare = _TEXT.sub(lambda match: "\n" * match[0].count("\n"), text)
    found = []
    for match in _STATEMENT.finditer(bare):
        line = bare.count("\n", 0, match.start(1)) + 1
        try:
            node = ast.parse(match[1]).body[0]
        except SyntaxError as error:
            raise CodeError(f"{path}:{line}: not valid Python: {error.msg}") from error
        if isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            found.append(Import(line, node.level, node.module or "", names))
        elif isinstance(node, ast.Import):
            found += [Import(line, 0, alias.name, ()) for alias in node.names]
    return found


def _binds(init: Path, name: str) -> bool:
    """Say whether a package's `__init__.py` binds a name, or may: by `*` or `__getattr__`."""
    bound = set(_bound(ast.parse(init.read_bytes(), filename=str(init)).body))
    return not bound.isdisjoint({name, "*", "__getattr__"})


def _bound(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that a module's own statements bind (not those inside functions)."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (n for target in targets for n in ast.walk(target))
            yield from (n.id for n in names if isinstance(n, ast.Name))
        for field in ("body", "orelse", "finalbody"):
            yield from _bound(getattr(node, field, ()))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _bound(part.body)


def _targets(statement: Import, path: Path, base: Path) -> list[Path]:
    """Return the files below `base` that one import statement of `path` runs."""
    where = f"{path}:{statement.line}"
    module = statement.module
    if statement.level:
        package = path.parents[statement.level - 1]
        if package == base or not package.is_relative_to(base):
            raise CodeError(
                f"{where}: relative import outside of a package; import the module by its full name"
            )
        parts = package.relative_to(base).parts
        module = ".".join((*parts, module) if module else parts)
    top = base / module.partition(".")[0]
    if not (top.is_dir() or top.with_suffix(".py").is_file()):
        return []
    found, folder = _module(module, base, where)
    for name in statement.names:
        if folder is not None and name != "*":
            found += _name(name, module, folder, base, where)
    return found


def _module(module: str, base: Path, where: str) -> tuple[list[Path], Path | None]:
    """Return the files that importing `module` runs, and its folder (None when it is a file)."""
    files = []
    place = base
    parts = module.split(".")
    for i, part in enumerate(parts):
        place = place / part
        init, module_file = place / "__init__.py", place.with_suffix(".py")
        # Python's own order: a package, then a module, then a folder without __init__.py.
        if init.is_file():
            files.append(init)
        elif i == len(parts) - 1 and module_file.is_file():
            return [*files, module_file], None
        elif not place.is_dir():
            raise CodeError(
                f"{where}: no module {module!r} below {base}; mend the import or add the file"
            )
    return files, place


def _name(name: str, module: str, folder: Path, base: Path, where: str) -> list[Path]:
    """Return the files behind `from module import name`: none when it is a plain object."""
    if (folder / f"{name}.py").is_file() or (folder / name).is_dir():
        return _module(f"{module}.{name}", base, where)[0]
    init = folder / "__init__.py"
    if init.is_file() and _binds(init, name):
        return []
    raise CodeError(
        f"{where}: {module!r} has neither a module nor a name {name!r}; "
        "mend the import or add the file"
    )
