"""Loading and checking a whole configuration: files merged, schemas, references, defaults."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from refill.config import schemas
from refill.config.claims import check as check_claims
from refill.config.errors import ConfigError, Problem, Where, key_text, nearest
from refill.config.optimizers import resolve_optimizers
from refill.config.paths import PROJECT, shown
from refill.config.yamlfile import read_yaml
from refill.corpora.depth import MAX_DEPTH, deleted_share, wanted_depth

ENGINES = ("image", "binary", "url")
DOCKER = "docker"
# Kinds of corpora that hold documents; all others hold vectors.
DOCUMENT_KINDS = ("flights",)
NATIVE_ENGINES = ("elasticsearch", "opensearch")
# What names a program of this machine, and what takes its place.
_NOT_IN_CONTAINERS: Mapping[Where, str] = {
    ("qdrant", "binary"): "docker.qdrant",
    ("qdrant", "url"): "docker.qdrant",
    ("rounds", "valkey", "binary"): "docker.valkey",
    ("rounds", "native", "opensearch", "home"): "docker.opensearch",
    ("rounds", "native", "elasticsearch", "home"): "docker.elasticsearch",
}


def load(
    base: Path, overrides: Sequence[Path | Mapping[str, Any]] = (), project: Path = PROJECT
) -> dict[str, Any]:
    """Return the configuration of the file `base` with `overrides` merged in order, validated.

    Merging is Snakemake's: blocks are merged key by key, everything else (lists, null) replaces.
    Raises ConfigError with every problem of the merged configuration.
    """
    files = [base, *(item for item in overrides if isinstance(item, Path))]
    merged: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for item in (base, *overrides):
        merge(merged, read_yaml(item) if isinstance(item, Path) else item)
        if not isinstance(item, Path):
            merge(given, item)
    return validate(merged, files=files, project=project, given=given)


def validate(
    config: Mapping[str, Any],
    files: Iterable[Path | str] = (),
    project: Path = PROJECT,
    given: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Check a merged configuration, such as Snakemake's `config`; return it with defaults filled.

    `files` are the files it was merged from, the one that wins last; `given` is what the command
    line set over them (`--config`). Each file is read again, strictly: Snakemake takes a key that
    stands twice in silence. A problem names the last source that has its key. `project` is the
    folder whose config/ holds optimizers.yaml and images.yaml. Raises ConfigError with one line
    for each problem.
    """
    origin = _origins(_read_all(files), given or {})
    found = schemas.problems("config.schema.yaml", config)
    if found:
        raise _error(found, origin)
    filled: dict[str, Any] = schemas.fill_defaults("config.schema.yaml", config)
    found = [*_check_corpus(filled), *_check_engine(filled, project)]
    found += [*_check_rounds(filled, project), *_check_proof(filled, project)]
    found += _check_docker(filled, project)
    known = load_optimizers(project / "config/optimizers.yaml")
    found += [*_check_draining(filled), *_check_runs(filled, known), *_check_truth(filled, known)]
    if found:
        raise _error(found, origin)
    return filled


def refuse(
    found: Sequence[Problem], files: Iterable[Path | str], given: Mapping[str, Any] | None = None
) -> None:
    """Raise ConfigError for problems, if there are any; `files` and `given` as for `validate`."""
    if found:
        raise _error(found, _origins(_read_all(files), given or {}))


def load_optimizers(path: Path = PROJECT / "config/optimizers.yaml") -> dict[str, dict[str, Any]]:
    """Return the optimizer configurations by id; each has its id under "id" too.

    Raises ConfigError as `validate`.
    """
    entries = _load_checked(path, "optimizers.schema.yaml")["configurations"]
    return {name: {"id": name, **entry} for name, entry in entries.items()}


def load_images(path: Path = PROJECT / "config/images.yaml") -> dict[str, dict[str, Any]]:
    """Return the images by name. Raises ConfigError as `validate`."""
    images: dict[str, dict[str, Any]] = _load_checked(path, "images.schema.yaml")["images"]
    return images


def load_native(path: Path = PROJECT / "config/native.yaml") -> dict[str, dict[str, Any]]:
    """Return what each native engine is made of, by name, each with the Java that it may fetch.

    Raises ConfigError as `validate`.
    """
    value = _load_checked(path, "native.schema.yaml")
    engines: dict[str, dict[str, Any]] = value["engines"]
    return {name: {**entry, "fetched_java": value["java"]} for name, entry in engines.items()}


