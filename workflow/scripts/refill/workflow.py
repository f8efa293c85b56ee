"""What the rules ask for: the checked configuration, cut into one plain plan for each job.

A plan is a dict of plain values with sorted keys, given to a rule as its only parameter, so a
change of anything in it reruns the job. It holds the hash of the job's code and nothing that
differs between two calls (no time, no temporary path).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from refill import images, needs, table_plan
from refill.batch_job import batch_job
from refill.config import (
    load_claims,
    load_images,
    load_native,
    load_optimizers,
    validate,
)
from refill.config.load import DOCUMENT_KINDS, refuse
from refill.container_plan import ContainerPlan
from refill.corpora.depth import truth_depth
from refill.docker_build.wheels import LOCK, locked_versions
from refill.engines import installations, java, maven
from refill.engines.description import EngineError
from refill.evidence.code import code_hash
from refill.evidence.manifest import lines_unknown
from refill.evidence.turns import refuse_superseded
from refill.operations import limits
from refill.operations.catalog import load_operations
from refill.phases.round_engines import installed
from refill.phases.round_plan import cells, plain
from refill.processes import named_invocation
from refill.told import ToldError

FIRST_PRIORITY = 10_000
FIRST_ROUND = 20_000
# Between the rounds and the optimizer runs: about the rounds' gateway, and disturbed by nothing.
PROOF = 15_000
# Nothing is built or fetched between two measurements.
BEFORE_ALL_MEASUREMENTS = 30_000
ENGINE_RECORD = "results/engines/{}.json"
ROUND_RECORD = "results/rounds/{profile}/{image}-{n}.json"
SECTIONS = ("upload", "search", "draining", "steady")


@contextmanager
def as_workflow_error() -> Iterator[None]:
    """Let an error that tells all end Snakemake with its own words instead of a traceback."""
    try:
        yield
    except (ValueError, OSError, ToldError, EngineError) as error:
        from snakemake.exceptions import WorkflowError

        raise WorkflowError(str(error)) from None


def check_results(folder: Path = Path("results")) -> None:
    """Look whether results can be written, before anything is measured that would be lost.

    Raises:
        ToldError: they cannot; the text says why.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        raise ToldError(
            f"{folder}: nothing can be written there: {error.strerror}: make room, change what "
            "forbids it, or give another working folder (--directory)"
        ) from error


