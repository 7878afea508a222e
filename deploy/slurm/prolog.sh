#!/bin/sh
# Prolog of slurmd: starts the daemon of the node when a job begins, unless the daemon is disabled. It has time limits, so that
# it does not delay a job. It never fails, because Slurm would then drain the node: a training and a node both work without a
# daemon.
#
# slurm.conf: Prolog=/etc/slurm/trackside/prolog.sh
port=${TRACKSIDE_PORT:-21790}

ask() { timeout 5 systemctl --quiet "$@" trackside 2>/dev/null; }
report() { timeout 5 logger --tag trackside "job ${SLURM_JOB_ID:-?}: $*"; }

ask is-enabled || exit 0

# An answer at the port proves nothing: any user of the node can listen there while the daemon is down.
if ! ask is-active; then
  ask --no-block start
  report "the service is not active; see systemctl status trackside"
fi

# Only a process in the service's control group is the daemon. Listeners come first: one of the daemon then has its group.
for pid in $(timeout 5 ss -Hltnp "sport = :$port" 2>/dev/null | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u); do
  owner=$(stat -c %U "/proc/$pid" 2>/dev/null) || continue
  group=$(timeout 5 systemctl show --property=ControlGroup --value trackside 2>/dev/null)
  if [ -z "$group" ] || ! grep -q -x "[0-9]*:[^:]*:$group\(/.*\)\?" "/proc/$pid/cgroup" 2>/dev/null; then
    report "process $pid of $owner listens at port $port, and not the daemon: do not trust what Prometheus scrapes there"
  fi
done
exit 0