def load_claims(path: Path = PROJECT / "config/claims.yaml") -> dict[str, Any]:
    """Return the published claims. Raises ConfigError as `validate`."""
    value = _load_checked(path, "claims.schema.yaml")
    if problems := check_claims(value):
        raise ConfigError([f"{shown(path)}: {problem}" for problem in problems])
    return value


def merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Merge `other` into `into` as Snakemake merges configuration files."""
    for key, value in other.items():
        if isinstance(value, Mapping):
            part = into.get(key)
            into[key] = part = part if isinstance(part, dict) else {}
            merge(part, value)
        else:
            into[key] = copy.deepcopy(value)


def _load_checked(path: Path, schema: str) -> dict[str, Any]:
    value = read_yaml(path)
    found = schemas.problems(schema, value)
    if found:
        raise _error(found, lambda _: shown(path))
    filled: dict[str, Any] = schemas.fill_defaults(schema, value)
    return filled


def _check_corpus(config: Mapping[str, Any]) -> list[Problem]:
    found = []
    name, known = config["corpus"]["name"], config["corpora"]
    if name not in known:
        text = f"no corpus {name!r}: {nearest(name, known)}`corpora` has {', '.join(known)}"
        found.append(Problem(("corpus", "name"), text))
    elif known[name]["kind"] in DOCUMENT_KINDS:
        text = f"{name} holds documents, not vectors: name it as rounds.corpus.name"
        found.append(Problem(("corpus", "name"), text))
    limit, points = config["optimizers"]["search"]["limit"], config["corpus"]["points"]
    if limit > points:
        text = f"must be <= corpus.points ({points}), is {limit}: ask for fewer hits"
        found.append(Problem(("optimizers", "search", "limit"), text))
    return found


def _check_rounds(config: Mapping[str, Any], project: Path) -> list[Problem]:
    rounds = config.get("rounds")
    if not rounds or not rounds["profiles"]:
        return []
    found = []
    name, known = rounds["corpus"]["name"], config["corpora"]
    fitting = [n for n, corpus in known.items() if corpus["kind"] in DOCUMENT_KINDS]
    if name not in fitting:
        listed = ", ".join(fitting) or "none; add one"
        text = f"no corpus of documents {name!r}: {nearest(name, fitting)}`corpora` has {listed}"
        found.append(Problem(("rounds", "corpus", "name"), text))
    images = load_images(project / "config/images.yaml")
    found += _check_arms(rounds["images"], ("rounds", "images"), images)
    for engine in NATIVE_ENGINES:
        own = rounds["native"][engine]
        if own["home"] is not None and own["url"] is not None:
            text = "and `home` are both given: keep one and set the other to null"
            found.append(Problem(("rounds", "native", engine, "url"), text))
        elif own["url"] is not None:
            found += _check_url(own["url"], ("rounds", "native", engine, "url"))
    binary = rounds["valkey"]["binary"]
    if binary is not None and not _startable(binary):
        text = (
            f"{binary!r} is no program that can be started: give the path of a valkey-server, or "
        )
        found.append(Problem(("rounds", "valkey", "binary"), text + "null for the package's own"))
    return found


def _check_arms(
    arms: Mapping[str, str], where: Where, images: Mapping[str, Mapping[str, Any]]
) -> list[Problem]:
    """Check images by arm (`old`, `new`, for the proof `qdrant` too): there, fit, not swapped.

    The same gateway in both arms is an A/A run, which the tables and the report say.
    """
    found = []
    for arm, image in arms.items():
        api = "qdrant" if arm == "qdrant" else "elasticsearch"
        if (text := _unfit(image, api, images)) is not None:
            found.append(Problem((*where, arm), text))
    if not found and images[arms["old"]].get("differs_from", {}).get("image") == arms["new"]:
        text = f"is {arms['old']}, which differs_from {arms['new']} in config/images.yaml: the two "
        found.append(Problem((*where, "old"), f"{text}are swapped, exchange old and new"))
    return found


def _unfit(image: str, api: str, images: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Say why an image cannot stand where one that serves `api` must; None when it can."""
    if image not in images:
        text = f"no image {image!r}: {nearest(image, images)}config/images.yaml has "
        return text + ", ".join(images)
    if images[image].get("api") == api:
        return None
    fit = ", ".join(name for name, entry in images.items() if entry.get("api") == api)
    return (
        f"{image} has `api: {images[image].get('api', 'null')}` in config/images.yaml, this one "
        f"must have `api: {api}`: take one of {fit or 'those that you add'}"
    )


