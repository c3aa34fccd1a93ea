// Heat maps over learning rates and over labels.
function ratesChart(host, width, problem, _, label) {
  const { grids } = problem.charts.rates;
  const shown = shownMethods(problem).filter((m) => grids[m.key]);
  const values = shown.flatMap((m) => grids[m.key].mean.flat()).filter(finite);
  if (!values.length) return paragraph(host, "absent", "No method with a grid is selected.");
  const low = Math.min(...values),
    high = Math.max(...values),
    share = linear(low, high, 0.04, 1);
  const css = `linear-gradient(to right in oklab, ${ramp(0.04)}, var(--seq))`;
  rampLegend(host, low.toFixed(3), high.toFixed(3), css);
  const box = html("div", { class: "grids" });
  host.append(box);
  for (const m of shown) rateMap(box, width, m, grids[m.key], share, label);
}

function rateMap(box, width, m, grid, share, label) {
  const { client_lr, server_lr, mean, seeds, blanks, chosen, edges } = grid;
  const room = Math.min(width, 64 + 76 * server_lr.length);
  const cell = html("div", { style: `width: ${Math.max(room, 210)}px` }, html("h3", {}, m.label));
  box.append(cell);
  paragraph(cell, "see", seedText(seeds, chosen));
  const fewest = Math.min(...seeds.flat().filter(Boolean));
  const uneven = new Set(seeds.flat().filter(Boolean)).size > 1;
  heatMap(cell, room, {
    rows: client_lr.map(String),
    columns: server_lr.map(String),
    cells: mean,
    label: `${m.label}: ${label}`,
    rowHeight: uneven ? 40 : 34,
    most: 76,
    fill: (v) => ramp(share(v)),
    text: (v) => v.toFixed(3),
    below: (r, c) => (uneven && seeds[r][c] > fewest ? `${seeds[r][c]} seeds` : ""),
    blank: (r, c) => blanks[r][c],
    ink: (v) => (share(v) > 0.65 ? "inverse" : share(v) > 0.45 ? "half" : ""),
    frameAt: chosen,
    xTitle: "Server learning rate",
    yTitle: "Client learning rate",
    tip: (r, c) => ({
      title: `${m.label}: ${blanks[r][c] || short(mean[r][c])}`,
      rows: [
        { name: "Client lr", value: String(client_lr[r]) },
        { name: "Server lr", value: String(server_lr[c]) },
        { name: "Seeds", value: String(seeds[r][c]) },
      ],
    }),
  });
  if (edges.length)
    paragraph(cell, "edge", `Best at the edge of the grid: ${edges.join(" and ")}.`);
}

const seedCount = (n) => `${n} ${n === 1 ? "seed" : "seeds"}`;

function seedText(seeds, [row, column]) {
  const known = seeds.flat().filter(Boolean);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  if (low === high) return `${seedCount(low)} per cell`;
  return `${seedCount(low)} per cell, ${seeds[row][column]} in the framed one`;
}

function labelsChart(host, width, problem, _, label) {
  const { group, ids, clients, labels, shares, samples, most } = problem.charts.labels;
  const css = "linear-gradient(to right in oklab, var(--mid), var(--seq))";
  rampLegend(host, "0 %", `${(100 * most).toFixed(0)} %`, css);
  heatMap(host, width, {
    rows: clients,
    columns: labels,
    cells: shares,
    fill: (v) => ramp(v / (most || 1)),
    label: `${label}; Enter opens a client`,
    rowHeight: 15,
    most: 96,
    xTitle: "Label",
    yTitle: "Client",
    open: groupsOf(problem)[group]
      ? (r) => openClient(problem, group, clientAt(groupsOf(problem)[group], ids[r]))
      : null,
    tip: (r, c) => ({
      title: `Client ${clients[r]}, ${samples[r]} samples`,
      rows: [{ name: `Label ${labels[c]}`, value: `${(100 * shares[r][c]).toFixed(0)} %` }],
    }),
  });
}
