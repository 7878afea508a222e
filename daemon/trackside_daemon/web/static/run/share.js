// The dialog that gives a run away: a link with its charts as they are arranged, a report as a file, and Markdown.

import { fetchApi, query, runPath } from "/static/api.js";
import { openDialog } from "/static/confirm.js";
import { downloadReport } from "/static/export/files.js";
import { h, setText } from "/static/dom.js";

const SHOWN_MS = 2500; // The time that a button shows its result.
const LOOPBACK = /^(localhost|127\.|\[::1\])/;

// Returns a button that copies what `text()` resolves to; without the permission, it stands in a field to be copied.
function copyButton(name, text, field) {
  const button = h("button", { onclick: async () => {
    const shown = await text();
    field.value = shown;
    await navigator.clipboard.writeText(shown).then(() => setText(button, "Copied"), () => field.select());
    setTimeout(() => setText(button, name), SHOWN_MS);
  } }, name);
  return button;
}

// Returns how another machine reaches this address: with an SSH tunnel, if it is one of this machine alone.
export function tunnel({ hostname, port }, host) {
  return LOOPBACK.test(hostname) ? `ssh -L ${port}:127.0.0.1:${port} ${host || "HOST"}` : "";
}

// `encode()` returns the arrangement of the charts as the address has it.
export function openShareDialog(/** @type {Run} */ run, encode, host, signal) {
  const address = new URL(location.href);
  address.searchParams.set("view", encode());
  const markdown = async () =>
    (await fetchApi(`${runPath(run.id)}/report/file?${query({ format: "markdown" })}`, { signal })).text();
  const save = async () => {
    await downloadReport(run, { format: "html" }, signal);
    close();
  };
  const field = h("textarea", { rows: 3, readonly: true }, address.href);
  const command = tunnel(location, host);
  const buttons = [copyButton("Copy link", () => address.href, field),
    copyButton("Copy Markdown", markdown, field)];
  const { close } = openDialog("Share", { action: "HTML report", submit: save, content: [
    h("p", {}, "The link shows the charts as you see them. It needs the token of this daemon: ",
      h("code", {}, "trackside token"), "."),
    command ? h("p", {}, "The daemon is reached from its own machine only. From another one, first: ",
      h("code", {}, command)) : "",
    h("p", {}, "The report is one file with curves, configuration and diagnosis, which needs no network."),
    h("label.field", {}, "To copy", field), h("div.tools", {}, buttons)] }, signal);
}
