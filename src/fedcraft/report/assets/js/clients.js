// Charts about single clients: rows of histograms, and the sorted gains.
const BINS = 20;

function histogram(values) {
  const counts = new Array(BINS).fill(0);
  for (const v of values) counts[clamp(Math.floor(v * BINS), 0, BINS - 1)] += 1;
  return counts.map((count) => (100 * count) / values.length);
}

function quantile(sorted, share) {
  const at = share * (sorted.length - 1),
    below = Math.floor(at);
  return sorted[below] + (at - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
}

function rowsChart(host, width, series, label) {
  if (!series.length) return nothingSelected(host);
  const names = nameRoom(series, width, 14);
  const rise = series.length > 8 ? 44 : width > 620 ? 62 : 54,
    top = 8,
    bottom = top + series.length * rise;
  const root = canvas(host, width, bottom + 42, label);
  const x = linear(0, 1, names, width - 12);
  const shares = series.map((s) => histogram(s.values));
  const high = linear(0, Math.max(...shares.flat()), 0, rise - 12);
  const steps = ticks(0, 1, width > 500 ? 10 : 5);
  numbersBelow(root, x, steps, top, bottom, (value) => value.toFixed(1));
  write(root, x(0.5), bottom + 36, "Test accuracy of a client", "title", "middle");
  series.forEach((s, i) => {
    const base = top + (i + 1) * rise;
    shares[i].forEach((share, bin) => {
      if (share)
        root.append(
          svg("rect", {
            x: x(bin / BINS) + 0.5,
            width: x(1 / BINS) - x(0) - 1,
            y: base - high(share),
            height: high(share),
            class: "fill crisp",
            style: s.style,
          }),
        );
    });
    const middle = quantile(s.values, 0.5);
    rule(root, [x(0), base], [x(1), base], "axis");
    root.append(
      svg("path", { d: `M${x(middle)},${base}v-13`, stroke: "var(--panel)", "stroke-width": 5 }),
      svg("path", { d: `M${x(middle)},${base}v-12`, stroke: "var(--ink)", "stroke-width": 2 }),
    );
    rowName(root, names - 12, base - 8, s);
  });
  const levels = Object.entries({ "90 % above": 0.1, Median: 0.5, "10 % above": 0.9 });
  const rows = (s) => levels.map(([name, q]) => ({ name, value: short(quantile(s.values, q)) }));
  interactive(root, width, series.length, rowUnder(top, rise, bottom), (i) => ({
    x: x(quantile(series[i].values, 0.5)),
    y: top + i * rise + 14,
    title: series[i].label,
    rows: rows(series[i]),
  }));
}

// Bars for single clients, sorted. options: values, style(value), xTitle, yTitle, label, plus,
// tip(place) and open(place), which a click or Enter calls.
function sortedBars(host, width, options) {
  const { values, label } = options;
  const height = width > 620 ? 300 : 230;
  const [low, high] = [Math.min(0, ...values) * 1.06, Math.max(0, ...values) * 1.06];
  const yTicks = ticks(low, high, 7);
  const frame = { left: 50, right: width - 8, top: 26, bottom: height - 30, yTicks, xTicks: [] };
  frame.x = linear(0, values.length, frame.left, frame.right);
  frame.y = linear(low, high || 1, frame.bottom, frame.top);
  const root = canvas(host, width, height, `${label}; Enter opens a client`);
  root.classList.add("opens");
  const yText = (v) => (options.plus && v > 0 ? "+" : "") + tickText(yTicks)(v);
  axes(root, frame, { floor: false, xTitle: options.xTitle, yTitle: options.yTitle, yText });
  const thin = (frame.right - frame.left) / values.length;
  const bars = values.map((value, i) => {
    const bar = svg("rect", {
      x: frame.x(i),
      width: Math.max(0.6, thin - (thin > 5 ? 1 : 0)),
      y: Math.min(frame.y(value), frame.y(0)),
      height: Math.abs(frame.y(value) - frame.y(0)),
      class: "fill crisp",
      style: options.style(value),
    });
    root.append(bar);
    return bar;
  });
  rule(root, [frame.left, frame.y(0)], [frame.right, frame.y(0)], "axis");
  const find = (px) =>
    px < frame.left || px > frame.right
      ? -1
      : clamp(Math.floor((px - frame.left) / thin), 0, values.length - 1);
  const rest = () => root.querySelector(".at")?.classList.remove("at");
  const show = (i) => {
    rest();
    bars[i].classList.add("at");
    return { x: frame.x(i + 0.5), y: frame.top + 30, ...options.tip(i) };
  };
  interactive(root, width, values.length, find, show, rest, options.open);
}
