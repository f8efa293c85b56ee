"""Build an image from its pinned source, or pull it, and record its identity (rules of images)."""

from pathlib import Path
from typing import Any

from refill import images
from refill.config import PROJECT
from refill.edge import logged


def main(plan: dict[str, Any], output: Any) -> dict[str, Any]:
    """Make an image as its plan says; return its record."""
    record = Path(output.record)
    if plan["runtime"] == "process":
        return images.build(
            PROJECT, plan["name"], plan["entries"], Path(output.built), record, plan["code"]
        )
    # Imported here: a run without containers needs nothing of it.
    from refill.runtimes import docker_images

    client = docker_images.connect(plan["docker"]["host"])
    try:
        if "pull" in plan:
            return docker_images.record_pulled(
                client, plan["name"], plan["pull"], record, plan["code"]
            )
        files = docker_images.BuildFiles(
            record, Path(output.built), Path("results/downloads/wheels")
        )
        return docker_images.build(
            client, PROJECT, plan["name"], plan["entries"], plan["docker"], files, plan["code"]
        )
    finally:
        client.close()


if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        made = main(dict(smk.params.plan), smk.output)
        for warning in made.get("warnings", []):
            print(f"warning: {warning}", file=terminal)
        print(f"image {made['name']}: {made['id']}", file=terminal)
