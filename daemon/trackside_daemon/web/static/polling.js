// How often pages ask for what the stream does not contain, in milliseconds. No hidden page asks for anything.

export const RUNS_MS = 5000; // The list of runs, while one is live.
export const RUN_MS = 5000; // A live run,
export const LARGE_RUN_MS = 15_000; // and one whose document is about a megabyte.
export const SYSTEM_MS = 2000; // The GPUs, disks and processes of the machine.
export const CAPTURES_MS = 1000; // The captures of a run, while something is recorded.
export const COUNT_MS = 15_000; // The number of a live run's samples to export.
export const MACHINE_MS = 10_000; // What a run's machine did: the interval of its samples in the history.
export const LAYERS_MS = 5000; // The layers of a live run,
export const DIAGNOSIS_MS = 15_000; // and its diagnosis.
export const COMPARISON_MS = 2000; // Runs that are compared, while one makes steps.

// Returns whether something that was loaded at this time of the page is to be loaded again.
export function isDue(loadedAt, interval) {
  return !document.hidden && performance.now() - loadedAt > interval;
}

// Calls a function after an interval, but not while the page is hidden; returns what cancels that.
export function later(interval, load) {
  let timer = setTimeout(function again() {
    if (document.hidden) timer = setTimeout(again, interval);
    else load();
  }, interval);
  return () => clearTimeout(timer);
}

// Calls a function now and then at an interval, until the signal aborts.
export async function poll(interval, load, signal) {
  while (!signal.aborted) {
    if (!document.hidden) await load();
    await new Promise((resolve) => setTimeout(resolve, interval));
  }
}

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
