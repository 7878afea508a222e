#!/bin/sh
# Epilog of slurmd: removes what the daemon of a job (train.sbatch) left in /tmp, for example because it was killed. It first
# copies the history to where the job stores it. It runs as the user of the job, so that a planted link cannot redirect it. It
# has time limits and never fails, so that it does not block or drain the node.
#
# slurm.conf: Epilog=/etc/slurm/trackside/epilog.sh
directory=/tmp/trackside-$SLURM_JOB_UID-$SLURM_JOB_ID

# Another user may have created a directory of that name, so check the owner.
cleared() {
  timeout 30 setpriv --reuid="$SLURM_JOB_UID" --regid="$SLURM_JOB_GID" --clear-groups sh -c '
    [ -O "$1" ] && [ ! -L "$1" ] || exit 0
    kept=$(cat "$1/kept")
    [ ! -e "$1/history/history.db" ] || cp "$1"/history/history.db* "$kept/" || exit
    [ ! -d "$1/history/captures" ] || cp -R "$1/history/captures" "$kept/" || exit
    rm -rf -- "$1"' sh "$directory" 2>/dev/null
}

if [ -n "$SLURM_JOB_UID" ] && [ -n "$SLURM_JOB_ID" ] && [ -d "$directory" ] && ! cleared; then
  timeout 5 logger --tag trackside "job $SLURM_JOB_ID: its history could not be copied; it stays in $directory/history"
fi
exit 0
