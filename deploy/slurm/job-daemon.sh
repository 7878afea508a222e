#!/bin/sh
# A daemon of one job on this node, for clusters whose nodes have none: train.sbatch starts it in a step of its own. Its
# history is written to this node's disk, and is brought to DIRECTORY/NODE when the job ends.
#
#   job-daemon.sh DIRECTORY [FLAG…]
kept=$1/$SLURMD_NODENAME${SLURM_RESTART_COUNT:+.$SLURM_RESTART_COUNT}  # a job that is requeued overwrites nothing
shift
directory=/tmp/trackside-$(id -u)-$SLURM_JOB_ID
umask 077
mkdir "$directory" 2>/dev/null
if [ ! -O "$directory" ] || [ -L "$directory" ]; then
  echo "job-daemon.sh: $directory: it has to be a directory that this user can make; the training goes on without a daemon" >&2
  exit 1
fi
mkdir -p "$directory/history" "$kept" && echo "$kept" >"$directory/kept" || exit  # where the epilog brings what is left

trap 'kill "$daemon" 2>/dev/null' TERM INT  # and go on to what comes after the daemon
trackside daemon \
  --push.endpoint="ipc://$directory/push.sock" \
  --storage.path="$directory/history" \
  --web.listen-address=127.0.0.1:0 \
  "$@" &
daemon=$!
until wait "$daemon"; status=$?; ! kill -0 "$daemon" 2>/dev/null; do :; done

# A daemon that was killed has part of its history in files beside it.
if cp "$directory"/history/history.db* "$kept/"; then
  rm -rf "$directory"
else
  echo "job-daemon.sh: the history could not be copied to $kept; it stays in $directory/history of $SLURMD_NODENAME" >&2
  exit 1
fi
exit "$status"
