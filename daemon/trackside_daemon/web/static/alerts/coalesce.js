// Returns a function that runs `work` one call at a time; calls made meanwhile are combined into one further run.

export function coalesce(work) {
  let last = Promise.resolve();
  let waiting;
  return () => {
    waiting ??= last.then(() => {
      waiting = undefined;
      last = work();
      return last;
    });
    return waiting;
  };
}
