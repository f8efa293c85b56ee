#!/bin/sh
# Say `running`, `success` or `failed` of the Slurm job $1. squeue knows a job for some minutes after
# its end (MinJobAge); what it does not know any more, sacct does, where accounting is on.
state=$(squeue --noheader --states=all --format=%T --jobs="$1" 2>/dev/null)
[ -n "$state" ] || state=$(sacct --noheader --allocations --format=State --jobs="$1" 2>/dev/null)
case $state in
COMPLETED*) echo success ;;
PENDING* | CONFIGURING* | RUNNING* | COMPLETING* | SUSPENDED* | REQUEUED* | STOPPED* | RESIZING*)
    echo running ;;
*) echo failed ;;
esac
