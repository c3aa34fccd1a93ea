// Horizontal bars: rows of stacked parts from zero, to both sides if parts are negative.
// options: rows [{label, style, parts: [{value, style, name}], sd, end, tip}], label, xTitle, xText,
// rise, whole (only whole numbers on the axis).
function barChart(host, width, options) {
  const { rows } = options;
  if (!rows.length) {
    host.append(html("p", { class: "absent" }, "No method is selected."));
    return;
  }
  const names = nameRoom(
    rows.map((r) => r.label),
    width,
    12,
  );
  const room = Math.max(0, ...rows.map((r) => textWidth(r.end || ""))) + 12;
  const rise = options.rise || 30,
    top = 6,
    bottom = top + rows.length * rise;
  const sums = rows.flatMap((r) => [
    sum(r.parts.filter((p) => p.value > 0)) + (r.sd || 0),
    sum(r.parts.filter((p) => p.value < 0)),
  ]);
  const low = Math.min(0, ...sums),
    high = Math.max(0, ...sums) || 1;
  const negative = low < 0 ? Math.max(0, ...rows.map((r) => textWidth(r.start || ""))) + 10 : 0;
  const x = linear(low, high, names + negative, width - room);
  const root = canvas(host, width, bottom + 42, options.label);
  const steps = ticks(low, high, width > 600 ? 9 : width > 420 ? 5 : 3).filter(
    (value) => !options.whole || Number.isInteger(value),
  );
  for (const value of steps) {
    root.append(svg("line", { x1: x(value), x2: x(value), y1: top, y2: bottom, class: "grid" }));
    root.append(
      svg(
        "text",
        { x: x(value), y: bottom + 16, "text-anchor": "middle", class: "tick" },
        (options.xText || tickText(steps))(value),
      ),
    );
  }
  const half = textWidth(options.xTitle) / 2 + 4;
  root.append(
    svg(
      "text",
      { x: clamp((x(low) + x(high)) / 2, half, width - half), y: bottom + 36, "text-anchor": "middle", class: "title" },
      options.xTitle,
    ),
  );
  rows.forEach((row, i) => drawBar(root, row, x, names, top + i * rise, rise));
  root.append(svg("line", { x1: x(0), x2: x(0), y1: top, y2: bottom, class: "axis" }));
  const find = (_, py) => (py < top || py >= bottom ? -1 : Math.floor((py - top) / rise));
  const show = (place) => ({
    x: x(high) * 0.5 + x(low) * 0.5,
    y: top + place * rise,
    title: rows[place].label,
    rows: rows[place].tip,
  });
  interactive(root, width, rows.length, find, show);
}

const sum = (parts) => parts.reduce((total, part) => total + part.value, 0);

function drawBar(root, row, x, names, top, rise) {
  const middle = top + rise / 2;
  root.append(
    svg(
      "text",
      {
        x: names - 10,
        y: middle + 4,
        "text-anchor": "end",
        class: "name",
        style: row.style || "--c: var(--ink)",
      },
      fit(row.label, names - 12),
    ),
  );
  let right = 0,
    left = 0;
  for (const part of row.parts) {
    const from = part.value < 0 ? left + part.value : right;
    root.append(
      svg("rect", {
        x: x(from),
        width: Math.max(0, x(from + Math.abs(part.value)) - x(from)),
        y: top + 6,
        height: rise - 12,
        rx: 2,
        class: "fill",
        style: part.style,
      }),
    );
    if (part.value < 0) left += part.value;
    else right += part.value;
  }
  if (row.sd) {
    const [a, b] = [x(right - row.sd), x(right + row.sd)];
    root.append(
      svg("path", {
        d: `M${a},${middle}H${b}M${a},${middle - 4}v8M${b},${middle - 4}v8`,
        stroke: "var(--ink)",
        "stroke-width": 1.4,
        fill: "none",
      }),
    );
  }
  if (row.end)
    root.append(svg("text", { x: x(right + (row.sd || 0)) + 7, y: middle + 4 }, row.end));
  if (row.start)
    root.append(svg("text", { x: x(left) - 7, y: middle + 4, "text-anchor": "end" }, row.start));
}
