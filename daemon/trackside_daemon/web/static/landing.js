// The token comes in the address's fragment, which is sent to no server, and is kept for this tab alone.
const fragment = new URLSearchParams(location.hash.slice(1)).get("token");
if (fragment) {
  sessionStorage.setItem("token", fragment);
  history.replaceState(null, "", location.pathname);
}
const token = sessionStorage.getItem("token");
const notice = document.querySelector("#notice");
const table = document.querySelector("table");

async function ask(path) {
  const answer = await fetch(`/api/v1/${path}`, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error.message);
  return body;
}

function cell(row, text, name) {
  const made = row.insertCell();
  made.textContent = text;
  if (name) made.className = name;
}

function number(value, digits) {
  return typeof value === "number" ? value.toFixed(digits) : value ?? "";
}

function ago(seconds) {
  if (seconds === undefined) return "";
  const age = Math.max(0, Date.now() / 1000 - seconds);
  return age < 120 ? `${age.toFixed(0)} s ago` : `${(age / 60).toFixed(0)} min ago`;
}

function show(runs) {
  const body = table.tBodies[0];
  body.replaceChildren();
  for (const run of runs) {
    for (const rank of run.ranks) {
      const state = rank.state ?? run.state;
      const row = body.insertRow();
      cell(row, run.name);
      cell(row, rank.rank);
      cell(row, state, state);
      cell(row, number(rank.step, 0), "number");
      cell(row, number(rank.loss, 4), "number");
      cell(row, rank.progress === undefined ? "" : `${(100 * rank.progress).toFixed(1)} %`, "number");
      cell(row, ago(rank.last_step), "number");
    }
  }
  table.hidden = runs.length === 0;
  notice.textContent = runs.length ? "" : "None yet. Add trackside.push(step=step, loss=loss) to a training loop.";
}

async function refresh() {
  try {
    show((await ask("runs")).runs);
  } catch (problem) {
    table.hidden = true;
    notice.textContent = problem.message;
  }
}

refresh();
setInterval(refresh, 1000);
ask("status").then((status) => { document.querySelector("#version").textContent = `Version ${status.version}.`; }, () => {});
