"""Sources of images: a variant over a tree, what two images may differ in, and Git revisions."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from refill import images
from refill.config import PROJECT, ConfigError, load_claims, load_images
from refill.image_sources import ImageError, read_source

MAIN = "import word\nprint(word.word)\n"


def entry(**more: Any) -> dict[str, Any]:
    return {"runtime": "python-archive", "dependencies": [], "pinned": None, **more}


def variant(name: str, **more: Any) -> dict[str, Any]:
    return entry(tree="images/service", variant=f"images/service/variants/{name}", **more)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    tree = project / "images/service"
    tree.mkdir(parents=True)
    (tree / "__main__.py").write_text(MAIN)
    (tree / "other.py").write_text("")
    for name in ("old", "new"):
        (tree / "variants" / name).mkdir(parents=True)
        (tree / "variants" / name / "word.py").write_text(f"word = '{name}'\n")
    differs = {"image": "old", "files": ["word.py"]}
    configure(project, old=variant("old"), new=variant("new", differs_from=differs))
    monkeypatch.chdir(project)
    return project


def configure(project: Path, **entries: dict[str, Any]) -> None:
    (project / "config").mkdir(exist_ok=True)
    (project / "config/images.yaml").write_text(yaml.safe_dump({"images": entries}))


def build(project: Path, name: str) -> dict[str, Any]:
    entries = load_images(project / "config/images.yaml")
    where = Path(f"results/images/{name}.pyz")
    wanted = images.needed(entries, name)
    return images.build(project, name, wanted, where, where.with_suffix(".json"), "code")


def pin(project: Path) -> None:
    assert images.main(["pin"], project) == 0


def test_a_variant_lies_over_its_tree_and_the_other_variants_are_left_out(project: Path) -> None:
    pin(project)
    build(project, "new")
    with zipfile.ZipFile("results/images/new.pyz") as archive:
        assert archive.namelist() == ["__main__.py", "other.py", "word.py"]
        assert archive.read("word.py") == b"word = 'new'\n"


def test_a_variant_wins_over_a_file_of_its_tree(project: Path) -> None:
    (project / "images/service/word.py").write_text("word = 'tree'\n")
    assert read_source(project, variant("old")).files["word.py"] == b"word = 'old'\n"


def test_the_record_says_what_the_two_differ_in(project: Path) -> None:
    pin(project)
    old, new = build(project, "old"), build(project, "new")
    assert new["differs_from"] == {"image": "old", "files": ["word.py"], "tree": old["tree"]}
    assert old["id"] != new["id"]
    assert old["build_arguments"] == {"variant": "images/service/variants/old"}
    assert old["source"] == {"kind": "tree", "path": "images/service", **old["build_arguments"]}
    assert "differs_from" not in old
    assert old["tag"] == f"old:{old['id'][7:19]}"


def test_a_tag_can_be_given(project: Path) -> None:
    configure(project, old=variant("old", tag="some-service:first"))
    pin(project)
    assert build(project, "old")["tag"] == "some-service:first"


def test_a_further_difference_is_refused_although_it_is_pinned(project: Path) -> None:
    (project / "images/service/variants/new/other.py").write_text("more = 1\n")
    pin(project)
    with pytest.raises(ImageError, match=r"(?s)in word\.py alone.*differs as well: other\.py"):
        build(project, "new")
    assert images.main(["check"], project) == 1


def test_a_named_file_that_does_not_differ_is_refused(project: Path) -> None:
    (project / "images/service/variants/new/word.py").write_text("word = 'old'\n")
    pin(project)
    with pytest.raises(ImageError, match=r"does not differ: word\.py"):
        build(project, "new")


def test_drift_of_the_other_image_stops_the_build(project: Path) -> None:
    pin(project)
    (project / "images/service/variants/old/word.py").write_text("word = 'drifted'\n")
    place = r"images/service/variants/old/word\.py"
    with pytest.raises(ImageError, match=rf"old: .*\n  changed: word\.py \({place}\)"):
        build(project, "new")


@pytest.mark.parametrize("image", ["none", "new"])
def test_an_image_differs_from_another_one_that_is_there(project: Path, image: str) -> None:
    entries = {
        "old": variant("old"),
        "new": variant("new", differs_from={"image": image, "files": ["word.py"]}),
    }
    with pytest.raises(ImageError, match=r"new: differs_from\.image: no other image .*has old"):
        images.needed(entries, "new")


def test_a_variant_beside_the_files_of_its_tree_is_refused(project: Path) -> None:
    wrong = entry(tree="images/service", variant="images/service/variants")
    with pytest.raises(ImageError, match="a folder of their own"):
        read_source(project, wrong)


@pytest.mark.parametrize(
    "sources",
    [
        {},
        {"tree": "images/service", "git": {"repository": "r", "revision": "v1"}},
        {"variant": "images/service/variants/old"},
        {"git": {"repository": "r", "revision": "v1"}, "variant": "images/x"},
        {"git": {"repository": "--upload-pack=x", "revision": "v1"}},
        {"git": {"repository": "r", "revision": "-x"}},
    ],
)
def test_an_image_has_one_source(project: Path, sources: dict[str, Any]) -> None:
    configure(project, old=entry(**sources))
    with pytest.raises(ConfigError, match=r"images\.old"):
        load_images(project / "config/images.yaml")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, `v1` and the branch `main`; the service stands in a folder of it."""
    folder = tmp_path / "elsewhere" / "service"
    (folder / "src").mkdir(parents=True)
    git(folder.parent, "init", "-q", "-b", "main", str(folder))
    (folder / "README").write_text("not part of it\n")
    (folder / "src/__main__.py").write_text(MAIN)
    (folder / "src/word.py").write_text("word = 'one'\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    git(folder, "tag", "v1")
    (folder / "src/word.py").write_text("word = 'two'\n")
    git(folder, "commit", "-q", "-a", "-m", "two")
    # What is not committed is not part of a revision.
    (folder / "src/word.py").write_text("word = 'edited'\n")
    return folder


def from_git(repository: str, revision: str = "v1", **more: Any) -> dict[str, Any]:
    return entry(git={"repository": repository, "revision": revision, "path": "src"}, **more)


@pytest.mark.parametrize("form", ["folder", "address"])
def test_a_revision_stands_in_the_place_of_a_tree(
    project: Path, repository: Path, form: str
) -> None:
    given = str(repository) if form == "folder" else f"file://{repository}"
    configure(project, one=from_git(given), two=from_git(given, "main"))
    pin(project)
    one, two = build(project, "one"), build(project, "two")
    commit = git(repository, "rev-parse", "v1")
    assert one["source"] == {
        "kind": "git",
        "repository": "service",
        "path": "src",
        "revision": "v1",
        "commit": commit,
    }
    assert one["files"].keys() == {"__main__.py", "word.py"}
    pinned = load_images(project / "config/images.yaml")["one"]["pinned"]
    assert pinned == {"tree": one["tree"], "files": one["files"], "revision": commit}
    with zipfile.ZipFile("results/images/two.pyz") as archive:
        assert archive.read("word.py") == b"word = 'two'\n"
    # The same files are the same image, wherever they come from.
    tree = project / "images/one"
    tree.mkdir()
    (tree / "__main__.py").write_text(MAIN)
    (tree / "word.py").write_text("word = 'one'\n")
    configure(project, one=entry(tree="images/one"))
    pin(project)
    assert build(project, "one")["id"] == one["id"] != two["id"]


def test_a_branch_that_moved_is_drift(project: Path, repository: Path) -> None:
    configure(project, one=from_git(str(repository), "main"))
    pin(project)
    before = git(repository, "rev-parse", "main")
    git(repository, "commit", "-q", "-a", "-m", "three")
    with pytest.raises(ImageError, match=rf"(?s)commit: .*pinned is {before}.*changed: word\.py"):
        build(project, "one")
    entries = load_images(project / "config/images.yaml")
    # Where nothing is built yet the pin is believed: no job clones only to look.
    assert images.check(project, "one", entries, fetch=False) == entries["one"]["pinned"]


def test_what_git_cannot_give_is_named(project: Path, repository: Path) -> None:
    with pytest.raises(ImageError, match="service: has no revision 'v9'"):
        read_source(project, from_git(str(repository), "v9"))
    with pytest.raises(ImageError, match=r"nowhere: no such folder.*git\.repository"):
        read_source(project, from_git("nowhere"))
    with pytest.raises(ImageError, match="git clone failed"):
        read_source(project, from_git(f"file://{repository}-gone"))
    with pytest.raises(ImageError, match="service: has no folder 'no' in v1"):
        read_source(
            project, entry(git={"repository": str(repository), "revision": "v1", "path": "no"})
        )
    (repository / "src/link").symlink_to("word.py")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "link")
    with pytest.raises(ImageError, match="link: is a symbolic link"):
        read_source(project, from_git(str(repository), "main"))


