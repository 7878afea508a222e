// Does something one at a time: what is asked for meanwhile is done once, afterwards.

export function alone(work) {
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
