// The control of smoothing: its kind and its span in steps, on a logarithmic slider; kept in the address.

import { oneOf } from "/static/address.js";
import { KINDS } from "/static/charts/smoothing.js";
import { h, setText, choices } from "/static/dom.js";
import { short } from "/static/format.js";

const LEAST_SPAN = 10; // The longest span of a run with few steps.
const SHARE = 0.25; // The longest span as a share of the steps.

// Returns the smoothing that an address has: { kind, span }, or undefined. Spans below 1 are earlier versions' weights.
export function readSmoothing(params) {
  const stated = Number.parseFloat(params.get("smooth"));
  if (!(stated > 0)) return undefined;
  const span = stated < 1 ? 1 / (1 - Math.min(stated, 0.999)) : stated;
  return { kind: oneOf(KINDS, params.get("smoothing"), "ema"), span };
}

export function smoothingQuery(smooth) {
  return { smooth: smooth ? smooth.span : "", smoothing: smooth && smooth.kind !== "ema" ? smooth.kind : "" };
}

// Returns the control { root, update(steps) }, where `steps` is the length of the longest run.
export function smoothingControl(initial, onChange) {
  let longest = LEAST_SPAN;
  let span = initial?.span ?? 0;
  let frame;
  const text = h("output.run-value");
  const kinds = choices(KINDS, initial?.kind);
  const kind = h("select", { "aria-label": "Kind of smoothing", onchange: () => send() }, kinds);
  const slider = h("input", { type: "range", min: 0, max: 100, step: 1, value: 0, oninput: () => moved() });

  function send() {
    frame = undefined;
    onChange(span ? { kind: kind.value, span } : undefined);
  }

  function moved() {
    span = slider.valueAsNumber ? Number((longest ** (slider.valueAsNumber / 100)).toPrecision(2)) : 0;
    show();
    frame ??= requestAnimationFrame(send);
  }

  function show() {
    setText(text, span ? `${short(span)} steps` : "off");
    kind.hidden = !span;
    slider.setAttribute("aria-valuetext", text.textContent);
  }

  function update(steps) {
    longest = Math.max(LEAST_SPAN, SHARE * (steps || 0), span);
    if (document.activeElement !== slider)
      slider.value = span ? Math.max(1, (100 * Math.log(span)) / Math.log(longest)) : 0;
  }

  show();
  update(0);
  return { root: h("span.smoothing", {}, h("label", {}, "Smoothing", slider, text), kind), update };
}
