"""Images built by a real daemon: one ID for one source, their records, and builds that fail."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from build_fixture import DOCKERFILE, BuildProject, contents
from docker.errors import ImageNotFound
from refill.config import PROJECT, load_images
from refill.evidence.hashes import sha256_bytes
from refill.evidence.records import read_json
from refill.image_sources import ImageError
from refill.runtimes import docker_images
from refill.runtimes.docker_images import TREE_EPOCH, DockerError

pytestmark = pytest.mark.docker


@pytest.fixture
def project(tmp_path: Path, docker_client: Any, base_image: str) -> Iterator[BuildProject]:
    made = BuildProject(tmp_path, docker_client, base_image)
    yield made
    made.remove()


def raw_id(log: str) -> str:
    """Give the ID under which the daemon built an image, before it was brought into one form."""
    (line,) = (line for line in log.splitlines() if line.startswith("Successfully built "))
    return line.split()[-1]


def test_two_uncached_builds_of_one_source_give_one_image(
    project: BuildProject, docker_client: Any
) -> None:
    project.configure(tool={"tree": project.tree()})
    before = {image["Id"] for image in docker_client.api.images(filters={"dangling": True})}
    first = project.build("tool")
    built = raw_id(project.log("tool"))
    docker_client.api.remove_image(first["id"], force=True)
    second = project.build("tool")
    assert raw_id(project.log("tool")) != built
    assert "Using cache" not in project.log("tool")
    assert second["id"] == first["id"]
    assert second == first
    # As it was built it is gone: nothing without a tag stays behind.
    with_label = docker_client.api.images(filters={"label": "org.refill.image=tool"}, all=True)
    ours = [image["Id"] for image in with_label if image["Id"] not in before]
    assert second["id"] in ours
    assert not {identity for identity in ours if identity.startswith(f"sha256:{built}")}


def test_a_build_that_fails_behind_its_dockerfile_leaves_no_image(
    project: BuildProject, docker_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk is full: what has no tag would be found by nobody."""

    def fail(*_: object) -> None:
        raise ImageError("no space left")

    monkeypatch.setattr(docker_images, "normalise", fail)
    project.configure(tool={"tree": project.tree()})
    with pytest.raises(ImageError, match="no space left"):
        project.build("tool")
    built = raw_id(project.log("tool"))
    with pytest.raises(ImageNotFound):
        docker_client.api.inspect_image(built)
    assert [path.name for path in project.files("tool").record.parent.iterdir()] == [
        "tool.build.log"
    ]


def test_another_source_gives_another_image(project: BuildProject) -> None:
    tree = project.tree()
    project.configure(tool={"tree": tree})
    first = project.build("tool")
    (project.folder / tree / "tool/unique").write_text("other")
    project.configure(tool={"tree": tree})
    assert project.build("tool")["id"] != first["id"]


def test_an_image_holds_its_source_on_its_base_and_runs(
    project: BuildProject, docker_client: Any
) -> None:
    project.configure(tool={"tree": project.tree()})
    record = project.build("tool")
    found = docker_client.api.inspect_image(record["id"])
    base = docker_client.api.inspect_image(project.base)
    layers = base["RootFS"]["Layers"]
    assert found["RootFS"]["Layers"][: len(layers)] == layers
    assert len(found["RootFS"]["Layers"]) == len(layers) + 2
    assert found["Created"].startswith("1980-01-01T00:00:00")
    run = docker_client.containers.run
    assert run(record["id"], ["a", "b"], remove=True, network_mode="none") == b"['a', 'b']\n"
    printed = run(
        record["id"], ["-c", "%Y %u", "/opt/made/file", "/opt/tool/__main__.py"],
        entrypoint="stat", remove=True, network_mode="none",
    )  # fmt: skip
    assert printed.decode().split("\n")[:2] == [f"{TREE_EPOCH} 0"] * 2


def test_the_record_says_what_was_built_from_what(
    project: BuildProject, docker_client: Any
) -> None:
    tree = project.tree(DOCKERFILE.replace("COPY", "ARG WORD=none\nENV WORD=$WORD\nCOPY"))
    project.configure(tool={"tree": tree, "build_arguments": {"WORD": "hello"}})
    record = project.build("tool")
    files = project.files("tool")
    assert read_json(files.record, "refill.image/1") == record
    docker = record["docker"]
    assert record["id"] == docker["id"]
    assert record["runtime"] == "docker"
    assert "archive" not in record
    assert record["source"] == {"kind": "tree", "path": tree}
    assert record["tag"] == docker["tag"] == f"tool:{record['id'][7:19]}"
    found = docker_client.api.inspect_image(record["tag"])
    assert found["Id"] == record["id"]
    assert docker["build_arguments"] == {"BASE": project.base, "WORD": "hello"}
    assert "WORD=hello" in found["Config"]["Env"]
    labels = {
        "org.opencontainers.image.revision": record["tree"],
        "org.opencontainers.image.source": tree,
        "org.opencontainers.image.title": "tool",
        "org.refill.image": "tool",
        "org.refill.tree": record["tree"],
    }
    assert docker["labels"] == labels
    assert found["Config"]["Labels"] == labels | {"org.refill.test": "base"}
    assert docker["base"]["reference"] == project.base
    assert docker["base"]["id"] == docker_client.api.inspect_image(project.base)["Id"]
    assert docker["source_date_epoch"] == TREE_EPOCH
    assert docker["log"] == "results/images/tool.build.log"
    assert docker["daemon"]["version"] == docker_client.version()["Version"]
    assert "Step 1/" in files.log.read_text()


