// What is shown: which methods or settings are compared, which lines are hidden, and when it is drawn again.

let data = JSON.parse(document.getElementById("data").textContent);
const view = document.getElementById("view");
const hidden = new Set(); // names of lines
const PRINT = { wide: 680, narrow: 325 }; // widths on paper
let printing = false;

// The lines of the chosen view. The last one, in the paper's order FedETF or one's own method, has the solid line.
function lines() {
  const [kind, index] = view.value.split(":");
  const names = kind === "setting" ? data.variants : data.settings;
  const rivals = names.filter((name) => !data.references.includes(name));
  const mine = kind === "setting" ? 0 : 1; // place of a line's own number in curve.at
  return names.map((name, i) => ({
    name,
    style: data.references.includes(name) ? referenceStyle(data.references.indexOf(name))
      : styleOf(rivals.length - 1 - rivals.indexOf(name)),
    curveIn: (chart) => chart.curves.find(({ at }) => at[mine] === i && at[1 - mine] === Number(index)),
  }));
}

function drawChart(figure, all) {
  const width = printing ? PRINT[figure.classList.contains("wide") ? "wide" : "narrow"] : figure.clientWidth;
  if (!width) return; // folded away: drawn when it is opened
  const chart = data.charts[figure.dataset.chart];
  const series = all
    .map((line) => ({ ...line, curve: line.curveIn(chart) }))
    .filter((line) => line.curve && !hidden.has(line.name));
  figure.querySelectorAll(".plot, .nothing").forEach((old) => old.remove());
  const title = figure.querySelector("h3").textContent;
  const nothing = html("p", { class: "note nothing" }, "No line to show here.");
  figure.append(series.length ? linePlot(series, chart, width, title) : nothing);
}

function drawHolding() {
  const figure = document.getElementById("holds");
  const holding = data.holdings[Number(document.getElementById("holding").value)];
  if (!holding) return; // no run yet
  figure.querySelectorAll(".plot, .hint").forEach((old) => old.remove());
  figure.hidden = !holding.counts.length; // real sites do not tell
  if (!figure.hidden) figure.append(...holdsPlot(holding, printing ? PRINT.wide : figure.clientWidth));
  document.querySelector(".described").textContent = holding.text;
}

function drawToggles(all) {
  const charts = Object.values(data.charts);
  const buttons = all.filter((line) => charts.some(line.curveIn)).map((line) => {
    const button = html("button", { type: "button" }, sample(line.style), line.name);
    const press = () => button.setAttribute("aria-pressed", String(!hidden.has(line.name)));
    button.addEventListener("click", () => {
      if (!hidden.delete(line.name)) hidden.add(line.name);
      press();
      drawCharts();
    });
    press();
    return button;
  });
  document.getElementById("toggles").replaceChildren(...buttons);
}

function drawCharts() {
  markWide();
  const all = lines();
  document.querySelectorAll("figure[data-chart]").forEach((figure) => drawChart(figure, all));
}

function markWide() { // tables that are wider than the page say so
  document.querySelectorAll(".scroll").forEach((box) => {
    box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
  });
}

function drawAll() {
  drawCharts();
  drawHolding();
}

function print(begins) {
  printing = begins;
  document.querySelectorAll("details").forEach((fold) => {
    if (begins) fold.dataset.was = String(fold.open);
    fold.open = begins || fold.dataset.was === "true";
  });
  drawAll();
}

function refresh() {
  view.closest("label").hidden = view.options.length < 2;
  document.getElementById("holding").closest("label").hidden = data.holdings.length < 2;
  drawToggles(lines());
  drawAll();
}

document.documentElement.classList.add("js");
refresh();
// Heard by the document, since a live page replaces its parts.
document.addEventListener("change", ({ target }) => {
  if (target.id === "holding") drawHolding();
  if (target !== view) return;
  hidden.clear();
  drawToggles(lines());
  drawCharts();
});
document.addEventListener("toggle", drawCharts, true); // of any details: it does not bubble
window.addEventListener("beforeprint", () => print(true));
window.addEventListener("afterprint", () => print(false));
let lastWidth = document.documentElement.clientWidth;
window.addEventListener("resize", () => {
  if (document.documentElement.clientWidth === lastWidth) return; // a phone's address bar only
  lastWidth = document.documentElement.clientWidth;
  drawAll();
});
