// What the dashboard's modules pass to each other. The OpenAPI document does not state what answers contain, so these are
// written by hand; answers.ts checks those of the API against the answers that tests/behavior has recorded.

/// <reference types="uplot" />

// JSON has no NaN and no infinities: the API writes them as texts.
type Real = number | "nan" | "inf" | "-inf";

type State = "starting" | "running" | "stalled" | "finished" | "stopped" | "failed" | "lost";
type Severity = "info" | "warning" | "critical";

interface Attempt {
  attempt: number;
  state: State;
  started: number;
  ended: number | null;
  cause?: string;
  rank?: number;
  world_size?: number;
  host?: string;
  config: Record<string, any>;
  total_steps?: number;
  phases?: Record<string, Record<string, number>>;
  step_seconds?: Record<string, number>;
  lost?: Record<string, Record<string, number>>;
  [fact: string]: any;
}

// The values of a key at one rank of an attempt.
interface Metric {
  key: string;
  attempt: number;
  rank: number;
  count: number;
  nonfinite: number;
  first_step: number | null;
  first_time: number;
  last: Real;
  last_step: number | null;
  last_time: number;
  min: Real | null;
  max: Real | null;
  mean: Real | null;
  std: Real | null;
}

// A run as the list has it.
interface ListedRun {
  id: string;
  name: string;
  state: State;
  cause: string;
  started: number;
  ended: number | null;
  attempt: number;
  step?: number | null;
  loss?: Real | null;
  tags: string[];
  pinned: boolean;
  user?: string;
  summary: Record<string, any>;
  notes: string;
  config?: Record<string, any>;
  metrics?: any;
}

// A run's document.
interface Run extends ListedRun {
  verdict?: string;
  attempt_list: Attempt[];
  metrics: Metric[];
  trimmed: boolean;
  series: number;
  resumes: any[];
  model: any;
  reinforcement: { quantities: Record<string, { key: string; factor: number }>; roles: Record<string, number> } | null;
  goodput?: number;
  mfu?: number;
  lost?: Record<string, number>;
}

// [step, time, lowest, highest, last], and what the dashboard appends: nonfinite, mean, and the step, if an axis replaces it.
type Point = any[];

interface Series {
  key: string;
  attempt: number;
  points: Point[];
  run?: string;
  rank?: number;
  ranks?: number;
  samples?: number;
  unit?: number;
  trimmed?: boolean;
  nonfinite?: number[];
  means?: Real[];
}

interface RunEvent {
  run: string;
  name: string;
  attempt: number;
  rank: number | null;
  time: number;
  step: number | null;
  kind: string;
  fields: Record<string, any>;
}

interface Alert {
  id: number;
  run: string | null;
  name: string | null;
  alert: string;
  severity: Severity;
  started: number;
  ended: number | null;
  summary: string;
  description: string;
  labels: Record<string, string>;
  fingerprint: string;
  evidence?: any;
  notified: any[];
  dismissed: { time: number; comment: string } | null;
  silenced_until: number | null;
}

// A live run, as the overview has it.
interface LiveRun {
  id: string;
  name: string;
  state: State;
  attempt: number;
  started: number;
  alerts: Record<Severity, number>;
  sparkline: Real[];
  verdict: string;
  user?: string;
  world_size?: number;
  step: number | null;
  total_steps: number | null;
  progress_ratio: number | null;
  remaining_seconds: number | null;
  step_seconds: number | null;
  tokens_per_second: number | null;
  samples_per_second: number | null;
  loss: Real | null;
  last_step_time: number | null;
}

interface Gpu {
  gpu: string;
  ranks: { run: string; rank: number; [fact: string]: any }[];
  [fact: string]: any;
}

// What the stream brings every second.
interface Overview {
  time: number;
  version: string;
  host: { name?: string; disks: any[]; [fact: string]: any };
  gpus: Gpu[];
  ray: any;
  runs: LiveRun[];
  alerts: {
    id: number;
    alert: string;
    severity: Severity;
    run: string | null;
    name: string | null;
    summary: string;
    started: number;
    silenced: boolean;
    rank?: number | null;
    key?: string | null;
  }[];
}

// The newest values of a run: by key and rank, [step, time, value].
interface NewestValues {
  state: State;
  step: number | null;
  time: number;
  values: Record<string, Record<string, [number | null, number, Real]>>;
}

// The address of the shown page: `set` changes its query without opening the page again.
interface Address {
  path: string;
  parts: string[];
  query: URLSearchParams;
  set(changes: Record<string, any>): void;
  signal: AbortSignal;
}

interface Page {
  root?: HTMLElement;
  title?: string;
  run?: string;
  update?(overview: Overview): void;
  updateRun?(newest: NewestValues): void;
  close?(): void;
}

