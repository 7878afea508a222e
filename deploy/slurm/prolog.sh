#!/bin/sh
# Prolog of slurmd: sees to it that the node's daemon runs when a job begins, unless it is disabled there. It holds no job up
# for longer than its limits, and never fails, since Slurm would drain the node: a training goes on without a daemon, and so
# does a node.
#
# slurm.conf: Prolog=/etc/slurm/trackside/prolog.sh
url=${TRACKSIDE_URL:-http://127.0.0.1:21790}

# Any answer will do, be it that of a page that wants a password.
answers() {
  if command -v curl >/dev/null; then
    timeout 5 curl --silent --insecure --noproxy '*' --output /dev/null "$url/-/healthy"
  else
    timeout 5 systemctl --quiet is-active trackside 2>/dev/null
  fi
}

if ! answers && timeout 5 systemctl --quiet is-enabled trackside 2>/dev/null; then
  timeout 5 systemctl --no-block start trackside 2>/dev/null
  timeout 5 logger --tag trackside "job ${SLURM_JOB_ID:-?}: no daemon answers at $url; see systemctl status trackside"
fi
exit 0