class Plans:
    """The configuration of one call of the workflow.

    Args:
        config: Snakemake's merged config.
        files: the files it was merged from, in Snakemake's order: those of the command line first,
            although they win.
        project: folder that holds `config` and `workflow`.
        given: what `--config` on the command line set.

    Raises:
        ConfigError, ImageError: something is wrong in the configuration or with a pinned tree.
        ValueError: the project lies where its jobs would not find it.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        files: Sequence[Path | str],
        project: Path,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        if os.pathsep in str(project):
            # Its jobs are processes of Python that find the package by that list.
            raise ValueError(
                f"{project}: the name of a folder there holds {os.pathsep!r}, which separates "
                "folders in PYTHONPATH: move the project (the working folder may have such a name)"
            )
        base = (project / "config" / "config.yaml").resolve()
        ordered = sorted(map(Path, files), key=lambda file: file.resolve() != base)
        self.config = validate(config, ordered, project, given)
        self.project = project
        self._scripts = project / "workflow" / "scripts"
        self._configurations = load_optimizers(project / "config" / "optimizers.yaml")
        self._entries = load_images(project / "config" / "images.yaml")
        self._operations = load_operations(project / "config" / "operations.yaml")
        self._native = load_native(project / "config" / "native.yaml")
        load_claims(project / "config" / "claims.yaml")
        self.containers = ContainerPlan(self.config)
        image = self.containers.qdrant
        self.qdrant_images: list[str] = [image] if image else []
        self.rounds = table_plan.rounds(self.config)
        if self.rounds:
            asked = list(limits.problems(self._operations, self.config["rounds"]))
            refuse(asked, ordered, given)
        self._proof: dict[str, Any] = self.config.get("proof", {"form": "none"})
        wanted = self._proof["form"] != "none"
        if wanted:
            self._proof = self.containers.proof(self._proof)
        self.proof_images: list[str] = list(self._proof["images"].values()) if wanted else []
        named = [*self.qdrant_images, *self._round_images(), *self.proof_images]
        self.images = list(dict.fromkeys(named))
        for name in self.images:
            if name not in self.containers.pulled:
                images.check(project, name, self._entries, fetch=False)
        self.native_engines = self._native_engines()
        self._attempts: dict[str, int] = {}
        self._again_for: str | None = None
        self.corpus_name: str = self.config["corpus"]["name"]
        corpora = self.config["corpora"]
        self.document_corpora = [n for n, spec in corpora.items() if spec["kind"] in DOCUMENT_KINDS]
        self.vector_corpora = [name for name in corpora if name not in self.document_corpora]
        self.round_corpora = [self.config["rounds"]["corpus"]["name"]] if self.rounds else []
        optimizers = self.config["optimizers"]
        self.optimizer_ids: list[str] = list(self._configurations)
        self.optimizer_runs = table_plan.optimizer_runs(self.config)
        self.optimizer_names = list(optimizers["runs"])

    @property
    def node_cpus(self) -> int | None:
        """CPUs of a cluster's node; None where no cluster is configured."""
        return self.config.get("node_cpus")

    @property
    def cpus(self) -> int:
        """CPUs that the engine may use.

        On a cluster those of the node: what the machine has on which Snakemake runs says nothing.
        """
        given: int = self.config["qdrant"]["cpus"]
        return given or self.node_cpus or len(os.sched_getaffinity(0))

    @property
    def corpus_needs(self) -> needs.Need:
        """Memory and time that the preparation of a corpus may take."""
        return needs.corpus(self.config)

    @property
    def optimizer_needs(self) -> needs.Need:
        """Memory and time that an optimizer run may take."""
        return needs.optimizer(self.config)

    @property
    def round_needs(self) -> needs.Need:
        """Memory and time that a round may take; a constant where none is configured."""
        if not self.rounds:
            return needs.NOTHING
        operations = replace(self._operations, counts=self.round_counts)
        measured = cells(operations, self.config["rounds"]["engines"], serving=True)
        return needs.one_round(self.config, len(measured) * self.round_counts["trials"])

    def image(self, name: str) -> dict[str, Any]:
        """Give the plan of building an image, or of pulling one."""
        values = self.containers.image(name)
        if name not in self.containers.pulled:
            values["entries"] = images.needed(self._entries, name)
            if self.containers.used:
                packages = self._entries[name]["dependencies"]
                values["packages"] = locked_versions(name, packages, self.project / LOCK)
        return self._plan("build_image.py", name=name, **values)

    def corpus(self, name: str) -> dict[str, Any]:
        """Give the plan of preparing a corpus."""
        corpus = self.config["corpus"]
        return self._plan(
            "prepare_corpus.py",
            name=name,
            spec=self.config["corpora"][name],
            points=corpus["points"],
            queries=corpus["queries"],
            seed=corpus["seed"],
            depth=truth_depth(
                self.config["optimizers"]["search"]["limit"],
                self._configurations.values(),
                corpus["points"],
            ),
        )

    def corpus_size(self, name: str) -> str:
        """Say how large a corpus of vectors is, as far as the configuration knows."""
        corpus, spec = self.config["corpus"], self.config["corpora"][name]
        dimension = f" of {spec['dimension']} dimensions" if "dimension" in spec else ""
        return f"{corpus['points']} points and {corpus['queries']} queries{dimension}"

    def documents(self, name: str) -> dict[str, Any]:
        """Give the plan of preparing a corpus of documents."""
        rounds = self.config["rounds"]
        return self._plan(
            "prepare_documents.py",
            name=name,
            spec=self.config["corpora"][name],
            documents=rounds["corpus"]["documents"],
            seed=rounds["seed"],
        )

    def round(self, profile: str, image: str, n: int) -> dict[str, Any]:
        """Give the plan of one round.

        It holds what the records of the native engines say now: a round runs again when another
        one is at hand, and not when one that is not was tried once more, or one that the round
        measured is gone. (The records' paths are not arguments: Snakemake forgets a parameter that
        is made from a rule's input.)
        """
        rounds = self.config["rounds"]
        kept = (
            "seed", "engines", "warm_up", "timeout_s", "trial_limit_s", "valkey", "gateway",
            "native",
        )  # fmt: skip
        plan = self._plan(
            "run_round.py",
            profile=profile,
            image=image,
            n=n,
            serving=profile == "on-main",
            scale=self.config["scale"],
            operations=plain(self._operations),
            counts=self.round_counts,
            gateway_image=rounds["images"][image],
            qdrant_image=self.containers.qdrant,
            valkey_image=self.containers.valkey,
            qdrant=self.config["qdrant"],
            cpus=self.containers.round_cpus(self.config["qdrant"]["cpus"], self.cpus),
            **self.containers.measurement("host", "budget"),
            native_specs={name: self._native[name] for name in self.native_engines},
            **{key: rounds[key] for key in kept},
        )
        now = {
            name: installations.identity_of(Path(ENGINE_RECORD.format(name)))
            for name in self.native_engines
        }
        record = Path(ROUND_RECORD.format(profile=profile, image=image, n=n))
        plan["installed"] = installed(plan, now, record)
        return dict(sorted(plan.items()))

    def native_engine(self, name: str) -> dict[str, Any]:
        """Give the plan of making a native engine ready.

        What decides whether it is at hand is in the plan, so that a Java or Maven that comes later
        is noticed. What failed for another reason (a download, half a release) is tried again.
        """
        native = self.config["rounds"]["native"]
        if name not in self._attempts:
            # Once: a job that runs has no record any more.
            self._attempts[name] = installations.next_attempt(Path(ENGINE_RECORD.format(name)))
        attempt = self._attempts[name]
        if self.containers.used and native[name]["url"] is None:
            own = self.containers.native_engine(name)
            return self._plan("prepare_engine.py", name=name, attempt=attempt, **own)
        return self._plan(
            "prepare_engine.py",
            name=name,
            attempt=attempt,
            spec=self._native[name],
            settings={"java": native["java"], name: native[name]},
            maven=maven.available(),
            javas=sorted(str(program) for program in java.candidates_for(native["java"])),
        )

    def in_turn(self, target: str) -> list[str]:
        """Give no input; refuse a job of a cluster that a later call's job has taken over.

        Asked while the job's Snakemake makes its plan, before it deletes the results that are
        there. Such a job waited in the queue when its call was killed, or was started again.

        Raises:
            SupersededError: so it is.
        """
        if batch_job() is not None:
            refuse_superseded(Path(), target, named_invocation())
        return []

    def round_priority(self, profile: str, image: str, n: int) -> int:
        """Give a round's priority: unique, above every optimizer run, falling in their order."""
        wanted = (profile, image, n)
        return FIRST_ROUND - self.rounds.index(wanted) if wanted in self.rounds else 0

    def round_files(self, profile: str) -> list[str]:
        """Give how the names of a round's files end, beside its record's."""
        # With the cache off nothing is warm.
        warm = ["warm.json"] if profile == "on-main" else []
        return ["parquet", "resources.json", *warm, "cold.json"]

    @property
    def round_counts(self) -> dict[str, Any]:
        """Counts of a round: those of config/operations.yaml, and what wins over them."""
        return {**self._operations.counts, **self.config["rounds"]["counts"]}

    def _native_engines(self) -> list[str]:
        """Give the native engines that the rounds measure."""
        engines = self.config.get("rounds", {}).get("engines", [])
        return [engine for engine in engines if engine != "gateway"] if self.rounds else []

    def _round_images(self) -> list[str]:
        """Give the images that only rounds need: both gateways and, in containers, Valkey."""
        valkey = self.containers.valkey
        return [*self._gateway_images(), *([valkey] if valkey and self.rounds else [])]

    def _gateway_images(self) -> list[str]:
        # In an A/A run both arms are one image.
        return list(dict.fromkeys(self.config["rounds"]["images"].values())) if self.rounds else []

    def proof(self) -> dict[str, Any]:
        """Give the plan of the AOF crash proof."""
        return self._plan("run_proof.py", scale=self.config["scale"], **self._proof)

    def check_servers(self) -> None:
        """Look whether the programs that the proof was given are servers of their names.

        In containers and on a cluster's nodes they are others than here, or out of sight.

        Raises:
            EngineError: one is not, or there is no default server.
        """
        if not self.containers.used and self.config.get("node_cpus") is None:
            # Imported here: most of what is planned needs no server.
            from refill.proofs.servers import find

            find(self._proof["servers"])

    def optimizer(self, name: str, repeat: int) -> dict[str, Any]:
        """Give the plan of one run of one optimizer configuration."""
        entry = self._configurations[name]
        optimizers = self.config["optimizers"]
        corpus = self.config["corpus"]
        return self._plan(
            "run_optimizer.py",
            id=name,
            repeat=repeat,
            group=entry["group"],
            label=entry["label"],
            description=entry["description"],
            scale=self.config["scale"],
            seed=corpus["seed"],
            qdrant=self.config["qdrant"],
            cpus=self.cpus,
            **self.containers.measurement("host"),
            entry=entry,
            defaults=optimizers["defaults"],
            hnsw_defaults=optimizers["hnsw_defaults"],
            override=optimizers["overrides"].get(name),
            **{section: optimizers[section] for section in SECTIONS},
        )

    def optimizer_priority(self, name: str, repeat: int) -> int:
        """Give a run's priority: unique, falling in the order of the configuration."""
        if (name, repeat) in self.optimizer_runs:
            return FIRST_PRIORITY - self.optimizer_runs.index((name, repeat))
        return 0

    def tables(self) -> dict[str, Any]:
        """Give the plan of the tables."""
        claims = self.project / "config" / "claims.yaml"
        return self._plan(
            "write_tables.py",
            read=[claims],
            **table_plan.of_tables(self.config, self._operations),
        )

    @property
    def one_image(self) -> bool:
        """Whether both arms of the rounds are one image (A/A)."""
        return len(self._gateway_images()) == 1

    def false_verdicts(self) -> dict[str, Any]:
        """Give the plan of counting the false verdicts of an A/A run."""
        claims = self.project / "config" / "claims.yaml"
        expected = table_plan.expected_rounds(self.config, self._operations)
        return self._plan("count_false_verdicts.py", read=[claims], expected=expected)

    def manifest(self, tables: Any, report: Any, counted: Any = None) -> dict[str, Any]:
        """Give the plan of the manifest; the arguments are the rules of other files.

        `counted` is that of the false verdicts, where both arms are one image.
        """
        written = [
            _written("write_tables.py", tables, self.tables()),
            _written("write_report.py", report, self.report()),
        ]
        if counted is not None:
            written.append(_written("count_false_verdicts.py", counted, self.false_verdicts()))
        if self._again_for is None:
            # Once: a job that runs has no manifest any more.
            self._again_for = lines_unknown(Path())
        return self._plan(
            "write_manifest.py", config=self.config, written=written, again_for=self._again_for
        )

    def crate(self) -> dict[str, Any]:
        """Give the plan of the crate."""
        return self._plan("write_crate.py")

    def report(self) -> dict[str, Any]:
        """Give the plan of the report."""
        claims = self.project / "config" / "claims.yaml"
        templates = self._scripts / "refill" / "report" / "templates"
        return self._plan(
            "write_report.py",
            read=[claims, templates],
            **table_plan.of_tables(self.config, self._operations),
        )

    def _plan(self, script: str, read: Sequence[Path] = (), **values: Any) -> dict[str, Any]:
        values["code"] = code_hash(self._scripts / script, self._scripts, read)
        return dict(sorted(values.items()))


def _written(script: str, rule: Any, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Say how a rule's files are made, for the manifest; its code stands there file by file."""
    return {
        "script": script,
        "input": _named(rule.input),
        "output": _named(rule.output),
        "plan": {key: value for key, value in plan.items() if key != "code"},
    }


def _named(files: Any) -> dict[str, Any]:
    """Give the named files of a rule: one path, or a list of them, by name."""
    return {
        name: str(value) if isinstance(value, str) else [str(path) for path in value]
        for name, value in files.items()
    }
