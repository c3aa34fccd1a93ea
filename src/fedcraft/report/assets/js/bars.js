// Horizontal bars: rows of stacked parts from zero, to both sides if parts are negative.
// options: rows [{label, style, parts: [{value, style, name}], sd, end, tip}], label, xTitle, xText,
// rise, whole (only whole numbers on the axis).
function barChart(host, width, options) {
  const { rows } = options;
  if (!rows.length) return nothingSelected(host);
  const names = nameRoom(rows, width, 12);
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
  numbersBelow(root, x, steps, top, bottom, options.xText || tickText(steps));
  const half = textWidth(options.xTitle) / 2 + 4;
  const middle = clamp((x(low) + x(high)) / 2, half, width - half);
  write(root, middle, bottom + 36, options.xTitle, "title", "middle");
  rows.forEach((row, i) => drawBar(root, row, x, names, top + i * rise, rise));
  rule(root, [x(0), top], [x(0), bottom], "axis");
  const show = (place) => ({
    x: x(high) * 0.5 + x(low) * 0.5,
    y: top + place * rise,
    title: rows[place].label,
    rows: rows[place].tip,
  });
  interactive(root, width, rows.length, rowUnder(top, rise, bottom), show);
}

const sum = (parts) => parts.reduce((total, part) => total + part.value, 0);

function drawBar(root, row, x, names, top, rise) {
  const middle = top + rise / 2;
  rowName(root, names - 10, middle + 4, row);
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
  if (row.end) write(root, x(right + (row.sd || 0)) + 7, middle + 4, row.end);
  if (row.start) write(root, x(left) - 7, middle + 4, row.start, "", "end");
}
