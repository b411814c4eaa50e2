// Keeps a served page current: the server says when there is a new one, and the parts that differ are put in place.
// Whatever the reader has opened, chosen, hidden or scrolled to stays as it is.

const written = new Map(); // part -> its markup as the server wrote it, before anything was drawn into it
let clock = 0; // how far this device's clock is ahead of the server's, in ms
let current; // the version that is shown

const parts = (page) => [...page.querySelectorAll("[data-part]")];
parts(document).forEach((part) => written.set(part.dataset.part, part.innerHTML));

function take(next) {
  data = JSON.parse(next.getElementById("data").textContent);
  document.title = next.title;
  for (const fresh of parts(next)) {
    const name = fresh.dataset.part;
    if (written.get(name) === fresh.innerHTML) continue;
    replace(document.querySelector(`[data-part="${name}"]`), fresh.innerHTML);
    written.set(name, fresh.innerHTML);
  }
  const focused = document.activeElement.closest?.("[data-chart]"); // its chart is drawn anew
  refresh();
  focused?.querySelector("svg")?.focus({ preventScroll: true });
  tellTimes();
}

function replace(part, markup) {
  const selects = () => (part.matches("select") ? [part] : [...part.querySelectorAll("select")]);
  const chosen = selects().map((select) => select.selectedOptions[0]?.text);
  const open = new Set([...part.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent));
  const scrolled = [...part.querySelectorAll(".scroll")].map((table) => table.scrollLeft);
  part.innerHTML = markup;
  selects().forEach((select, i) => {
    const same = [...select.options].find((option) => option.text === chosen[i]);
    if (same) same.selected = true;
  });
  part.querySelectorAll("details > summary").forEach((summary) => {
    summary.parentElement.open = open.has(summary.textContent);
  });
  part.querySelectorAll(".scroll").forEach((table, i) => { table.scrollLeft = scrolled[i] ?? 0; });
}

// A run without a new round for ten times as long as its rounds take, and a minute at least, may have been stopped.
function tellTimes() {
  document.querySelectorAll("time[data-usual]").forEach((time) => {
    const age = Math.max(0, Math.round((Date.now() - clock - Date.parse(time.dateTime)) / 1000));
    const still = age > Math.max(60, 10 * Number(time.dataset.usual));
    const ago = age < 120 ? `${age} s ago` : age < 7200 ? `${Math.round(age / 60)} min ago` : `${Math.round(age / 3600)} h ago`;
    time.textContent = still ? `${ago}: stopped?` : ago;
    time.classList.toggle("still", still);
  });
}

const state = html("span", { class: "live", role: "status" }, "connecting");
document.querySelector(".eyebrow").append(" ", state);

function say(text, connected) {
  state.textContent = text;
  state.classList.toggle("on", connected);
}

async function hear(event) {
  const { version, now } = JSON.parse(event.data);
  clock = Date.now() - now;
  say("live", true);
  if (version === current) return;
  const answer = await fetch("/", { cache: "no-store" });
  if (!answer.ok) return; // the next word of the server tries again
  take(new DOMParser().parseFromString(await answer.text(), "text/html"));
  current = version;
}

function listen() {
  const server = new EventSource("/events");
  let turn = Promise.resolve(); // one after the other
  server.onmessage = (event) => { turn = turn.then(() => hear(event)).catch(lost); };
  server.onerror = () => {
    lost();
    if (server.readyState === EventSource.CLOSED) setTimeout(listen, 2000); // it does not try again by itself
  };
}

function lost() { say("connection lost, trying again", false); }

listen();
setInterval(tellTimes, 1000);
