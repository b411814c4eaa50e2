// Who holds what: a disc for each client and class, its area the number of training samples.

function holdsPlot(holding, width) {
  const { classes, counts } = holding;
  const most = Math.max(1, ...counts.map((row) => Math.max(...row)));
  const named = classes.length <= 30;
  const left = named ? Math.min(120, 14 + Math.max(...classes.map(textWidth))) : 46;
  const wide = Math.max(7, Math.min(34, (width - left - 12) / counts.length));
  const high = Math.max(5, Math.min(wide, 26, 900 / classes.length));
  const radius = Math.min(wide, high) * 0.52;
  const right = left + wide * counts.length;
  const bottom = 8 + high * classes.length;
  const [w, h] = [Math.max(width, Math.ceil(right + 10)), Math.ceil(bottom + 40)];
  const x = (client) => left + wide * (client + 0.5);
  const y = (label) => bottom - high * (label + 0.5);
  const label = `${holding.name}. ${holding.text}`;
  const picture = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": label });
  picture.style.width = `${w}px`;
  const every = Math.ceil(14 / high);
  classes.forEach((name, c) => {
    if (c % every) return;
    picture.append(svg("path", { class: "gridline", d: `M${left} ${fixed(y(c))}H${fixed(right)}` }));
    const text = shortened(named ? name : String(c), left - 14);
    picture.append(svg("text", { x: left - 10, y: fixed(y(c) + 4), "text-anchor": "end" }, text));
  });
  const step = [1, 2, 5, 10, 20, 50].find((s) => s * wide >= 24);
  for (let k = 0; k < counts.length; k += step) {
    picture.append(svg("text", { x: fixed(x(k)), y: bottom + 18, "text-anchor": "middle" }, String(k)));
  }
  picture.append(svg("text", { x: fixed(right), y: bottom + 34, "text-anchor": "end" }, "client →"));
  let d = ""; // one path for all discs: ten thousand elements would be slow
  counts.forEach((row, k) => row.forEach((n, c) => {
    if (!n) return;
    d += circle(x(k), y(c), Math.max(0.7, fixed(radius * Math.sqrt(n / most))));
  }));
  picture.append(svg("path", { class: "disc", d }));
  const plot = html("div", { class: "plot" }, picture);
  const say = html("p", { class: "hint", role: "status" }, aboutDiscs(holding, most));
  picture.addEventListener("pointermove", (event) => {
    const bounds = picture.getBoundingClientRect();
    const k = Math.floor((((event.clientX - bounds.left) / bounds.width) * w - left) / wide);
    const c = Math.floor((bottom - ((event.clientY - bounds.top) / bounds.height) * h) / high);
    const n = counts[k]?.[c];
    say.textContent = n === undefined ? aboutDiscs(holding, most) : aboutDisc(holding, k, c);
  });
  picture.addEventListener("pointerleave", () => { say.textContent = aboutDiscs(holding, most); });
  return [plot, say];
}

function aboutDiscs(holding, most) {
  const drawn = holding.counts.length;
  const rest = holding.clients > drawn ? ` The first ${drawn} of ${holding.clients} clients.` : "";
  return `The largest disc: ${most.toLocaleString("en")} samples. Point at a place for its number.${rest}`;
}

function aboutDisc({ classes, counts }, k, c) {
  const total = counts[k].reduce((a, b) => a + b, 0);
  const share = total ? ` (${Math.round((100 * counts[k][c]) / total)} % of its ${total.toLocaleString("en")})` : "";
  return `Client ${k}, class ${classes[c]}: ${counts[k][c].toLocaleString("en")} samples${share}`;
}
