#!/bin/sh
# Say `running`, `success` or `failed` of the Slurm job $1. squeue knows a job for some minutes after
# its end (MinJobAge); what it does not know any more, sacct does, where accounting is on. A
# controller that does not answer says nothing of the job: it counts as running for ten minutes.
silent="${TMPDIR:-/tmp}/refill-no-answer-$(id -u)-$1"
answer=$(squeue --noheader --states=all --format=%T --jobs="$1" 2>&1)
known=$?
case $known:$answer in
0:*) state=$answer ;;
*"Invalid job id"*) state= ;;
*) state=UNKNOWN ;;
esac
case $state in
"" | UNKNOWN)
    told=$(sacct --noheader --allocations --format=State --jobs="$1" 2>/dev/null) && [ -n "$told" ] && state=$told ;;
esac
case $state in
UNKNOWN)
    [ -e "$silent" ] || : >"$silent"
    if [ -n "$(find "$silent" -mmin +10)" ]; then echo failed; else echo running; fi
    exit ;;
esac
rm -f "$silent"
case $state in
COMPLETED*) echo success ;;
PENDING* | CONFIGURING* | RUNNING* | COMPLETING* | SUSPENDED* | REQUEUED* | STOPPED* | RESIZING*)
    echo running ;;
*) echo failed ;;
esac
