// Heat maps. Colours are mixed in CSS from the theme's own, so that they turn with light and dark.
const ramp = (share) =>
  `color-mix(in oklab, var(--seq) ${(100 * clamp(share, 0, 1)).toFixed(0)}%, var(--mid))`;
// The sign is what matters, so small values are stretched by a square root.
const diverging = (most) => (value) => {
  const share = Math.sqrt(clamp(Math.abs(value) / most, 0, 1));
  const side = value < 0 ? "--neg" : "--pos";
  return `color-mix(in oklab, var(${side}) ${(100 * share).toFixed(0)}%, var(--mid))`;
};

// options: rows, columns (names), cells [[value]], fill(value), text(value) or null, tip(r, c),
// xTitle, yTitle, label, rowHeight, frameAt [r, c], ink(value): the look of its text;
// below(r, c): a second line, blank(r, c): why a cell has no value, open(r): what a click on a row does.
function heatMap(host, width, options) {
  const { rows, columns, cells } = options;
  const wide = width > 620;
  const letters = wide ? 26 : 12;
  const names = Math.min(
    Math.max(...rows.map((r) => textWidth(clip(r, letters)))) + 10,
    width * 0.42,
  );
  const rise = options.rowHeight || 24,
    top = 24,
    bottom = top + rows.length * rise;
  const step = Math.min((width - names - 8) / columns.length, options.most || Infinity);
  const root = canvas(host, width, bottom + 42, options.label);
  rows.forEach((row, r) => {
    write(root, names - 7, top + (r + 0.5) * rise + 4, clip(row, letters), "tick", "end");
    columns.forEach((_, c) =>
      drawCell(root, r, c, { x: names + c * step, y: top + r * rise, step, rise }, options),
    );
  });
  const widest = Math.max(...columns.map((c) => textWidth(c))) + (options.text ? 6 : 20);
  const every = Math.max(1, Math.ceil(widest / step));
  columns.forEach((column, c) => {
    if (c % every === 0)
      write(root, names + (c + 0.5) * step, bottom + 16, column, "tick", "middle");
  });
  const centre = names + (step * columns.length) / 2;
  write(root, centre, bottom + 36, options.xTitle, "title", "middle");
  write(root, 0, 13, options.yTitle, "title");
  if (options.frameAt) {
    const [r, c] = options.frameAt;
    // Two lines, so that one of them stands out from any fill.
    for (const [look, inset] of [["frame", 1], ["frame inner", 3]])
      root.append(
        svg("rect", {
          x: names + c * step + inset,
          y: top + r * rise + inset,
          width: step - 2 * inset,
          height: rise - 2 * inset,
          rx: 3,
          class: look,
        }),
      );
  }
  const find = (px, py) => {
    const c = Math.floor((px - names) / step),
      r = Math.floor((py - top) / rise);
    return c < 0 || r < 0 || c >= columns.length || r >= rows.length ? -1 : r * columns.length + c;
  };
  const show = (place) => {
    const r = Math.floor(place / columns.length),
      c = place % columns.length;
    return { x: names + (c + 0.5) * step, y: top + r * rise, ...options.tip(r, c) };
  };
  const open = options.open && ((place) => options.open(Math.floor(place / columns.length)));
  if (open) root.classList.add("opens");
  interactive(root, width, rows.length * columns.length, find, show, undefined, open);
}

function drawCell(root, r, c, { x, y, step, rise }, options) {
  const value = options.cells[r][c];
  const why = options.blank && options.blank(r, c);
  const gap = options.text ? 1.5 : step > 8 ? 0.75 : -0.3;
  const fill = finite(value) ? options.fill(value) : "transparent";
  root.append(
    svg("rect", {
      x: x + gap / 2,
      y: y + 0.5,
      width: step - gap,
      height: rise - 1,
      rx: options.text ? 3 : 0,
      ...(why ? { class: "blank" } : { style: `fill: ${fill}` }),
    }),
  );
  const inside = (text, down, look) =>
    write(root, x + step / 2, y + rise / 2 + down, text, look, "middle");
  if (why) inside(fit(why, step - 4), 4, "tiny why");
  if (!options.text || !finite(value)) return;
  const ink = options.ink(value);
  const below = options.below ? options.below(r, c) : "";
  inside(options.text(value), below ? -2 : 4, ink);
  if (below) inside(below, 12, `tiny ${ink}`);
}

function rampLegend(host, low, high, css) {
  const bar = html("span", { class: "ramp", style: `background: ${css}` });
  host.append(html("div", { class: "legend" }, html("span", {}, low, bar, high)));
}
