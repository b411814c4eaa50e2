"use strict";
// Line charts as inline SVG. Colours come from the style sheet, so that dark mode and print need no redrawing.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 6;
const DASHES = ["", "7 3", "2 2.5", "9 3 2 3", "14 4"];
const SHAPES = [ // corners around the origin, for a radius of 1
  null, // a circle
  [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
  [[0, -1.3], [1.1, 0], [0, 1.3], [-1.1, 0]],
  [[0, 1.2], [1.1, -0.8], [-1.1, -0.8]],
  [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4], [0.4, 1.2], [-0.4, 1.2], [-0.4, 0.4],
    [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]],
  [[-1.1, -1.1], [1.1, -1.1], [-1.1, 1.1], [1.1, 1.1]],
  [[0, -1.4], [0.4, -0.4], [1.4, -0.3], [0.6, 0.4], [0.9, 1.3], [0, 0.7], [-0.9, 1.3], [-0.6, 0.4], [-1.4, -0.3],
    [-0.4, -0.4]],
  [[1.2, 0], [-0.8, 1.1], [-0.8, -1.1]],
  [[-1.2, 0], [0.8, 1.1], [0.8, -1.1]],
];

function make(space, name, attributes, children) {
  const element = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children); // strings become text, never markup
  return element;
}
const svg = (name, attributes = {}, ...children) => make(SVG, name, attributes, children);
const html = (name, attributes = {}, ...children) => make(null, name, attributes, children);

// No two of the first thirty series share colour and dashes, and no two of the first ten a shape.
const styleOf = (i) => ({ colour: `k${i % COLOURS}`, dash: DASHES[i % DASHES.length], shape: i % SHAPES.length });

// Floor and ceiling: grey and dotted, apart from whoever is compared.
const referenceStyle = (i) => ({ colour: "reference-line", dash: i % 2 ? "1 3" : "5 5", shape: 8 + (i % 2) });

