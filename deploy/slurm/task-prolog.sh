#!/bin/sh
# TaskProlog of slurmd: names the run of each task, unless the user already has, and lets PyTorch's own profiler ask the daemon of
# the job, if $TRACKSIDE_ENDPOINT names one. slurmd adds the printed lines to the environment of the task. Without this script, a run
# has the name of its script and the id of the job.
#
# slurm.conf: TaskProlog=/etc/slurm/trackside/task-prolog.sh
# With with_id=no, it has its user, its job's name and its number in an array, without the id: alice.gpt-small, alice.sweep_3. The
# next job of this name then goes on with the series of the last in Prometheus, which has to store none of its own; but jobs of
# the same name that run at the same time are one run there. trackside_training_run_info has the id.
with_id=yes

if [ -z "$TRACKSIDE_RUN_NAME" ] && [ -n "$SLURM_JOB_NAME" ]; then
  name=$(printf %s "$SLURM_JOB_NAME" | tr -d '\n')
  task=${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
  if [ "$with_id" = yes ]; then
    name=$name-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}$task
  else
    name=$SLURM_JOB_USER.$name$task
  fi
  printf 'export TRACKSIDE_RUN_NAME=%s\n' "$name"
fi
case $TRACKSIDE_ENDPOINT in ipc://*) (cd / && timeout 10 python -m trackside.captures 2>/dev/null) ;; esac
exit 0