def test_a_source_that_drifted_is_not_built(project: BuildProject) -> None:
    tree = project.tree()
    project.configure(tool={"tree": tree})
    (project.folder / tree / "tool/__main__.py").write_text("other")
    with pytest.raises(ImageError, match=r"drifted.*\n.*changed: tool/__main__\.py"):
        project.build("tool")


def test_a_failing_dockerfile_ends_with_the_last_lines_of_its_log(
    project: BuildProject, docker_client: Any
) -> None:
    # All of one output: two of them arrive in any order.
    failing = f"{DOCKERFILE}RUN (seq 1 40 && echo what is wrong) >&2; exit 3\n"
    project.configure(tool={"tree": project.tree(failing)})
    with pytest.raises(ImageError) as caught:
        project.build("tool")
    text = str(caught.value)
    assert text.startswith("tool: its Dockerfile failed")
    assert "\n    what is wrong\n" in text
    assert "returned a non-zero code: 3" in text
    # Its last lines, and not all of it.
    assert "\n    40\n" in text
    assert "\n    20\n" not in text
    assert "\n20\n" in project.log("tool")
    assert not project.files("tool").record.exists()
    mine = {"label": "org.refill.image=tool"}
    assert not docker_client.api.containers(all=True, filters=mine)


def test_an_argument_that_the_dockerfile_does_not_have_is_refused(project: BuildProject) -> None:
    project.configure(tool={"tree": project.tree(), "build_arguments": {"VERSON": "1"}})
    with pytest.raises(ImageError, match=r"build_arguments\.VERSON .* no such ARG; it has BASE"):
        project.build("tool")


def test_a_base_that_cannot_be_had_is_named(project: BuildProject) -> None:
    project.configure(tool={"tree": project.tree()})
    # Port 9 of loopback: nobody is asked far away.
    with pytest.raises(DockerError, match=r"docker\.base: 127\.0\.0\.1:9/absent:1 .*be pulled"):
        project.build("tool", base="127.0.0.1:9/absent:1")


def test_a_tag_is_not_taken_from_an_image_that_was_not_built_here(
    project: BuildProject, docker_client: Any
) -> None:
    project.configure(tool={"tree": project.tree(), "tag": "refill-test-taken:1"})
    docker_client.api.tag(project.base, "refill-test-taken", "1")
    try:
        with pytest.raises(ImageError, match=r"refill-test-taken:1 is the tag of another image"):
            project.build("tool")
    finally:
        docker_client.api.remove_image("refill-test-taken:1", noprune=True)
    record = project.build("tool")
    assert docker_client.api.inspect_image("refill-test-taken:1")["Id"] == record["id"]


# ---- from Git


