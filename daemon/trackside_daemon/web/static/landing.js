// The token comes in the address's fragment, which is sent to no server, and is kept for this tab alone.
function takeToken() {
  const fragment = new URLSearchParams(location.hash.slice(1)).get("token");
  if (fragment) {
    sessionStorage.setItem("token", fragment);
    history.replaceState(null, "", location.pathname);
  }
}

const notice = document.querySelector("#notice");
const table = document.querySelector("table");

// Whether the daemon wants the token. Where it wants a password the browser has to ask in its own way.
let wanted = false;

async function ask(path) {
  const token = wanted ? sessionStorage.getItem("token") : null;
  // Not relative: the page's own address may hold a password, and none such can be fetched.
  const answer = await fetch(`${location.origin}/api/v1/${path}`, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  const body = await answer.json();
  if (!token && body.error?.reason === "token" && sessionStorage.getItem("token")) {
    wanted = true;
    return ask(path);
  }
  if (!answer.ok) throw Object.assign(new Error(body.error.message), body.error);
  return body;
}

function cell(row, text, name) {
  const made = row.insertCell();
  made.textContent = text;
  if (name) made.className = name;
}

function loss(row, value) {
  if (typeof value === "number") cell(row, value.toPrecision(5), "number");
  else cell(row, value ?? "", "number nonfinite");
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
    for (const rank of run.ranks.length ? run.ranks : [{ step: run.step ?? undefined, loss: run.loss, last_step: run.ended ?? undefined }]) {
      const state = rank.state ?? run.state;
      const row = body.insertRow();
      cell(row, run.name, "name");
      cell(row, rank.rank ?? "");
      cell(row, state, state);
      cell(row, rank.step?.toFixed(0) ?? "", "number");
      loss(row, rank.loss);
      cell(row, rank.progress === undefined ? "" : `${(100 * rank.progress).toFixed(1)} %`, "number progress");
      cell(row, ago(rank.last_step), "number");
    }
  }
  table.hidden = runs.length === 0;
  notice.textContent = runs.length ? "" : "None yet. Add trackside.push(step=step, loss=loss) to a training loop.";
}

function explain(problem) {
  table.hidden = true;
  if (problem.reason === "token") {
    notice.textContent = `To see the runs, open ${location.origin}/#token=TOKEN. The daemon says: ${problem.message}.`;
  } else {
    notice.textContent = problem instanceof TypeError ? "The daemon does not answer." : problem.message;
  }
}

async function refresh() {
  try {
    show((await ask("runs?limit=20")).runs);
  } catch (problem) {
    explain(problem);
  }
}

function begin() {
  takeToken();
  refresh();
  ask("status").then((status) => { document.querySelector("#version").textContent = `Version ${status.version}.`; }, () => {});
}

addEventListener("hashchange", begin);
setInterval(refresh, 1000);
begin();