def test_a_short_revision_means_one_commit(project: Path, repository: Path) -> None:
    commit = git(repository, "rev-parse", "v1")
    assert read_source(project, from_git(str(repository), commit[:7])).revision == commit
    # Two commits whose names begin alike, as happens in a large repository.
    header = f"tree {commit_tree(repository)}\nauthor a <a@b> {{}} +0000\ncommitter a <a@b> 0 +0000"
    seen: dict[str, bytes] = {}
    for number in itertools.count():
        body = f"{header.format(number)}\n\nx\n".encode()
        name = hashlib.sha1(b"commit %d\0%s" % (len(body), body)).hexdigest()
        if other := seen.get(name[:4]):
            break
        seen[name[:4]] = body
    for text in (body, other):
        (repository / "object").write_bytes(text)
        git(repository, "hash-object", "-t", "commit", "-w", "object")
    with pytest.raises(ImageError) as caught:
        read_source(project, from_git(str(repository), name[:4]))
    assert f"revision {name[:4]!r} is the begin of " in str(caught.value)
    assert name[:12] in str(caught.value)


def commit_tree(repository: Path) -> str:
    return git(repository, "rev-parse", "v1^{tree}")


def test_programs_are_pinned_where_docker_alone_builds(project: Path, repository: Path) -> None:
    (repository / "src/run.sh").write_text("#!/bin/sh\n")
    (repository / "src/run.sh").chmod(0o755)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "run", "--date", "2024-05-06T07:08:09Z")
    source = read_source(project, from_git(str(repository), "main"))
    assert source.state()["executable"] == ["run.sh"]
    assert source.committed_at == int(git(repository, "show", "-s", "--format=%ct", "main"))
    tree = project / "images/service"
    (tree / "other.py").chmod(0o755)
    assert "executable" not in read_source(project, entry(tree="images/service")).state()
    configure(project, old=entry(tree="images/service") | {"runtime": "docker"})
    pin(project)
    (tree / "other.py").chmod(0o644)
    entries = load_images(project / "config/images.yaml")
    with pytest.raises(ImageError, match=r"may be executed in one of them alone: other\.py"):
        images.check(project, "old", entries)


