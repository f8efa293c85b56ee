# Configuration, checked before anything starts, and what every rule needs of it.

import re
import sys
from pathlib import Path

SCRIPTS = Path(workflow.basedir) / "scripts"
PROJECT = Path(workflow.basedir).parent
# Appended, so that nothing of this project can shadow an installed package.
sys.path.append(str(SCRIPTS))

from refill.batch_job import name_tmpdir
from refill.config.yamlfile import read_yaml
from refill.processes import name_invocation
from refill.rounds_node import waits
from refill.workflow import (
    BEFORE_ALL_MEASUREMENTS,
    ENGINE_RECORD,
    PROOF,
    ROUND_RECORD,
    Plans,
    as_workflow_error,
    check_results,
)

name_invocation()
name_tmpdir()

# Snakemake's own reader ends in a traceback for a file that is not UTF-8.
with as_workflow_error():
    read_yaml(PROJECT / "config" / "config.yaml")


configfile: str(PROJECT / "config" / "config.yaml")


with as_workflow_error():
    given = workflow.config_settings.config
    PLANS = Plans(config, workflow.configfiles, PROJECT, given)


def all_cores(wildcards, input=None, attempt=None):
    """A measurement has the machine for itself, however many cores Snakemake was given."""
    return PLANS.node_cpus or workflow.cores or 1


def planned(plan):
    """A parameter's function of the wildcards, whose errors end Snakemake with their own words."""

    def plan_of(wildcards):
        with as_workflow_error():
            return plan(wildcards)

    return plan_of


def in_turn(target):
    """An input function that gives nothing, and refuses a job that another one has taken over."""

    def check(wildcards):
        with as_workflow_error():
            return PLANS.in_turn(target.format(**wildcards))

    return check


# What has been said of the rounds' node.
SAID = set()


def in_session(wildcards, input):
    """One round at a time. Says so, once, when their node takes no jobs: Slurm would wait in silence."""
    if workflow.is_main_process and input.node and Path(input.node).exists():
        with as_workflow_error():
            line = waits(Path(input.node))
        if line and line not in SAID:
            SAID.add(line)
            print(line, file=sys.stderr, flush=True)
    return 1


def one_of(names):
    """A wildcard's pattern that stands for these names and no other."""
    return "|".join(map(re.escape, names)) or "(?!)"
