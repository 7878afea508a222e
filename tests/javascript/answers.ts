// Checks the types of the API's answers against the answers that tests/behavior has recorded. Only the compiler reads this file.

import alerts from "../behavior/recorded/api/alerts.json";
import events from "../behavior/recorded/api/events.json";
import overview from "../behavior/recorded/api/overview.json";
import run from "../behavior/recorded/api/runs/baseline.json";
import resumed from "../behavior/recorded/api/runs/resumed.json";
import rl from "../behavior/recorded/api/runs/rl.json";
import runs from "../behavior/recorded/api/runs.json";
import series from "../behavior/recorded/api/series.json";

// Texts of a JSON file are of the type string; a name, as of a state, is more exact.
type Loose<T> = T extends string ? string : T extends object ? { [Key in keyof T]: Loose<T[Key]> } : T;

run["GET /runs/baseline"] satisfies Loose<Run>;
resumed["GET /runs/resumed"] satisfies Loose<Run>;
rl["GET /runs/rl"] satisfies Loose<Run>;
overview["GET /overview"] satisfies Loose<Overview>;
runs["GET /runs"].runs satisfies Loose<ListedRun[]>;
series["GET /series?run=baseline&run=slow-loader&key=loss&points=5"].series satisfies Loose<Series[]>;
events["GET /events?limit=5"].events satisfies Loose<RunEvent[]>;
alerts["GET /alerts?evidence=false"].alerts satisfies Loose<Alert[]>;
