// The paper's radar: a spoke a method, three closed curves.
const RINGS = [
  { name: "Best 10 %", style: "--c: var(--s3)", dash: "dot", marker: "triangle" },
  { name: "Mean", style: "--c: var(--s2)", dash: "solid", marker: "circle" },
  { name: "Worst 10 %", style: "--c: var(--s0)", dash: "dash", marker: "square" },
];

function radarChart(host, width, spokes, label) {
  const names = spokes.map((s) => s.label);
  const words = names.map((name) => (width < 420 ? wrap(name, 9) : [name]));
  const side = Math.max(...words.flat().map((n) => textWidth(n, true)));
  const radius = clamp((width - 2 * side - 34) / 2, 60, 165);
  const height = 2 * radius + 64,
    cx = width / 2,
    cy = height / 2;
  const root = canvas(host, width, height, label);
  const most = Math.max(...spokes.flatMap((s) => s.values), 1e-9);
  const steps = ticks(0, most, radius < 120 ? 2 : 4);
  const top = Math.max(most, steps[steps.length - 1]);
  const spot = (i, value) => {
    const angle = (2 * Math.PI * i) / spokes.length - Math.PI / 2,
      r = (radius * value) / top;
    return [cx + r * Math.cos(angle), cy + r * Math.sin(angle)];
  };
  const corner = (value, i) => spot(i, value).map((n) => n.toFixed(1)).join(",");
  const ring = (values) => `M${values.map(corner).join("L")}Z`;
  for (const value of steps.filter((v) => v > 0))
    root.append(svg("path", { d: ring(names.map(() => value)), class: "grid", fill: "none" }));
  spokes.forEach((s, i) => {
    const [x, y] = spot(i, top),
      [tx, ty] = spot(i, top * (1 + 14 / radius));
    rule(root, [cx, cy], [x, y], "grid");
    const anchor = Math.abs(tx - cx) < 8 ? "middle" : tx > cx ? "start" : "end";
    const lift = ty < cy - radius * 0.9 ? -2 : ty > cy + radius * 0.9 ? 10 : 4;
    words[i].forEach((word, line) => {
      const down = lift + 14 * (line - (words[i].length - 1) / 2);
      write(root, tx, ty + down, word, "name", anchor, s.style);
    });
  });
  RINGS.forEach((r, k) => {
    const look = { class: "series", style: r.style, "stroke-dasharray": DASH[r.dash] || "none" };
    root.append(svg("path", { d: ring(spokes.map((s) => s.values[k])), ...look }));
    spokes.forEach((s, i) =>
      root.append(marker(r.marker, ...spot(i, s.values[k]), 3.2, r.style)),
    );
  });
  for (const value of steps.filter((v) => v > 0)) {
    // Between two spokes, clear of their markers.
    const [[ax, ay], [bx, by]] = [spot(0, value), spot(1, value)];
    const text = tickText(steps)(value);
    write(root, (ax + bx) / 2, (ay + by) / 2 + 4, text, "tick halo", "middle");
  }
  const find = (px, py) => {
    const angle = Math.atan2(py - cy, px - cx) + Math.PI / 2;
    const turn = Math.round((angle / (2 * Math.PI)) * spokes.length);
    const outside = Math.hypot(px - cx, py - cy) > radius * 1.3;
    return outside ? -1 : (turn + spokes.length) % spokes.length;
  };
  const show = (i) => {
    const [x, y] = spot(i, top);
    return { x, y, title: names[i], rows: ringRows(spokes[i]) };
  };
  interactive(root, width, spokes.length, find, show);
}

const ringRows = (spoke) =>
  RINGS.map((r, k) => ({ name: r.name, style: r.style, value: short(spoke.values[k]) }));

// With fewer than three spokes there is no area, with many of them no room on a phone: a line from
// worst to best for each method.
function rangeChart(host, width, spokes, label) {
  const names = nameRoom(spokes, width, 14);
  const rise = spokes.length > 6 ? 26 : 40,
    top = 8,
    bottom = top + spokes.length * rise;
  const root = canvas(host, width, bottom + 42, label);
  const x = linear(0, 1, names, width - 16);
  numbersBelow(root, x, ticks(0, 1, 5), top, bottom, (value) => value.toFixed(1));
  write(root, x(0.5), bottom + 36, "Accuracy", "title", "middle");
  spokes.forEach((s, i) => {
    const y = top + (i + 0.5) * rise;
    rowName(root, names - 12, y + 4, s);
    rule(root, [x(s.values[2]), y], [x(s.values[0]), y], "series", s.style);
    RINGS.forEach((r, k) => root.append(marker(r.marker, x(s.values[k]), y, 5, r.style)));
  });
  interactive(root, width, spokes.length, rowUnder(top, rise, bottom), (i) => ({
    x: x(spokes[i].values[1]),
    y: top + i * rise,
    title: spokes[i].label,
    rows: ringRows(spokes[i]),
  }));
}
