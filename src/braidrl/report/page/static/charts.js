// Curves over steps with a shared cursor.

import { h, brief } from "braid/dom.js";
import { colour } from "braid/theme.js";

const SERIES = 8;
const HEIGHT = 190;
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
const open = new Set();
let width = 420;

// Returns an element. series: [{ label, x: [step], y: [value], colour: name or null }], options: { log, points }
export function chart(title, hint, series, options = {}) {
  const box = h("figure", { class: "chart", "data-title": title });
  box.append(h("figcaption", {}, h("b", {}, title), h("span", { class: "hint" }, hint ?? "")));
  const frame = h("div");
  box.append(frame);
  const drawn = { box, frame, series, options, plot: null };
  open.add(drawn);
  watcher.observe(box);
  return box;
}

const watcher = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const drawn = [...open].find((each) => each.box === target);
    if (!drawn || !contentRect.width) continue;
    width = contentRect.width;
    if (drawn.plot) drawn.plot.setSize({ width, height: HEIGHT });
    else draw(drawn);
  }
});

function draw(drawn) {
  drawn.plot?.destroy();
  const { series, options } = drawn;
  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const taken = new Set();
  const given = new Set(series.map((each) => each.colour));
  const names = Array.from({ length: SERIES }, (_, number) => `s${number}`).filter((name) => !given.has(name));
  let next = 0;
  const free = () => names[next++ % names.length] ?? "muted";
  const spans = series.map((each, number) => ({
    label: each.label,
    stroke: colour(each.colour && !taken.has(each.colour) ? (taken.add(each.colour), each.colour) : free()),
    width: 1.75,
    dash: number >= SERIES ? [6, 4] : undefined,
    spanGaps: true,
    points: { show: options.points ?? each.x.length < 3, size: 6 },
    value: latest,
  }));
  const config = {
    width,
    height: HEIGHT,
    cursor: { sync: { key: "steps" }, points: { size: 7 } },
    scales: { x: { time: false, range: wide }, y: options.log ? { distr: 3 } : { range: tall } },
    axes: [
      { ...axis, size: 26, incrs: WHOLE },
      { ...axis, size: 56, values: (_, all) => all.map((value) => (value === null ? "" : brief(value))) },
    ],
    legend: { live: true },
    series: [{ label: "step", value: latest }, ...spans],
  };
  drawn.plot = new uPlot(config, joined(series, options.log), drawn.frame);
}

// Value under the cursor, or the last value without a cursor.
function latest(plot, value, number, index) {
  if (index !== null && index !== undefined) return brief(value, 4);
  return brief(plot.data[number].findLast((each) => each !== null), 4);
}

// A single step needs a range around it.
const wide = (_, least, most) => (least === most ? [least - 1, most + 1] : [least, most]);

const tall = (_, least, most) => {
  if (least === null) return [0, 1];
  const room = least === most ? Math.abs(least) / 2 || 1 : (most - least) * 0.06;
  return [least >= 0 && least < room ? 0 : least - room, most + room];
};

// Aligns the series on one axis of steps. On a log scale, values of 0 and below are dropped.
function joined(series, log) {
  const steps = [...new Set(series.flatMap((each) => each.x))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, number) => [step, number]));
  const columns = series.map((each) => {
    const column = Array(steps.length).fill(null);
    each.x.forEach((step, number) => {
      const value = each.y[number];
      column[place.get(step)] = log && !(value > 0) ? null : value;
    });
    return column;
  });
  return [steps, ...columns];
}

export function redraw() {
  for (const drawn of open) if (drawn.plot) draw(drawn);
}

export function close() {
  for (const drawn of open) drawn.plot?.destroy();
  open.clear();
  watcher.disconnect();
}