type AxisName = string; // step, time, relative, or a quantity in place of the steps.
// How the charts of a run are arranged; see run/workspace.js.
interface Arrangement {
  pinned: string[];
  order: string[];
  full: string[];
  hidden: string[];
  own: Record<string, OwnSettings>;
  columns: number;
  closed: string[];
  opened: string[];
}

type RunWorkspace = import("/static/run/workspace.js").Workspace;
interface Smoothing {
  kind: string;
  span: number;
}

// An event or an alert on a chart.
interface Mark {
  band?: number; // The color of a ribbon from its time until its end.
  kind: string;
  time: number;
  text: string;
  step?: number | null;
  until?: number;
  severity?: Severity;
  alert?: boolean;
  note?: string; // Of an annotation, whose text it is.
  x?: number; // Its place on the axis.
}

interface Line {
  label: string;
  index: number;
  points: Point[];
  start?: number; // When its run began.
  right?: boolean; // Whether its values have the axis at the right.
  around?: Point[]; // Points beyond the window, for smoothing.
}

// The points of a line by column; see charts/lines.js.
interface Columns {
  x: number[];
  mean: (number | null)[];
  low: (number | null)[];
  high: (number | null)[];
  nonfinite: number[];
  raw: any[];
  steps: number[];
  times: number[];
  stack?: number[];
}

interface ChartRequest {
  by: AxisName;
  from: number;
  to: number;
  points: number;
  signal: AbortSignal;
  isReload?: boolean; // Whether the chart reloads by itself.
}

// The settings of one chart in place of the page's.
interface OwnSettings {
  formula?: string;
  log?: boolean;
  robust?: boolean;
  second?: string; // Another key in the same chart; empty for none.
  low?: number;
  high?: number;
}

// What a chart shows, and how: the settings that can change while it is open.
interface View extends OwnSettings {
  by: AxisName;
  format(value: any, digits?: number): string;
  window(): [number, number];
  bounds?(): number[]; // Positions that the axis contains while it shows everything.
  drawn: { line: Line; columns: Columns; smoothed?: number[] }[];
  marks: Mark[];
  height: number;
  width: number;
  smooth?: Smoothing;
  of?: string; // The run that a picture names.
  unit?: string; // Of the values.
  byTitle?: string;
  axisTitle?: string;
  axis?: { name: string; splits: number[]; label(x: number): string }; // Other quantities than steps and times.
  origin?: number; // The time that is zero on a relative axis.
  range?: number[]; // The least range of the values.
  binary?: boolean; // Ticks at powers of two.
  sync?: string; // Charts with the same share their cursor.
  reduceHint?: string; // How to select fewer lines.
  sharedLegend?: boolean; // The page has the legend.
  turn?: string; // The second line is an evaluation, of which less or more is better.
  stacked?: boolean; // Lines lie on top of each other.
}

interface ChartOptions extends Partial<Omit<View, "drawn" | "marks" | "width" | "window">> {
  title: string;
  load(request: ChartRequest): Promise<Line[]>; // Labels are distinct.
  marks?: Mark[];
  own?: OwnSettings;
  from?: number;
  to?: number;
  onZoom?(from?: number, to?: number): void;
  onNote?(place: { step?: number | null; time: number; note?: string }): void; // The user annotates a point.
  onOwn?(own: OwnSettings): void; // Called when the user changes settings of this chart alone.
}

// How a map of layers is drawn: its colors around zero or rising, the layer that is marked, and the texts of its axis.
interface MapLook {
  around?: boolean;
  linear?: boolean;
  range?: number[]; // The least range of its values.
  chosen?: string;
  label?(place: number): string;
}

// What the charts of a run show; see run/workspace.js.
interface RunSelection {
  by: AxisName;
  smooth?: Smoothing;
  log: boolean;
  robust: boolean;
  ranks: string;
  attempt?: number;
  filter: string;
  hide: string[]; // Kinds of marks.
  from?: number;
  to?: number;
  root: HTMLElement;
  tools: HTMLElement;
  marks: HTMLElement; // The legend of the marks.
  zoom(from?: number, to?: number): void;
  update(run: Pick<Run, "attempt_list"> & { metrics: Pick<Metric, "key" | "rank" | "last_step">[] }): void;
  updateMarks(marks: Mark[]): void;
}

// What the modules put on elements: their rows (dom.js), what they show (components.js), and the chart of a figure.
interface Element {
  rowsByKey?: Map<any, HTMLElement>;
  madeOf?: string;
  update?(...values: any[]): void;
  onVisibility?(visible: boolean): void;
  onResize?(): void;
  chart?: import("/static/charts/chart.js").Chart;
  pin?: HTMLElement;
  moveBy?(count: number): void;
}
