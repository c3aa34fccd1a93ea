// Charts about conflicts and time.
function conflictsChart(host, width, problem, pick, label) {
  const { stages, methods } = problem.charts.conflicts;
  const view = methods[pick("conflict")];
  const drawn = {
    average: ["var(--s1)", "dash", "square"],
    reference: ["var(--s5)", "dot", "triangle"],
    after: ["var(--s2)", "solid", "circle"],
  };
  const series = Object.entries(view.counts || {}).map(([stage, y]) => ({
    label: stages[stage],
    style: `--c: ${drawn[stage][0]}`,
    dash: drawn[stage][1],
    marker: drawn[stage][2],
    strong: stage === "after",
    x: view.rounds,
    y,
  }));
  if (width <= 620) legend(host, series.map((s) => [s.label, s.style]));
  lineChart(host, width, {
    series,
    label,
    zero: true,
    xTitle: "Round",
    yTitle: "Clients in conflict",
    height: width > 620 ? 290 : 240,
  });
}

// One scale for all methods, so that switching between them compares.
function cosineRange(problem) {
  const all = Object.values(problem.charts.conflicts?.methods || {}).flatMap((view) =>
    (view.cosine || []).flat(),
  );
  return roundedRange(all);
}

function roundedRange(cosines) {
  const largest = cosines.reduce((most, v) => Math.max(most, Math.abs(v || 0)), 0);
  return [0.1, 0.25, 0.5, 0.75].find((step) => step >= largest) || 1;
}

function cosineLegend(host, most) {
  const stops = [-1, -0.5, -0.2, -0.05, 0, 0.05, 0.2, 0.5, 1];
  const colours = stops.map((s) => `${diverging(most)(s * most)} ${50 + 50 * s}%`);
  rampLegend(host, `−${most}`, `+${most}`, `linear-gradient(to right, ${colours.join(", ")})`);
}

function cosineChart(host, width, problem, pick, label) {
  const view = problem.charts.conflicts.methods[pick("conflict")];
  if (!view.cosine) return;
  if (view.recorded) paragraph(host, "see", view.recorded);
  const most = cosineRange(problem);
  cosineLegend(host, most);
  heatMap(host, width, {
    rows: view.layers,
    columns: view.bins.map(String),
    cells: view.cosine,
    fill: diverging(most),
    label,
    rowHeight: clamp(480 / view.layers.length, 9, 26),
    xTitle: "Round",
    yTitle: "Layer",
    tip: (r, c) => ({
      title: view.layers[r],
      rows: [
        { name: "From round", value: String(view.bins[c]) },
        { name: "Smallest cosine", value: short(view.cosine[r][c], 2) },
      ],
    }),
  });
}

function correctionChart(host, width, problem, pick, label) {
  const key = pick("conflict"),
    view = problem.charts.conflicts.methods[key];
  if (!view.correction) return;
  const m = methodOf(problem, key);
  lineChart(host, width, {
    series: [{ label: m.label, style: colour(m), ...view.correction }],
    label,
    names: false,
    zero: true,
    xTitle: "Round",
    yTitle: "Norm of the correction",
    height: 220,
  });
}

// Milliseconds below a second; three digits, so that different times are written differently.
function timeUnit(seconds) {
  const [factor, unit, word] =
    Math.max(...seconds) < 1 ? [1000, "ms", "Milliseconds"] : [1, "s", "Seconds"];
  const digits = (value) => (value >= 1000 ? value.toFixed(0) : value.toPrecision(3));
  return { factor, title: `${word} per round`, text: (s) => `${digits(s * factor)} ${unit}` };
}

function timingChart(host, width, problem, _, label) {
  const { phases, methods, memory } = problem.charts.timing;
  const { factor, text, title } = timeUnit(Object.values(methods).map((seconds) => Math.max(0, ...Object.values(seconds))));
  const colours = phases.map((_, i) => `--c: var(--s${[2, 0, 6, 1, 3, 4, 5, 7][i % 8]})`);
  const rows = shownMethods(problem)
    .filter((m) => methods[m.key])
    .map((m) => {
      const parts = phases.map((p, i) => ({
        value: methods[m.key][p] || 0,
        style: colours[i],
        name: p,
      }));
      const tip = parts.map((p) => ({ name: p.name, style: p.style, value: text(p.value) }));
      if (memory[m.key]) tip.push({ name: "Peak memory", value: `${memory[m.key]} MB` });
      return { label: m.label, style: colour(m), parts, end: text(sum(parts)), tip };
    });
  legend(host, phases.map((p, i) => [p, colours[i]]));
  const xText = (v) => String(+(v * factor).toPrecision(6));
  barChart(host, width, { rows, label, xTitle: title, xText });
}