const circle = (x, y, r) => `M${fixed(x - r)} ${fixed(y)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;

function marker(style, x, y, r = 3.6) {
  const corners = SHAPES[style.shape];
  const d = corners
    ? `M${corners.map(([a, b]) => `${fixed(x + r * a)} ${fixed(y + r * b)}`).join("L")}Z`
    : circle(x, y, r);
  return svg("path", { class: "mark", d });
}

function sample(style) { // a line as buttons and tooltips show it
  return svg("svg", { class: style.colour, width: 28, height: 12, viewBox: "0 0 28 12", "aria-hidden": "true" },
    svg("path", { class: "line", d: "M0 6H28", "stroke-dasharray": style.dash }), marker(style, 14, 6));
}

const extent = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
const fixed = (value) => Math.round(value * 100) / 100;

// About so many round values; at least two, since one alone says nothing of the scale.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10].map((m) => m * power);
  let at = steps.findIndex((s) => s >= rough * 0.999);
  const between = (step) => Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1;
  while (at > 0 && between(steps[at]) < 2) at--;
  const step = steps[at];
  const values = Array.from({ length: between(step) }, (_, i) => (Math.ceil(low / step - 1e-9) + i) * step);
  return { values, digits: Math.max(0, Math.min(8, -Math.floor(Math.log10(step) + 1e-9))) };
}

function shown(value, percent) {
  if (percent) return `${(100 * value).toFixed(1)} %`;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2);
  return size >= 100 ? value.toFixed(1) : size >= 10 ? value.toFixed(2) : value.toFixed(4);
}

let ruler; // measures text without touching the page
function textWidth(text) {
  ruler ??= document.createElement("canvas").getContext("2d");
  ruler.font = "600 12px system-ui, sans-serif";
  return ruler.measureText(text).width;
}

function shortened(text, room) {
  if (textWidth(text) <= room) return text;
  let end = text.length - 1;
  while (end > 1 && textWidth(`${text.slice(0, end)}…`) > room) end--;
  return `${text.slice(0, end)}…`;
}

// Moves labels apart so that none covers another; they keep their order.
function spreadOut(labels, gap, top, bottom) {
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((label, i) => { label.at = Math.max(label.y, i ? labels[i - 1].at + gap : top); });
  for (let i = labels.length - 1; i >= 0; i--) {
    labels[i].at = Math.min(labels[i].at, i === labels.length - 1 ? bottom : labels[i + 1].at - gap);
  }
}

// series: [{name, style, curve: {x, mean, low?, high?, seeds}}]; returns the plot, an element of that width.
function linePlot(series, chart, width, title) {
  const height = Math.round(Math.min(Math.max(width * 0.52, 230), 420));
  const room = Math.min(Math.max(...series.map((s) => textWidth(s.name)), 20), width * 0.26);
  const box = { left: 50, right: width - room - 20, top: 10, bottom: height - 40 };
  const scale = scales(series, chart, box);
  const ends = series.map((s) => `${s.name} ends at ${shown(s.curve.mean.at(-1), chart.percent)}`);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: 0,
    "aria-label": `${title}: ${ends.join("; ")}` });
  picture.append(...axes(scale, chart, box));
  const labels = series.map((s) => ({ s, y: scale.y(s.curve.mean.at(-1)), x: scale.x(s.curve.x.at(-1)) }));
  spreadOut(labels, 14, box.top + 4, box.bottom);
  for (const s of series) picture.append(bandAndLine(s, scale));
  for (const { s, x, y, at } of labels) {
    const d = `M${fixed(x + 5)} ${fixed(y)}L${fixed(box.right + 10)} ${fixed(at)}`;
    picture.append(svg("g", { class: s.style.colour },
      svg("path", { class: "leader", fill: "none", d }),
      svg("text", { class: "label", x: fixed(box.right + 14), y: fixed(at + 4) }, shortened(s.name, room))));
  }
  const plot = html("div", { class: "plot" }, picture);
  addCursor(plot, picture, series, chart, scale, box, width);
  return plot;
}

function scales(series, chart, box) {
  const xs = series.flatMap((s) => s.curve.x);
  const ys = series.flatMap(({ curve }) => [...curve.mean, ...(curve.low ?? []), ...(curve.high ?? [])]);
  let [[x0, x1], [y0, y1]] = [extent(xs), extent(ys)];
  if (x0 === x1) { x0 -= 1; x1 += 1; }
  const pad = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1;
  const bounded = chart.percent || (y0 >= 0 && y1 <= 1); // accuracies and consistencies: no room beyond what can be
  y0 = y0 >= 0 ? Math.max(0, y0 - pad) : y0 - pad;
  y1 = bounded && y1 <= 1 ? Math.min(1, y1 + pad) : y1 + pad;
  return {
    x0, x1, y0, y1,
    x: (value) => box.left + ((value - x0) / (x1 - x0)) * (box.right - box.left),
    y: (value) => box.bottom - ((value - y0) / (y1 - y0)) * (box.bottom - box.top),
  };
}

function axes(scale, chart, box) {
  const parts = [];
  const factor = chart.percent ? 100 : 1;
  const up = ticks(scale.y0 * factor, scale.y1 * factor, (box.bottom - box.top) / 48);
  for (const value of up.values) {
    const y = fixed(scale.y(value / factor));
    parts.push(svg("path", { class: "gridline", d: `M${box.left} ${y}H${box.right}` }));
    const label = value.toFixed(up.digits) + (chart.percent ? " %" : "");
    parts.push(svg("text", { x: box.left - 8, y: y + 4, "text-anchor": "end" }, label));
  }
  const along = ticks(scale.x0, scale.x1, (box.right - box.left) / 70);
  const places = chart.cost ? along.values : along.values.filter(Number.isInteger);
  for (const value of places) {
    const label = value.toFixed(chart.cost ? along.digits : 0);
    parts.push(svg("text", { x: fixed(scale.x(value)), y: box.bottom + 18, "text-anchor": "middle" }, label));
  }
  parts.push(svg("path", { class: "axis", d: `M${box.left} ${box.bottom}H${box.right}` }));
  parts.push(svg("text", { x: box.right, y: box.bottom + 34, "text-anchor": "end" }, `${chart.x} →`));
  return parts;
}

function bandAndLine({ name, style, curve }, scale) {
  const points = (values) => curve.x.map((x, i) => `${fixed(scale.x(x))} ${fixed(scale.y(values[i]))}`);
  const group = svg("g", { class: `series ${style.colour}`, "data-name": name });
  if (curve.low) {
    const around = [...points(curve.low), ...points(curve.high).reverse()];
    group.append(svg("path", { class: "band", d: `M${around.join("L")}Z` }));
  }
  group.append(svg("path", { class: "line", d: `M${points(curve.mean).join("L")}`, "stroke-dasharray": style.dash }));
  const last = curve.x.length - 1;
  const step = Math.max(1, Math.ceil(curve.x.length / 9));
  for (let i = last; i >= 0; i -= step) group.append(marker(style, scale.x(curve.x[i]), scale.y(curve.mean[i])));
  return group;
}

// The values at one round, by pointer, finger or arrow keys.
function addCursor(plot, picture, series, chart, scale, box, width) {
  const rounds = [...new Set(series.flatMap((s) => s.curve.x))].sort((a, b) => a - b);
  const line = svg("path", { class: "cursor", visibility: "hidden" });
  const tip = html("div", { class: "tip", hidden: "", role: "status" });
  picture.append(line);
  plot.append(tip);
  let at = rounds.length - 1;
  const show = (index) => {
    at = Math.max(0, Math.min(rounds.length - 1, index));
    const x = scale.x(rounds[at]);
    line.setAttribute("d", `M${fixed(x)} ${box.top}V${box.bottom}`);
    line.setAttribute("visibility", "visible");
    const where = chart.cost ? `${rounds[at]} ${chart.x}` : `${chart.x} ${rounds[at]}`;
    tip.replaceChildren(html("b", {}, where), valuesAt(series, rounds[at], chart));
    tip.hidden = false;
    const ratio = picture.clientWidth / width || 1;
    const [right, left] = [x * ratio + 14, x * ratio - 14 - tip.offsetWidth];
    const fits = right + tip.offsetWidth <= plot.clientWidth;
    tip.style.left = `${fits ? right : Math.max(0, left)}px`;
    tip.style.top = `${fits || left >= 0 ? 0 : picture.clientHeight}px`; // below a chart that is too narrow for it
  };
  const hide = () => { line.setAttribute("visibility", "hidden"); tip.hidden = true; };
  const follow = (event) => {
    const bounds = picture.getBoundingClientRect();
    const x = ((event.clientX - bounds.left) / bounds.width) * width;
    const distances = rounds.map((round) => Math.abs(scale.x(round) - x));
    show(distances.indexOf(Math.min(...distances)));
  };
  picture.addEventListener("pointermove", follow);
  picture.addEventListener("pointerdown", follow);
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (step) { show(tip.hidden ? at : at + step); event.preventDefault(); }
  });
}

// Rounds are the same for all lines. What they cost is not: there each line has its last value so far.
function valuesAt(series, round, { percent, cost }) {
  const rows = series
    .map((s) => ({ s, i: cost ? s.curve.x.filter((x) => x <= round).length - 1 : s.curve.x.indexOf(round) }))
    .filter(({ i }) => i >= 0)
    .sort((a, b) => b.s.curve.mean[b.i] - a.s.curve.mean[a.i])
    .map(({ s: { name, style, curve }, i }) => html("tr", {},
      html("td", {}, sample(style)),
      html("td", {}, shortened(name, 170)),
      html("td", {}, shown(curve.mean[i], percent)),
      html("td", {}, curve.low ? `${shown(curve.low[i], percent)} – ${shown(curve.high[i], percent)}` : "")));
  return html("table", {}, ...rows);
}
