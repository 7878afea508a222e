// Lets Node import the dashboard's modules by their addresses, and stands for what they ask of a browser meanwhile.

import { registerHooks } from "node:module";

const STATIC = new URL("../../daemon/trackside_daemon/web/static/", import.meta.url);

registerHooks({
  resolve(specifier, context, next) {
    if (!specifier.startsWith("/static/")) return next(specifier, context);
    const url = new URL(specifier.slice("/static/".length), STATIC).href;
    return { url, format: "module", shortCircuit: true };
  },
});

class Observer {
  observe() {}
}

Object.assign(globalThis, {
  IntersectionObserver: Observer,
  ResizeObserver: Observer,
  document: { hidden: false, addEventListener() {}, createElement: () => ({ getContext: () => ({}) }) },
  addEventListener() {},
  matchMedia: () => ({ addEventListener() {} }),
});
