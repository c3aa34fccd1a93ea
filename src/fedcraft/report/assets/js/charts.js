// Which data goes into which chart. Each takes (host, width, problem, pick, label).
const shownMethods = (problem) => problem.methods.filter((m) => !STATE.hidden.has(m.key));
const methodOf = (problem, key) => problem.methods.find((m) => m.key === key);

function seriesOf(problem, list, build) {
  return list
    .map((item) => ({ item, m: methodOf(problem, item.method) }))
    .filter(({ m }) => !STATE.hidden.has(m.key))
    .map(({ item, m }) => ({
      label: m.label,
      style: colour(m),
      dash: m.dash,
      marker: m.marker,
      strong: m.strong,
      ...build(item, m),
    }));
}

function legend(host, items) {
  host.append(
    html(
      "div",
      { class: "legend" },
      ...items.map(([name, style]) => html("span", {}, html("i", { style }), name)),
    ),
  );
}

function convergenceChart(host, width, problem, pick, label) {
  const { metrics, titles } = problem.charts.convergence;
  const metric = pick("metric") in metrics ? pick("metric") : Object.keys(metrics)[0];
  const series = seriesOf(problem, metrics[metric], (s) => ({ x: s.x, y: s.y, sd: s.sd }));
  lineChart(host, width, {
    series,
    label: `${titles[metric]}: ${label}`,
    xTitle: "Round",
    yTitle: titles[metric],
  });
}

function distributionChart(host, width, problem, pick, label) {
  const list = problem.charts.distribution.series;
  const shape = pick("shape");
  if (shape === "rows") {
    rowsChart(
      host,
      width,
      seriesOf(problem, list, (s) => ({ values: s.values })),
      label,
    );
    return;
  }
  const ecdf = shape === "ecdf";
  const edges = Array.from({ length: ecdf ? 101 : BINS + 1 }, (_, i) => i / (ecdf ? 100 : BINS));
  const series = seriesOf(problem, list, (s, m) => ({
    x: edges,
    marker: null,
    step: true,
    area: !ecdf && (m.strong || m.key === "fedavg"),
    y: ecdf
      ? edges.map((e) => (100 * s.values.filter((v) => v <= e + 1e-9).length) / s.values.length)
      : ((bins) => [...bins, bins[BINS - 1]])(histogram(s.values)),
  }));
  lineChart(host, width, {
    series,
    label,
    xRange: [0, 1],
    zero: true,
    names: false,
    yRange: ecdf ? [0, 100] : undefined,
    xTitle: "Test accuracy of a client",
    yTitle: ecdf ? "Clients at or below, %" : "Clients, %",
    value: (v) => `${v.toFixed(1)} %`,
    title: (v) =>
      ecdf
        ? `Accuracy ≤ ${v.toFixed(2)}`
        : `Accuracy ${Math.min(v, 1 - 1 / BINS).toFixed(2)} to ${Math.min(v + 1 / BINS, 1).toFixed(2)}`,
  });
}

function bestMeanWorst(host, width, problem, _, label) {
  const all = problem.charts.radar.spokes;
  const spokes = shownMethods(problem)
    .filter((m) => all[m.key])
    .map((m) => ({ label: m.label, style: colour(m), values: all[m.key] }));
  if (!spokes.length) {
    host.append(html("p", { class: "absent" }, "No method is selected."));
    return;
  }
  legend(
    host,
    RINGS.map((r) => [r.name, r.style]),
  );
  const crowded = spokes.length > (width < 420 ? 9 : 18);
  (spokes.length < 3 || crowded ? rangeChart : radarChart)(host, width, spokes, label);
}

function spreadChart(host, width, problem, _, label) {
  const bars = problem.charts.spread.bars;
  const rows = shownMethods(problem)
    .filter((m) => bars[m.key])
    .map((m) => {
      const [value, sd] = bars[m.key];
      const tip = [
        { name: "Std over clients", value: short(value) },
        ...(finite(sd) ? [{ name: "± over seeds", value: short(sd) }] : []),
      ];
      return {
        label: m.label,
        style: colour(m),
        parts: [{ value, style: colour(m) }],
        sd,
        end: value.toFixed(3),
        tip,
        value,
      };
    })
    .sort((a, b) => a.value - b.value);
  barChart(host, width, { rows, label, xTitle: "Standard deviation of client accuracy" });
}

// Counts, or shares of clients where the methods have different numbers of seeds.
function winnersChart(host, width, problem, _, label) {
  const { methods, baseline } = problem.charts.gains;
  const shown = shownMethods(problem).filter((m) => methods[m.key]);
  const shares = new Set(shown.map((m) => methods[m.key].gain.length)).size > 1;
  const unit = shares ? " %" : "";
  const rows = shown.map((m) => {
    const { winners, losers, same, gain } = methods[m.key];
    const scaled = (n) => (shares ? Math.round((100 * n) / gain.length) : n);
    const counts = { Gain: winners, Lose: losers, Same: same };
    return {
      label: m.label,
      style: colour(m),
      parts: [
        { value: scaled(winners), style: "--c: var(--pos)" },
        { value: -scaled(losers), style: "--c: var(--neg)" },
      ],
      end: scaled(winners) + unit,
      start: scaled(losers) + unit,
      tip: Object.entries(counts).map(([name, n]) => ({ name, value: `${n} of ${gain.length}` })),
    };
  });
  legend(host, [
    [`Worse than under ${baseline}`, "--c: var(--neg)"],
    ["Better", "--c: var(--pos)"],
  ]);
  const xTitle = shares ? "Share of the clients, %" : "Clients";
  barChart(host, width, { rows, label, xTitle, xText: (v) => String(Math.abs(v)) });
}

function gainsDetail(host, width, problem, pick, label) {
  const { methods, baseline } = problem.charts.gains;
  const key = pick("gain");
  const { winners, losers, same, seeds } = methods[key];
  const name = methodOf(problem, key).label;
  gainsChart(host, width, methods[key], label, { method: name, baseline });
  const pooled = seeds > 1 ? ` (clients of ${seeds} seeds together)` : "";
  host.append(
    html(
      "p",
      { class: "note" },
      `${name}: ${winners} clients gain, ${losers} lose, ${same} stay the same${pooled}.`,
    ),
  );
}
