#!/bin/sh
# TaskProlog of slurmd: names the run of each task, unless the user already has, and lets PyTorch's own profiler ask the daemon of
# the job, if $TRACKSIDE_ENDPOINT names one. slurmd adds the printed lines to the environment of the task. Without this script, a run
# has the name of its script and the id of the job.
#
# slurm.conf: TaskProlog=/etc/slurm/trackside/task-prolog.sh
if [ -z "$TRACKSIDE_RUN_NAME" ] && [ -n "$SLURM_JOB_NAME" ]; then
  if [ -n "$SLURM_ARRAY_TASK_ID" ]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  else
    job=$SLURM_JOB_ID
  fi
  printf 'export TRACKSIDE_RUN_NAME=%s-%s\n' "$(printf %s "$SLURM_JOB_NAME" | tr -d '\n')" "$job"
fi
case $TRACKSIDE_ENDPOINT in ipc://*) (cd / && timeout 10 python -m trackside.captures 2>/dev/null) ;; esac
exit 0
