// The page itself: which problem, which methods, which theme; charts follow.
const PRINT_WIDTH = { whole: 680, half: 325 }; // what fits on A4 and Letter
let printing = false;
const blocks = [...document.querySelectorAll(".problem")];

function picker(block) {
  return (name) => {
    const control = block.querySelector(`[data-control="${name}"]`);
    return (control.querySelector("select, input:checked") || {}).value;
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
}

function drawAll() {
  hideTooltip();
  for (const block of blocks.filter((b) => !b.hidden))
    block.querySelectorAll(".chart").forEach(draw);
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

const THEMES = ["auto", "light", "dark"];
function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = {
    auto: "◐ Auto",
    light: "☀ Light",
    dark: "☾ Dark",
  }[theme];
  try {
    localStorage.setItem("fedcraft-theme", theme);
  } catch {
    /* storage may be closed to file pages */
  }
}

function savedTheme() {
  try {
    return localStorage.getItem("fedcraft-theme");
  } catch {
    return null;
  }
}

let theme = THEMES.includes(savedTheme()) ? savedTheme() : "auto";
setTheme(theme);
document.getElementById("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  setTheme(theme);
});
document
  .getElementById("problem")
  ?.addEventListener("change", (event) => chooseProblem(event.target.value));
for (const block of blocks)
  block.addEventListener("change", () => block.querySelectorAll(".chart").forEach(draw));

let lastWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== lastWidth) {
    lastWidth = innerWidth;
    drawAll();
  }
});
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((d) => {
    d.dataset.was = d.open;
    d.open = true;
  });
  printing = true;
  drawAll();
});
addEventListener("afterprint", () => {
  document.querySelectorAll("details").forEach((d) => {
    d.open = d.dataset.was === "true";
  });
  printing = false;
  drawAll();
});
fillChips();
chooseProblem(blocks[0].id);
