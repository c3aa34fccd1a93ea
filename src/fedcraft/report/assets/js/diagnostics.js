// The rest of the charts, and the table of them all.
function conflictsChart(host, width, problem, pick, label) {
  const { stages, methods } = problem.charts.conflicts;
  const view = methods[pick("conflict")];
  const looks = {
    average: ["var(--s1)", "dash", "square"],
    reference: ["var(--s5)", "dot", "triangle"],
    after: ["var(--s2)", "solid", "circle"],
  };
  const series = Object.entries(view.counts || {}).map(([stage, y]) => ({
    label: stages[stage],
    style: `--c: ${looks[stage][0]}`,
    dash: looks[stage][1],
    marker: looks[stage][2],
    strong: stage === "after",
    x: view.rounds,
    y,
  }));
  if (width <= 620)
    legend(
      host,
      series.map((s) => [s.label, s.style]),
    );
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
  const all = Object.values(problem.charts.conflicts.methods).flatMap((view) =>
    (view.cosine || []).flat(),
  );
  const largest = all.reduce((most, v) => Math.max(most, Math.abs(v || 0)), 0);
  return [0.1, 0.25, 0.5, 0.75].find((step) => step >= largest) || 1;
}

function cosineChart(host, width, problem, pick, label) {
  const view = problem.charts.conflicts.methods[pick("conflict")];
  if (!view.cosine) return;
  const most = cosineRange(problem);
  const stops = [-1, -0.5, -0.2, -0.05, 0, 0.05, 0.2, 0.5, 1];
  const colours = stops.map((s) => `${diverging(most)(s * most)} ${50 + 50 * s}%`);
  rampLegend(host, `−${most}`, `+${most}`, `linear-gradient(to right, ${colours.join(", ")})`);
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

function ratesChart(host, width, problem, _, label) {
  const { grids } = problem.charts.rates;
  const shown = shownMethods(problem).filter((m) => grids[m.key]);
  const values = shown.flatMap((m) => grids[m.key].mean.flat()).filter(finite);
  if (!values.length) {
    host.append(html("p", { class: "absent" }, "No method with a grid is selected."));
    return;
  }
  const low = Math.min(...values),
    high = Math.max(...values),
    share = linear(low, high, 0.04, 1);
  rampLegend(
    host,
    low.toFixed(3),
    high.toFixed(3),
    `linear-gradient(to right in oklab, ${ramp(0.04)}, var(--seq))`,
  );
  const box = html("div", { class: "grids" });
  host.append(box);
  for (const m of shown) {
    const { client_lr, server_lr, mean, chosen } = grids[m.key];
    const room = Math.min(width, 64 + 76 * server_lr.length);
    const cell = html("div", { style: `width: ${room}px` }, html("h3", {}, m.label));
    box.append(cell);
    heatMap(cell, room, {
      rows: client_lr.map(String),
      columns: server_lr.map(String),
      cells: mean,
      label: `${m.label}: ${label}`,
      rowHeight: 34,
      most: 76,
      fill: (v) => ramp(share(v)),
      text: (v) => v.toFixed(3),
      inverse: (v) => share(v) > 0.5,
      frameAt: chosen,
      xTitle: "Server learning rate",
      yTitle: "Client learning rate",
      tip: (r, c) => ({
        title: `${m.label}: ${short(mean[r][c])}`,
        rows: [
          { name: "Client lr", value: String(client_lr[r]) },
          { name: "Server lr", value: String(server_lr[c]) },
        ],
      }),
    });
  }
}

function labelsChart(host, width, problem, _, label) {
  const { clients, labels, shares, samples } = problem.charts.labels;
  rampLegend(host, "0 %", "100 %", `linear-gradient(to right in oklab, var(--mid), var(--seq))`);
  heatMap(host, width, {
    rows: clients,
    columns: labels,
    cells: shares,
    fill: ramp,
    label,
    rowHeight: 15,
    most: 96,
    xTitle: "Label",
    yTitle: "Client",
    tip: (r, c) => ({
      title: `Client ${clients[r]}, ${samples[r]} samples`,
      rows: [{ name: `Label ${labels[c]}`, value: `${(100 * shares[r][c]).toFixed(0)} %` }],
    }),
  });
}

function timingChart(host, width, problem, _, label) {
  const { phases, methods, memory } = problem.charts.timing;
  const looks = phases.map((_, i) => `--c: var(--s${[2, 0, 6, 1, 3, 4, 5, 7][i % 8]})`);
  const rows = shownMethods(problem)
    .filter((m) => methods[m.key])
    .map((m) => {
      const parts = phases.map((p, i) => ({
        value: methods[m.key][p] || 0,
        style: looks[i],
        name: p,
      }));
      const tip = parts.map((p) => ({
        name: p.name,
        style: p.style,
        value: `${short(p.value)} s`,
      }));
      if (memory[m.key]) tip.push({ name: "Peak memory", value: `${memory[m.key]} MB` });
      return { label: m.label, style: colour(m), parts, end: `${short(sum(parts))} s`, tip };
    });
  legend(
    host,
    phases.map((p, i) => [p, looks[i]]),
  );
  barChart(host, width, { rows, label, xTitle: "Seconds per round" });
}

const CHARTS = {
  convergence: convergenceChart,
  distribution: distributionChart,
  radar: bestMeanWorst,
  spread: spreadChart,
  winners: winnersChart,
  gains: gainsDetail,
  conflicts: conflictsChart,
  cosine: cosineChart,
  correction: correctionChart,
  rates: ratesChart,
  labels: labelsChart,
  timing: timingChart,
};