def _check_proof(config: Mapping[str, Any], project: Path) -> list[Problem]:
    proof = config.get("proof")
    if proof is None:
        return []
    found = []
    images = load_images(project / "config/images.yaml")
    found += _check_arms(proof["images"], ("proof", "images"), images)
    if config["runtime"] == "docker" and proof["servers"]:
        text = "names programs of this machine; in containers the proof tries docker.valkey: leave "
        found.append(Problem(("proof", "servers"), f"{text}it out, or set `runtime: process`"))
    for name, path in proof["servers"].items():
        if path is not None and not _startable(path):
            text = f"{path!r} is no program that can be started: give the path of a server, or null"
            found.append(Problem(("proof", "servers", name), text))
    return found


def _check_engine(config: Mapping[str, Any], project: Path) -> list[Problem]:
    qdrant = config["qdrant"]
    given = [key for key in ENGINES if qdrant.get(key) is not None]
    if len(given) != 1:
        text = f"needs exactly one of image, binary and url, has {', '.join(given) or 'none'}: "
        text += "set the others to null" if given else "set `image: qdrant-edge` for the embedded"
        return [Problem(("qdrant",), text)]
    if given == ["image"]:
        known = load_images(project / "config/images.yaml")
        if (unfit := _unfit(qdrant["image"], "qdrant", known)) is not None:
            return [Problem(("qdrant", "image"), unfit)]
    if given == ["url"]:
        return _check_url(qdrant["url"], ("qdrant", "url"))
    if given == ["binary"] and not _startable(qdrant["binary"]):
        text = f"{qdrant['binary']!r} is no program that can be started: give the path of a Qdrant "
        return [Problem(("qdrant", "binary"), text + "server, relative to the working folder")]
    return []


def _check_docker(config: Mapping[str, Any], project: Path) -> list[Problem]:
    """Check the images of containers, and that nothing is asked for that containers do not use."""
    found = []
    images = load_images(project / "config/images.yaml")
    if config["runtime"] != DOCKER:
        for where, name in _named_images(config):
            if images.get(name, {}).get("runtime") == DOCKER:
                text = f"{name} has `runtime: docker` in config/images.yaml, which this run has "
                found.append(Problem(where, f"{text}not: set `runtime: docker` here, too"))
        return found
    for name in ("valkey", "qdrant"):
        given = {key: value for key, value in config["docker"][name].items() if value is not None}
        if len(given) != 1:
            text = f"needs exactly one of pull and image, has {', '.join(given) or 'none'}: "
            text += "set the other to null" if given else "give one of them"
            found.append(Problem(("docker", name), text))
        elif "image" in given and (unfit := _unfit(given["image"], name, images)) is not None:
            found.append(Problem(("docker", name, "image"), unfit))
    for where, instead in _NOT_IN_CONTAINERS.items():
        value: Any = config
        for key in where:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            text = f"is not used with `runtime: docker`: set {instead} and this to null"
            found.append(Problem(where, text))
    return found


def _named_images(config: Mapping[str, Any]) -> list[tuple[Where, str]]:
    """Give the images that are named outside of `docker`, with their places."""
    named: dict[Where, Any] = {("qdrant", "image"): config["qdrant"].get("image")}
    for section in ("rounds", "proof"):
        for arm, image in config.get(section, {}).get("images", {}).items():
            named[section, "images", arm] = image
    return [(where, name) for where, name in named.items() if name]


def _startable(program: str) -> bool:
    try:
        return "\0" not in program and Path(program).is_file() and os.access(program, os.X_OK)
    except OSError:
        return False  # the name is too long for a path


def _check_url(url: str, where: Where) -> list[Problem]:
    # urlsplit drops line feeds and tabs without a word.
    if not all("!" <= character <= "~" for character in url):
        text = "must be of printable ASCII characters without spaces: write it as http://host:6333"
        return [Problem(where, text)]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return [Problem(where, f"is no address ({error}): write it as http://host:6333")]
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        # The value is not printed: something secret may stand in it.
        return [Problem(where, "must be an http or https address: write it as http://host:6333")]
    if parts.username or parts.password or parts.query or parts.fragment:
        text = "must not hold a user, password, query or fragment, records would show it: "
        return [Problem(where, text + "put secrets into the environment (`api_key_env`)")]
    return []


