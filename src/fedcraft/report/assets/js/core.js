// Shared by all charts: data, state, SVG elements, numbers, scales.
let DATA = JSON.parse(document.getElementById("data").textContent);
const STATE = { hidden: new Set(), picks: {} };
const SVG = "http://www.w3.org/2000/svg";
const DASH = { solid: "", dash: "7 4", dot: "1.5 4", dashdot: "8 4 1.5 4" };

function svg(name, attributes = {}, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function html(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function canvas(host, width, height, label) {
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  host.append(root);
  return root;
}

// Text in a chart: `look` is its class, `anchor` the part of it that stands at x.
function write(root, x, y, text, look = "", anchor = "start", style = "") {
  const extra = { ...(look && { class: look }), ...(style && { style }) };
  root.append(svg("text", { x, y, "text-anchor": anchor, ...extra }, text));
}

function rule(root, [x1, y1], [x2, y2], look, style = "") {
  root.append(svg("line", { x1, x2, y1, y2, class: look, ...(style && { style }) }));
}

function paragraph(host, look, text) {
  host.append(html("p", { class: look }, text));
}

const nothingSelected = (host) => paragraph(host, "absent", "No method is selected.");

// Pages from files may be refused storage and history.
function attempt(action) {
  try {
    return action();
  } catch {
    return null;
  }
}

const colour = (method) => `--c: var(--s${method.colour})`;
const finite = (value) => value !== null && Number.isFinite(value);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

function short(value, digits = 3) {
  if (!finite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(1);
  if (Number.isInteger(value)) return String(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(digits);
}

const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(3);

function linear(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

function ticks(low, high, wanted) {
  const raw = (high - low || 1) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999) || 10);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-6; k++)
    found.push(+(k * step).toPrecision(12));
  return found;
}

function tickText(values) {
  const decimals = Math.max(...values.map((v) => (String(v).split(".")[1] || "").length));
  return (value) => (Math.abs(value) >= 1e5 ? short(value) : value.toFixed(Math.min(decimals, 4)));
}

function extent(values, padding = 0.05) {
  const known = values.filter(finite);
  if (!known.length) return [0, 1];
  const low = Math.min(...known),
    high = Math.max(...known);
  const room = (high - low || Math.abs(high) || 1) * padding;
  return [low - room, high + room];
}

function marker(shape, x, y, s, style = "") {
  const paths = {
    circle: `M${x - s},${y}a${s},${s} 0 1,0 ${2 * s},0a${s},${s} 0 1,0 ${-2 * s},0`,
    square: `M${x - s},${y - s}h${2 * s}v${2 * s}h${-2 * s}z`,
    triangle: `M${x},${y - s * 1.2}l${s * 1.15},${s * 2}h${-s * 2.3}z`,
    down: `M${x},${y + s * 1.2}l${s * 1.15},${-s * 2}h${-s * 2.3}z`,
    diamond: `M${x},${y - s * 1.3}l${s * 1.2},${s * 1.3}l${-s * 1.2},${s * 1.3}l${-s * 1.2},${-s * 1.3}z`,
    cross: `M${x - s},${y - s}l${2 * s},${2 * s}m0,${-2 * s}l${-2 * s},${2 * s}`,
    plus: `M${x - s * 1.2},${y}h${s * 2.4}m${-s * 1.2},${-s * 1.2}v${s * 2.4}`,
    star: `M${x - s},${y}h${2 * s}m${-1.6 * s},${-s}l${1.2 * s},${2 * s}m0,${-2 * s}l${-1.2 * s},${2 * s}`,
  };
  return svg("path", { d: paths[shape] || paths.circle, class: "mark", ...(style && { style }) });
}

function clip(text, letters) {
  return text.length > letters ? text.slice(0, letters - 1) + "…" : text;
}

function wrap(text, letters) {
  const lines = [];
  for (const word of text.split(" ")) {
    if (lines.length && (lines.at(-1) + word).length < letters)
      lines.push(`${lines.pop()} ${word}`);
    else lines.push(word);
  }
  return lines;
}

let ruler;
function textWidth(text, bold = false) {
  ruler = ruler || document.createElement("canvas").getContext("2d");
  ruler.font = `${bold ? "600 " : ""}12px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}

// The room that the names of rows take at the left of a chart, and a name cut to fit into it.
function nameRoom(rows, width, gap) {
  return Math.min(Math.max(...rows.map((row) => textWidth(row.label, true))) + gap, width * 0.36);
}

function fit(text, room) {
  let letters = text.length;
  while (letters > 4 && textWidth(clip(text, letters), true) > room) letters -= 1;
  return clip(text, letters);
}

// Charts of rows: the numbers below, the name at the left, and the row under the pointer.
function numbersBelow(root, x, steps, top, bottom, text) {
  for (const value of steps) {
    rule(root, [x(value), top], [x(value), bottom], "grid");
    write(root, x(value), bottom + 16, text(value), "tick", "middle");
  }
}

function rowName(root, right, y, row) {
  write(root, right, y, fit(row.label, right - 2), "name", "end", row.style || "--c: var(--ink)");
}

const rowUnder = (top, rise, bottom) => (_, y) =>
  y < top || y >= bottom ? -1 : Math.floor((y - top) / rise);
