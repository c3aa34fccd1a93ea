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
  const ring = (values) =>
    "M" +
    values
      .map((v, i) =>
        spot(i, v)
          .map((n) => n.toFixed(1))
          .join(","),
      )
      .join("L") +
    "Z";
  for (const value of steps.filter((v) => v > 0))
    root.append(svg("path", { d: ring(names.map(() => value)), class: "grid", fill: "none" }));
  spokes.forEach((s, i) => {
    const [x, y] = spot(i, top),
      [tx, ty] = spot(i, top * (1 + 14 / radius));
    root.append(svg("line", { x1: cx, y1: cy, x2: x, y2: y, class: "grid" }));
    const anchor = Math.abs(tx - cx) < 8 ? "middle" : tx > cx ? "start" : "end";
    const lift = ty < cy - radius * 0.9 ? -2 : ty > cy + radius * 0.9 ? 10 : 4;
    words[i].forEach((word, line) =>
      root.append(
        svg(
          "text",
          {
            x: tx,
            y: ty + lift + 14 * (line - (words[i].length - 1) / 2),
            "text-anchor": anchor,
            class: "name",
            style: s.style,
          },
          word,
        ),
      ),
    );
  });
  RINGS.forEach((r, k) => {
    root.append(
      svg("path", {
        d: ring(spokes.map((s) => s.values[k])),
        class: "series",
        style: r.style,
        "stroke-dasharray": DASH[r.dash] || "none",
      }),
    );
    spokes.forEach((s, i) => {
      const node = marker(r.marker, ...spot(i, s.values[k]), 3.2);
      node.setAttribute("style", r.style);
      root.append(node);
    });
  });
  for (const value of steps.filter((v) => v > 0)) {
    const [[ax, ay], [bx, by]] = [spot(0, value), spot(1, value)]; // between two spokes, clear of their markers
    root.append(
      svg(
        "text",
        { x: (ax + bx) / 2, y: (ay + by) / 2 + 4, "text-anchor": "middle", class: "tick halo" },
        tickText(steps)(value),
      ),
    );
  }
  const find = (px, py) => {
    const angle = Math.atan2(py - cy, px - cx) + Math.PI / 2;
    const turn = Math.round((angle / (2 * Math.PI)) * spokes.length);
    return Math.hypot(px - cx, py - cy) > radius * 1.3
      ? -1
      : (turn + spokes.length) % spokes.length;
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
  const names = nameRoom(
    spokes.map((s) => s.label),
    width,
    14,
  );
  const rise = spokes.length > 6 ? 26 : 40,
    top = 8,
    bottom = top + spokes.length * rise;
  const root = canvas(host, width, bottom + 42, label);
  const x = linear(0, 1, names, width - 16);
  for (const value of ticks(0, 1, 5)) {
    root.append(svg("line", { x1: x(value), x2: x(value), y1: top, y2: bottom, class: "grid" }));
    root.append(
      svg(
        "text",
        { x: x(value), y: bottom + 16, "text-anchor": "middle", class: "tick" },
        value.toFixed(1),
      ),
    );
  }
  root.append(
    svg("text", { x: x(0.5), y: bottom + 36, "text-anchor": "middle", class: "title" }, "Accuracy"),
  );
  spokes.forEach((s, i) => {
    const y = top + (i + 0.5) * rise;
    root.append(
      svg(
        "text",
        { x: names - 12, y: y + 4, "text-anchor": "end", class: "name", style: s.style },
        fit(s.label, names - 14),
      ),
    );
    root.append(
      svg("line", {
        x1: x(s.values[2]),
        x2: x(s.values[0]),
        y1: y,
        y2: y,
        class: "series",
        style: s.style,
      }),
    );
    RINGS.forEach((r, k) => {
      const node = marker(r.marker, x(s.values[k]), y, 5);
      node.setAttribute("style", r.style);
      root.append(node);
    });
  });
  const find = (_, py) => (py < top || py >= bottom ? -1 : Math.floor((py - top) / rise));
  interactive(root, width, spokes.length, find, (i) => ({
    x: x(spokes[i].values[1]),
    y: top + i * rise,
    title: spokes[i].label,
    rows: ringRows(spokes[i]),
  }));
}