def git(folder: Path, *arguments: str, date: str = "2024-05-06T07:08:09Z") -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={
            "PATH": "/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
            "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )  # fmt: skip
    return done.stdout.strip()


# The shape of the published gateway's: a stage that compiles, and one that takes the program.
UPSTREAM = """\
FROM {base} AS builder
WORKDIR /app
COPY src ./src
RUN mkdir -p target/release && cat src/main.sh > target/release/service \\
    && chmod 755 target/release/service && date > target/when

FROM {base}
RUN useradd --system --create-home --uid 10001 gateway
WORKDIR /app
COPY --from=builder /app/target/release/service /usr/local/bin/service
COPY run.sh /usr/local/bin/
ENV LISTEN_ADDR=0.0.0.0:9200
USER 10001:10001
EXPOSE 9200
ENTRYPOINT ["run.sh"]
"""


@pytest.fixture
def upstream(tmp_path: Path, base_image: str) -> tuple[Path, str, str]:
    """A repository with two revisions, as the published gateway has: its folder, old and new."""
    folder = tmp_path / "upstream"
    (folder / "src").mkdir(parents=True)
    (folder / "Dockerfile").write_text(UPSTREAM.format(base=base_image))
    (folder / "run.sh").write_text("#!/bin/sh\nexec service\n")
    (folder / "run.sh").chmod(0o755)
    git(folder, "init", "--quiet")
    revisions = []
    for word in ("typed-readview", "ephemeral-publish"):
        (folder / "src/main.sh").write_text(f"#!/bin/sh\necho {word} {tmp_path}\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", word)
        revisions.append(git(folder, "rev-parse", "HEAD"))
    return folder, revisions[0], revisions[1]


def test_two_revisions_of_a_repository_are_built_as_the_published_ones(
    project: BuildProject, upstream: tuple[Path, str, str], docker_client: Any
) -> None:
    folder, old, new = upstream
    where = {"repository": f"file://{folder}"}
    project.configure(
        **{
            "gateway-old": {"git": {**where, "revision": old[:7]}},
            "gateway-new": {"git": {**where, "revision": new}},
        }
    )
    records = {name: project.build(name) for name in ("gateway-old", "gateway-new")}
    for name, word, commit in (
        ("gateway-old", "typed-readview", old),
        ("gateway-new", "ephemeral-publish", new),
    ):
        record = records[name]
        assert record["source"]["commit"] == commit
        assert record["docker"]["labels"]["org.opencontainers.image.revision"] == commit
        assert record["docker"]["source_date_epoch"] == 1714979289
        printed = docker_client.containers.run(record["id"], remove=True, network_mode="none")
        assert printed.decode().split()[0] == word
    assert records["gateway-old"]["source"]["revision"] == old[:7]
    # The compiling stage leaves no trace in the result, so it too has one ID.
    again = project.build("gateway-new")
    assert "Using cache" not in project.log("gateway-new")
    assert again["id"] == records["gateway-new"]["id"]
    found = docker_client.api.inspect_image(again["id"])
    assert found["Config"]["User"] == "10001:10001"
    assert found["Created"].startswith("2024-05-06T07:08:09")


# ---- this project's own images


@pytest.fixture(scope="module")
def own(docker_client: Any, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """This project's images, each with a word more in its README: no other test's are removed."""
    folder = tmp_path_factory.mktemp("own")
    made = BuildProject(folder, docker_client, base_image)
    shutil.copy(PROJECT / "requirements.lock", folder)
    shutil.copytree(PROJECT / "images", folder / "images", ignore=shutil.ignore_patterns("__py*"))
    for readme in (folder / "images").glob("*/README.md"):
        readme.write_text(f"{readme.read_text()}\n{folder}\n")
    entries = load_images()
    for entry in entries.values():
        # Not the published tags: they are those of images that somebody may be measuring.
        entry.pop("tag", None)
    made.configure(**entries)
    yield made
    made.remove()


def test_the_two_gateways_differ_in_how_a_response_is_published_alone(
    own: BuildProject, docker_client: Any
) -> None:
    old, new = own.build("gateway-old"), own.build("gateway-new", nocache=False)
    assert new["differs_from"]["files"] == ["gateway/lua/publish.lua"]
    assert old["id"] != new["id"]
    found = [contents(docker_client, record["id"], "/opt/refill") for record in (old, new)]
    assert found[0].keys() == found[1].keys()
    differing = {path for path in found[0] if found[0][path] != found[1][path]}
    assert differing == {"gateway/gateway/lua/publish.lua"}
    # What is in the image is what was pinned, and the wheels are those of the lock.
    for path, sha256 in new["files"].items():
        if path.startswith("gateway/") or path == "__main__.py":
            assert sha256_bytes(found[1][f"gateway/{path}"]) == sha256
    lock = (own.folder / "requirements.lock").read_text()
    assert new["dependencies"].keys() == {"orjson", "httptools", "uvloop"}
    for package, version in new["dependencies"].items():
        assert f"\n{package}=={version} " in lock
        assert f"sha256:{new['dependency_files'][package]}" in lock


def test_valkey_from_its_wheel_takes_the_arguments_of_the_official_image(
    own: BuildProject, docker_client: Any
) -> None:
    record = own.build("valkey")
    run = docker_client.containers.run
    said = run(record["id"], ["--version"], remove=True, network_mode="none").decode()
    assert "v=8.1." in said
    found = docker_client.api.inspect_image(record["id"])["Config"]
    assert found["Entrypoint"] == ["valkey-server"]
    assert found["WorkingDir"] == "/data"


def test_a_build_of_wheels_has_no_network(own: BuildProject) -> None:
    dockerfile = own.folder / "images/valkey/Dockerfile"
    text = dockerfile.read_text()
    dockerfile.write_text(f"{text}RUN ls /sys/class/net\n")
    try:
        own.configure(valkey={**load_images()["valkey"]})
        own.build("valkey")
    finally:
        dockerfile.write_text(text)
    lines = own.log("valkey").splitlines()
    listed = lines[next(i for i, line in enumerate(lines) if "Running in" in line and i > 0) :]
    assert "lo" in listed
    assert not [line for line in listed if line.startswith("eth")]


def test_wheels_of_another_python_than_the_bases_stop_the_build(own: BuildProject) -> None:
    own.configure(**{"qdrant-edge": load_images()["qdrant-edge"]})
    with pytest.raises(ImageError) as caught:
        own.build("qdrant-edge", python="3.12")
    assert "its Dockerfile failed" in str(caught.value)
    assert "No module named" in str(caught.value)