def _check_draining(config: Mapping[str, Any]) -> list[Problem]:
    draining = config["optimizers"]["draining"]
    at = ("optimizers", "draining")
    found = []
    rate, window = draining["open_per_s"], draining["open_window_s"]
    if rate * window < 1:
        text = f"times optimizers.draining.open_window_s ({window}) must be >= 1, or a window has "
        found.append(Problem((*at, "open_per_s"), f"{text}no search; is {rate}: raise one of them"))
    poll, polls, limit = draining["poll_s"], draining["idle_polls"], draining["limit_s"]
    if poll * polls >= limit:
        text = f"must be above optimizers.draining.poll_s ({poll}) times idle_polls ({polls}), or "
        text += f"no drain can end before it; is {limit}: raise it, or poll more often"
        found.append(Problem((*at, "limit_s"), text))
    return found


def _check_truth(
    config: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]
) -> list[Problem]:
    """Refuse deletions after which the nearest points that are left could not be known."""
    limit, points = config["optimizers"]["search"]["limit"], config["corpus"]["points"]
    found = []
    for i, run in enumerate(config["optimizers"]["runs"]):
        share = deleted_share(known.get(run, {}))
        where = ("optimizers", "runs", i)
        advice = "ask for fewer hits, or delete fewer points"
        if not share or limit > points:
            continue
        if points - round(share * points) < limit:
            text = f"{run} deletes {share} of corpus.points ({points}), which leaves fewer than "
            found.append(Problem(where, f"{text}optimizers.search.limit ({limit}): {advice}"))
        elif wanted_depth(limit, share, points) > MAX_DEPTH:
            text = f"{run} deletes {share} of the points: for optimizers.search.limit ({limit}) "
            text += f"the {wanted_depth(limit, share, points)} nearest would have to be known, at "
            found.append(Problem(where, f"{text}most {MAX_DEPTH} are: {advice}"))
    return found


def _check_runs(config: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    optimizers = config["optimizers"]
    listed = "config/optimizers.yaml has " + ", ".join(known)
    found = []
    for i, run in enumerate(optimizers["runs"]):
        if run not in known:
            text = f"no configuration {run!r}: {nearest(run, known)}{listed}"
            found.append(Problem(("optimizers", "runs", i), text))
    for run in optimizers["overrides"]:
        if run not in known:
            text = f"no configuration {run!r}: {nearest(run, known)}{listed}"
            found.append(Problem(("optimizers", "overrides", run), text))
    if found:
        return found
    for i, run in enumerate(optimizers["runs"]):
        try:
            # The dimension is known only from the corpus; what can be wrong does not depend on it.
            resolve_optimizers(
                known[run],
                optimizers["defaults"],
                optimizers["overrides"],
                points=config["corpus"]["points"],
                dimension=1,
                cpus=config["qdrant"]["cpus"] or 1,
                hnsw_defaults=optimizers["hnsw_defaults"],
            )
        except ConfigError as error:
            found += [Problem(("optimizers", "runs", i), text) for text in error.problems]
    return found


def _read_all(files: Iterable[Path | str]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (name, content) of each file; ConfigError with the problems of all of them."""
    contents: list[tuple[str, Mapping[str, Any]]] = []
    found: list[str] = []
    for file in files:
        try:
            contents.append((shown(Path(file)), read_yaml(Path(file))))
        except ConfigError as error:
            found += error.problems
    if found:
        raise ConfigError(found)
    return contents


def _origins(
    files: Sequence[tuple[str, Mapping[str, Any]]], given: Mapping[str, Any]
) -> Callable[[Where], str]:
    """Return a function from a key to the source that it (or its nearest parent) stands in."""
    contents = [*files, ("command line (--config)", given)]

    def depth(value: Any, where: Where) -> int:
        for i, part in enumerate(where):
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return i
        return len(where)

    def origin(where: Where) -> str:
        # The last source wins in a merge, so among sources that reach as deep the last one counts;
        # a key that stands nowhere is missing from the first.
        deepest = max(depth(value, where) for _, value in contents)
        holding = [name for name, value in contents if depth(value, where) == deepest]
        return holding[-1] if deepest else contents[0][0]

    return origin


def _error(found: Sequence[Problem], origin: Callable[[Where], str]) -> ConfigError:
    return ConfigError([f"{origin(p.where)}: {key_text(p.where)}: {p.text}" for p in found])