def test_what_docker_alone_builds_is_no_archive(project: Path) -> None:
    configure(project, old=entry(tree="images/service") | {"runtime": "docker"})
    pin(project)
    with pytest.raises(ImageError, match=r"old: is built by Docker alone.*`runtime: docker`"):
        build(project, "old")


def test_the_published_gateways_are_a_ready_example() -> None:
    own, upstream = load_images(), load_images(PROJECT / "config/upstream-images.yaml")
    published = load_claims()["experiments"]["gateway"]["images"]
    for arm in ("old", "new"):
        entry = upstream[f"gateway-{arm}"]
        assert entry["tag"] == published[arm]["tag"] == own[f"gateway-{arm}"]["tag"]
        assert entry["git"]["revision"] == published[arm]["revision"]
        assert entry["runtime"] == "docker"


def test_a_password_in_an_address_is_refused_and_not_shown(project: Path) -> None:
    with pytest.raises(ImageError, match="credential helper") as caught:
        read_source(project, from_git("https://me:hunter2@example.org/service.git"))
    assert "hunter2" not in str(caught.value)


def test_the_gateways_of_this_project_differ_in_publication_alone() -> None:
    entries = load_images()
    assert entries["gateway-new"]["differs_from"] == {
        "image": "gateway-old",
        "files": ["gateway/lua/publish.lua"],
    }
    old, new = (read_source(PROJECT, entries[f"gateway-{name}"]) for name in ("old", "new"))
    assert old.files.keys() == new.files.keys()
    differing = [name for name, data in old.files.items() if data != new.files[name]]
    assert differing == ["gateway/lua/publish.lua"]
    assert not any(name.startswith("variants/") for name in old.files)
