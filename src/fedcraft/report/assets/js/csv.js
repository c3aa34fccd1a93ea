// The numbers behind a chart, as a CSV file. Each table is a list of rows, names first.
const labelOf = (problem, key) => methodOf(problem, key).label;
const across = (problem, found, row) =>
  Object.entries(found).flatMap(([key, value]) => row(labelOf(problem, key), value));

const CSV_TABLES = {
  convergence: (problem) => [
    ["metric", "method", "round", "mean", "sd_over_seeds"],
    ...Object.entries(problem.charts.convergence.metrics).flatMap(([metric, list]) =>
      list.flatMap((s) =>
        s.x.map((x, i) => [metric, labelOf(problem, s.method), x, s.y[i], s.sd ? s.sd[i] : null]),
      ),
    ),
  ],
  distribution: (problem) => [
    ["method", "accuracy"],
    ...problem.charts.distribution.series.flatMap((s) =>
      sharesOf(s.values).map((v) => [labelOf(problem, s.method), v]),
    ),
  ],
  radar: (problem) => [
    ["method", "best10", "mean", "worst10"],
    ...across(problem, problem.charts.radar.spokes, (name, values) => [[name, ...values]]),
  ],
  spread: (problem) => [
    ["method", "std", "sd_over_seeds"],
    ...across(problem, problem.charts.spread.bars, (name, values) => [[name, ...values]]),
  ],
  clients: (problem) => [
    ["seed", "client", "name", "method", "accuracy", "rank"],
    ...groupsOf(problem).flatMap((group) =>
      across(problem, group.methods, (name, member) => {
        const values = finals(group, member);
        return values
          .map((v, i) => [group.seed, clientId(group, i), group.names[i] || "", name, v, rankOf(values, i)?.rank])
          .filter((row) => finite(row[4]));
      }),
    ),
  ],
  winners: (problem) => [
    ["method", "seed", "gain", "lose", "same"],
    ...across(problem, problem.charts.gains.methods, (name, parts) =>
      parts.map((p) => [name, p.seed, p.winners, p.losers, p.same]),
    ),
  ],
  gains: (problem) => [
    ["method", "seed", "client", "gain"],
    ...across(problem, problem.charts.gains.methods, (name, parts) =>
      parts.flatMap((p) =>
        sharesOf(p.gain).map((v, i) => [name, p.seed, numberAt(p.clients, i), +(v - 1).toFixed(4)]),
      ),
    ),
  ],
  conflicts: (problem) => [
    ["method", "round", ...Object.keys(problem.charts.conflicts.stages)],
    ...across(problem, problem.charts.conflicts.methods, (name, view) =>
      (view.rounds || []).map((round, i) => [
        name,
        round,
        ...Object.keys(problem.charts.conflicts.stages).map((stage) => view.counts[stage]?.[i]),
      ]),
    ),
  ],
  cosine: (problem) => [
    ["method", "layer", "from_round", "smallest_cosine"],
    ...across(problem, problem.charts.conflicts.methods, (name, view) =>
      (view.cosine || []).flatMap((row, r) => row.map((v, c) => [name, view.layers[r], view.bins[c], v])),
    ),
  ],
  correction: (problem) => [
    ["method", "round", "correction_norm"],
    ...across(problem, problem.charts.conflicts.methods, (name, view) =>
      (view.correction?.x || []).map((x, i) => [name, x, view.correction.y[i]]),
    ),
  ],
  rates: (problem) => [
    ["method", "client_lr", "server_lr", "mean", "seeds", "blank"],
    ...across(problem, problem.charts.rates.grids, (name, g) =>
      g.mean.flatMap((row, r) =>
        row.map((v, c) => [name, g.client_lr[r], g.server_lr[c], v, g.seeds[r][c], g.blanks[r][c]]),
      ),
    ),
  ],
  labels: (problem) => [
    ["client", "samples", "label", "share"],
    ...problem.charts.labels.shares.flatMap((row, r) =>
      row.map((v, c) => [
        problem.charts.labels.clients[r],
        problem.charts.labels.samples[r],
        problem.charts.labels.labels[c],
        v,
      ]),
    ),
  ],
  timing: (problem) => [
    ["method", "phase", "seconds_per_round"],
    ...across(problem, problem.charts.timing.methods, (name, seconds) =>
      Object.entries(seconds).map(([phase, s]) => [name, phase, s]),
    ),
  ],
};

const CLIENT_TABLES = {
  "client-accuracy": ({ problem, group, i }) => [
    ["method", "round", "accuracy"],
    ...across(problem, group.methods, (name, member) =>
      curveOf(member, i).map((v, r) => [name, member.rounds[r], v]),
    ),
  ],
  "client-labels": ({ group, i }) => [["label", "samples"], ...(group.counts ? labelsOf(group, i) : [])],
  "client-cosines": ({ problem, group, i }) => [
    ["method", "layer", "round", "cosine"],
    ...across(problem, group.methods, (name, member) => {
      const found = cosinesOf(member, i);
      return (found ? found.layers : []).flatMap((layer, q) =>
        found.rounds.map((round, r) => [name, layer, round, found.cells[q][r]]),
      );
    }),
  ],
};

function csvText(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function csvButton(figure, table, problem, client) {
  if (!figure.querySelector("svg")) return;
  const what = [problem.title, figure.dataset.chart, ...(client === undefined ? [] : [client])];
  const name = what.join("-").toLowerCase().replace(/[^a-z0-9]+/g, "-");
  const button = html("button", { type: "button", class: "csv" }, "Download CSV");
  button.setAttribute("aria-label", `Download CSV: ${figure.dataset.label}`);
  button.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([csvText(table())], { type: "text/csv" }));
    const link = html("a", { href: address, download: `${name}.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  });
  figure.append(button);
}
