// Line charts: one line per series, optional bands, markers, names at the line ends.
function axes(root, frame, options) {
  const { left, right, top, bottom, x, y, xTicks, yTicks } = frame;
  const yText = options.yText || tickText(yTicks),
    xText = options.xText || tickText(xTicks);
  for (const value of yTicks) {
    rule(root, [left, y(value)], [right, y(value)], "grid");
    write(root, left - 7, y(value) + 4, yText(value), "tick", "end");
  }
  if (options.floor !== false) rule(root, [left, bottom], [right, bottom], "axis");
  for (const value of xTicks)
    write(root, x(value), bottom + 17, xText(value), "tick", "middle");
  const below = bottom + (xTicks.length ? 36 : 20);
  write(root, (left + right) / 2, below, options.xTitle, "title", "middle");
  write(root, 0, top - 9, options.yTitle, "title");
}

function pathOf(xs, ys, x, y) {
  let path = "",
    pen = "M";
  xs.forEach((value, i) => {
    if (!finite(ys[i])) {
      pen = "M";
      return;
    }
    path += `${pen}${x(value).toFixed(1)},${y(ys[i]).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

function bandOf(series, x, y) {
  const known = series.x
    .map((_, i) => i)
    .filter((i) => finite(series.y[i]) && finite(series.sd[i]));
  const edge = (sign) =>
    known.map(
      (i) => `${x(series.x[i]).toFixed(1)},${y(series.y[i] + sign * series.sd[i]).toFixed(1)}`,
    );
  return known.length ? `M${edge(1).join("L")}L${edge(-1).reverse().join("L")}Z` : "";
}

function endNames(root, series, frame) {
  const ends = series
    .map((s) => {
      const last = s.y.findLastIndex(finite);
      return last < 0 ? null : { s, at: frame.y(s.y[last]) };
    })
    .filter(Boolean)
    .sort((a, b) => a.at - b.at);
  const gap = 15;
  ends.forEach((end, i) => {
    if (i) end.at = Math.max(end.at, ends[i - 1].at + gap);
  });
  let floor = frame.bottom + 4;
  for (const end of [...ends].reverse()) {
    end.at = Math.min(end.at, floor);
    floor = end.at - gap;
  }
  for (const { s, at } of ends)
    write(root, frame.right + 8, at + 4, s.label, "name", "start", s.style);
}

function drawSeries(root, s, index, frame) {
  const path = (d, look, more = {}) =>
    root.append(svg("path", { d, class: look, style: s.style, ...more }));
  if (s.sd) path(bandOf(s, frame.x, frame.y), "band");
  const shape = s.step ? stepPath(s, frame) : pathOf(s.x, s.y, frame.x, frame.y);
  if (s.area) path(`${shape}V${frame.bottom}H${frame.x(s.x[0])}Z`, "area");
  const dashes = { "stroke-dasharray": DASH[s.dash] || "none" };
  path(shape, `series${s.strong ? " strong" : ""}`, dashes);
  if (!s.marker) return;
  const every = Math.max(1, Math.floor(s.x.length / 7));
  s.x.forEach((value, i) => {
    if ((i + index) % every || !finite(s.y[i])) return;
    root.append(marker(s.marker, frame.x(value), frame.y(s.y[i]), 3.4, s.style));
  });
}

function stepPath(s, frame) {
  let path = "";
  s.x.forEach((value, i) => {
    path +=
      (i ? `H${frame.x(value).toFixed(1)}V` : `M${frame.x(value).toFixed(1)},`) +
      frame.y(s.y[i]).toFixed(1);
  });
  return path;
}

function nearestIndex(values, target) {
  let best = 0;
  values.forEach((value, i) => {
    if (Math.abs(value - target) < Math.abs(values[best] - target)) best = i;
  });
  return best;
}

// options: series, xTitle, yTitle, label, and optionally xRange, yRange, height, zero, names, title(x).
function lineChart(host, width, options) {
  const { series } = options;
  if (!series.length) return nothingSelected(host);
  const wide = width > 620;
  const named = options.names !== false && wide;
  const room = named ? Math.max(...series.map((s) => textWidth(s.label, true))) + 14 : 10;
  const usual = options.height || (wide ? 360 : 270);
  const height = Math.max(usual, named ? 70 + 15 * series.length : 0);
  const rounds = series.flatMap((s) => s.x);
  const [xLow, xHigh] = options.xRange || extent(rounds, 0);
  const bounds = series.flatMap((s) =>
    s.y.flatMap((v, i) => (s.sd && finite(s.sd[i]) ? [v - s.sd[i], v + s.sd[i]] : [v])),
  );
  let [yLow, yHigh] = options.yRange || extent(bounds);
  if (options.zero) yLow = 0;
  const yTicks = ticks(yLow, yHigh, wide ? 8 : 5);
  const yText = options.yText || tickText(yTicks);
  const left = Math.max(...yTicks.map((v) => textWidth(yText(v)))) + 12;
  const frame = { left, right: width - room, top: 26, bottom: height - 44 };
  frame.x = linear(xLow, xHigh, frame.left, frame.right);
  frame.y = linear(yLow, yHigh, frame.bottom, frame.top);
  frame.yTicks = yTicks;
  frame.xTicks = ticks(xLow, xHigh, wide ? 8 : 4).filter(
    (v) => options.xText || xHigh <= 2 || Number.isInteger(v),
  );
  const root = canvas(host, width, height, options.label);
  axes(root, frame, options);
  [...series]
    .sort((a, b) => (a.strong || 0) - (b.strong || 0))
    .forEach((s, i) => drawSeries(root, s, i, frame));
  if (named) endNames(root, series, frame);
  hoverLines(root, width, frame, options);
}

function hoverLines(root, width, frame, options) {
  const stops = [...new Set(options.series.flatMap((s) => s.x))].sort((a, b) => a - b);
  const cursor = svg("line", { y1: frame.top, y2: frame.bottom, class: "cursor" });
  const hide = () => cursor.setAttribute("visibility", "hidden");
  hide();
  root.append(cursor);
  const find = (px) =>
    px < frame.left - 20 || px > frame.right + 20 ? -1 : nearestIndex(stops.map(frame.x), px);
  const show = (place) => {
    const at = stops[place];
    cursor.setAttribute("x1", frame.x(at));
    cursor.setAttribute("x2", frame.x(at));
    cursor.setAttribute("visibility", "visible");
    const rows = options.series
      .map((s) => {
        const i = options.nearest ? nearestIndex(s.x, at) : s.x.indexOf(at);
        const sd = s.sd && finite(s.sd[i]) ? ` ± ${short(s.sd[i])}` : "";
        return {
          name: s.label,
          style: s.style,
          order: s.y[i],
          value: (options.value || short)(s.y[i]) + sd,
          known: finite(s.y[i]),
        };
      })
      .filter((row) => row.known)
      .sort((a, b) => b.order - a.order);
    const title = options.title ? options.title(at) : `Round ${at}`;
    return { x: frame.x(at), y: frame.top + 30, title, rows };
  };
  interactive(root, width, stops.length, find, show, hide);
}
