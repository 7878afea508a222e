// The owners of runs, which a list shows only if it has runs of several users.

export function ownerOf(runs) {
  const several = new Set(runs.map((run) => run.user)).size > 1;
  return (run) => (several && run.user) || "";
}
