// The page itself: which problem, which methods, which theme; charts follow.
const PRINT_WIDTH = { whole: 680, half: 325 }; // what fits on A4 and Letter
let printing = false;
let blocks = [];
const CHARTS = {
  convergence: convergenceChart,
  distribution: distributionChart,
  radar: bestMeanWorst,
  spread: spreadChart,
  clients: clientsChart,
  winners: winnersChart,
  gains: gainsDetail,
  conflicts: conflictsChart,
  cosine: cosineChart,
  correction: correctionChart,
  rates: ratesChart,
  labels: labelsChart,
  timing: timingChart,
};

function picker(block) {
  return (name) => {
    const control = block.querySelector(`[data-control="${name}"]`);
    return (control?.querySelector("select, input:checked") || {}).value;
  };
}

function draw(figure) {
  const block = figure.closest(".problem");
  const wrapper = figure.closest("[data-needs]");
  if (wrapper) wrapper.classList.remove("empty");
  const half = figure.closest(".pair");
  const width = printing ? PRINT_WIDTH[half ? "half" : "whole"] : Math.floor(figure.clientWidth);
  if (block.hidden || width < 50) return;
  const problem = DATA[blocks.indexOf(block)];
  figure.replaceChildren();
  CHARTS[figure.dataset.chart](figure, width, problem, picker(block), figure.dataset.label);
  if (wrapper) wrapper.classList.toggle("empty", !figure.childElementCount);
  csvButton(figure, () => CSV_TABLES[figure.dataset.chart](problem), problem);
}

function drawAll() {
  hideTooltip();
  for (const block of blocks.filter((b) => !b.hidden))
    block.querySelectorAll(".chart").forEach(draw);
  if (sheet.open) drawClient();
}

function updateChips() {
  for (const chip of document.querySelectorAll(".chip[data-method]"))
    chip.setAttribute("aria-pressed", String(!STATE.hidden.has(chip.dataset.method)));
}

function fillChips() {
  const methods = new Map(DATA.flatMap((problem) => problem.methods).map((m) => [m.key, m]));
  for (const chip of document.querySelectorAll(".chip[data-method]")) {
    const m = methods.get(chip.dataset.method);
    const root = chip.querySelector("svg");
    root.classList.add("sample");
    root.setAttribute("style", colour(m));
    root.append(
      svg("path", { d: "M1,6H29", class: "series", "stroke-dasharray": DASH[m.dash] || "none" }),
      marker(m.marker, 15, 6, 3.4),
    );
    chip.addEventListener("click", () => {
      if (!STATE.hidden.delete(m.key)) STATE.hidden.add(m.key);
      updateChips();
      drawAll();
    });
  }
  document.getElementById("all").addEventListener("click", () => {
    STATE.hidden.clear();
    updateChips();
    drawAll();
  });
}

function chooseProblem(id) {
  for (const block of blocks) block.hidden = block.id !== id;
  const present = new Set(DATA[blocks.findIndex((b) => b.id === id)].methods.map((m) => m.key));
  for (const chip of document.querySelectorAll(".chip[data-method]"))
    chip.hidden = !present.has(chip.dataset.method);
  drawAll();
}

const THEMES = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" };
const savedTheme = () => attempt(() => localStorage.getItem("fedcraft-theme"));
let theme = "auto";
function setTheme(next) {
  theme = next;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = THEMES[theme];
  attempt(() => localStorage.setItem("fedcraft-theme", theme));
}

// Open a client by its number or its name.
function findClient(block) {
  const problem = DATA[blocks.indexOf(block)];
  const field = block.querySelector(".find input");
  const wanted = field.value.trim();
  const at = groupOfSeed(problem, picker(block)("client-seed"));
  const group = groupsOf(problem)[at];
  const named = group.names.indexOf(wanted);
  const i = named >= 0 ? named : clientAt(group, Number(wanted.replace(/^client\s+/i, "") || NaN));
  field.setCustomValidity(i < 0 ? "No client of this seed has this number or name." : "");
  if (i < 0) field.reportValidity();
  else openClient(problem, at, i);
}

// Everything that belongs to the parts of the page that a newer page replaces.
function start() {
  blocks = [...document.querySelectorAll(".problem")];
  setTheme(Object.hasOwn(THEMES, savedTheme()) ? savedTheme() : theme);
  document.getElementById("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    setTheme(names[(names.indexOf(theme) + 1) % names.length]);
  });
  const choice = document.getElementById("problem");
  choice?.addEventListener("change", () => chooseProblem(choice.value));
  for (const block of blocks) {
    block.addEventListener("change", (event) => {
      if (!event.target.closest(".find")) block.querySelectorAll(".chart").forEach(draw);
    });
    const find = block.querySelector(".find");
    find?.addEventListener("submit", (event) => {
      event.preventDefault();
      findClient(block);
    });
    find?.addEventListener("input", (event) => event.target.setCustomValidity(""));
  }
  fillChips();
  updateChips();
}

const controls = () => [...document.querySelectorAll("header select, main select, main input")];
const nameOf = (control) =>
  [control.closest(".problem")?.id, control.closest("[data-control]")?.dataset.control, control.id].join();

// Take over a newer page: the reader's choices, the place on the page and the client stay.
function adopt(next) {
  const kept = new Map(
    controls()
      .filter((c) => c.type !== "radio" || c.checked)
      .map((c) => [nameOf(c), c.value]),
  );
  const open = [...document.querySelectorAll("details")].map((d) => d.open);
  const focused = controls().includes(document.activeElement) && nameOf(document.activeElement);
  const place = scrollY;
  DATA = JSON.parse(next.getElementById("data").textContent);
  for (const part of ["header", "main"])
    document.querySelector(part).replaceWith(document.importNode(next.querySelector(part), true));
  for (const control of controls()) {
    const value = kept.get(nameOf(control));
    if (value === undefined) continue;
    if (control.type === "radio") control.checked = control.value === value;
    else if (control.tagName === "INPUT" || [...control.options].some((o) => o.value === value))
      control.value = value;
  }
  document.querySelectorAll("details").forEach((d, i) => (d.open = Boolean(open[i])));
  start();
  chooseProblem(document.getElementById("problem")?.value || blocks[0].id);
  if (focused) controls().find((c) => nameOf(c) === focused)?.focus({ preventScroll: true });
  scrollTo({ top: place, behavior: "instant" });
}

let lastWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== lastWidth) {
    lastWidth = innerWidth;
    drawAll();
  }
});
// On paper the client's sheet is a page of its own: a modal one would be cut.
function printed(on) {
  printing = on;
  if (sheet.open) {
    const client = opened;
    printing = true;
    sheet.close();
    printing = on;
    opened = client;
    if (on) sheet.show();
    else sheet.showModal();
  }
  drawAll();
}
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((d) => {
    d.dataset.was = d.open;
    d.open = true;
  });
  printed(true);
});
addEventListener("afterprint", () => {
  document.querySelectorAll("details").forEach((d) => (d.open = d.dataset.was === "true"));
  printed(false);
});
start();
chooseProblem(blocks[0].id);
openFromAddress();
