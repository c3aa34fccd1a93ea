// Which data goes into which chart. Each takes (host, width, problem, pick, label).
const shownMethods = (problem) => problem.methods.filter((m) => !STATE.hidden.has(m.key));
const methodOf = (problem, key) => problem.methods.find((m) => m.key === key);

const looks = ({ label, dash, marker, strong, ...m }) =>
  ({ label, style: colour(m), dash, marker, strong });

function seriesOf(problem, list, build) {
  return list
    .map((item) => ({ item, m: methodOf(problem, item.method) }))
    .filter(({ m }) => !STATE.hidden.has(m.key))
    .map(({ item, m }) => ({ ...looks(m), ...build(item, m) }));
}

function legend(host, items) {
  const entries = items.map(([name, style]) => html("span", {}, html("i", { style }), name));
  host.append(html("div", { class: "legend" }, ...entries));
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
    const rows = seriesOf(problem, list, (s) => ({ values: sharesOf(s.values) }));
    return rowsChart(host, width, rows, label);
  }
  const ecdf = shape === "ecdf";
  const edges = Array.from({ length: ecdf ? 101 : BINS + 1 }, (_, i) => i / (ecdf ? 100 : BINS));
  const values = new Map(list.map((s) => [s.method, sharesOf(s.values)]));
  const series = seriesOf(problem, list, (s, m) => ({
    x: edges,
    marker: null,
    step: true,
    area: !ecdf && (m.strong || m.key === "fedavg"),
    y: ecdf
      ? edges.map((e) => (100 * values.get(s.method).filter((v) => v <= e + 1e-9).length) / values.get(s.method).length)
      : ((bins) => [...bins, bins[BINS - 1]])(histogram(values.get(s.method))),
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
  if (!spokes.length) return nothingSelected(host);
  legend(host, RINGS.map((r) => [r.name, r.style]));
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
