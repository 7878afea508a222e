#!/bin/sh
# The daemon of one job on this node, for clusters without a daemon on each node. train.sbatch starts it in a separate step.
# It writes the history to the disk of this node, and copies it to DIRECTORY/NODE when the job ends.
#
#   job-daemon.sh DIRECTORY [FLAG…]
kept=$1/$SLURMD_NODENAME${SLURM_RESTART_COUNT:+.$SLURM_RESTART_COUNT}  # a requeued job overwrites nothing
shift
directory=/tmp/trackside-$(id -u)-$SLURM_JOB_ID
umask 077
mkdir "$directory" 2>/dev/null
if [ ! -O "$directory" ] || [ -L "$directory" ]; then
  echo "job-daemon.sh: $directory: it must be a directory of this user; the training continues without a daemon" >&2
  exit 1
fi
mkdir -p "$directory/history" "$kept" && echo "$kept" >"$directory/kept" || exit  # the epilog copies what remains there

trap 'kill "$daemon" 2>/dev/null' TERM INT  # then continue after the wait
trackside daemon \
  --push.endpoint="ipc://$directory/push.sock" \
  --storage.path="$directory/history" \
  --web.listen-address=127.0.0.1:0 \
  "$@" &
daemon=$!
until wait "$daemon"; status=$?; ! kill -0 "$daemon" 2>/dev/null; do :; done

# A killed daemon leaves part of its history in the WAL files next to history.db.
set -- "$directory"/history/history.db*
[ ! -d "$directory/history/captures" ] || set -- "$@" "$directory/history/captures"
if cp -R "$@" "$kept/"; then
  rm -rf "$directory"
else
  echo "job-daemon.sh: the history could not be copied to $kept; it stays in $directory/history of $SLURMD_NODENAME" >&2
  exit 1
fi
exit "$status"
