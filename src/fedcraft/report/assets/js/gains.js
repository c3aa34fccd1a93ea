// Who gains and who loses: counts by method, and every client sorted. A click opens the client.
const mean = (values) => values.reduce((total, v) => total + v, 0) / values.length;
const clientsOf = (part) => part.winners + part.losers + part.same;

// Clients are counted seed by seed and averaged; shares where the numbers of clients differ.
function winnersChart(host, width, problem, _, label) {
  const { methods, baseline } = problem.charts.gains;
  const shown = shownMethods(problem).filter((m) => methods[m.key]);
  const totals = new Set(shown.flatMap((m) => methods[m.key].map(clientsOf)));
  const shares = totals.size > 1;
  const most = Math.max(1, ...shown.map((m) => methods[m.key].length));
  const rows = shown.map((m) => {
    const parts = methods[m.key];
    const scaled = (name) => mean(parts.map((p) => (shares ? (100 * p[name]) / clientsOf(p) : p[name])));
    const text = (value) => Math.round(value) + (shares ? " %" : "");
    return {
      label: m.label,
      style: colour(m),
      parts: [
        { value: scaled("winners"), style: "--c: var(--pos)" },
        { value: -scaled("losers"), style: "--c: var(--neg)" },
      ],
      end: text(scaled("winners")),
      start: text(scaled("losers")),
      tip: parts.map((p) => ({
        name: `Seed ${p.seed}`,
        value: `${p.winners} gain, ${p.losers} lose, ${p.same} same`,
      })),
    };
  });
  legend(host, [
    [`Worse than under ${baseline}`, "--c: var(--neg)"],
    ["Better", "--c: var(--pos)"],
  ]);
  const of = shares ? "Share of the clients, %" : `Clients, of ${[...totals][0]}`;
  const xTitle = most > 1 ? `${of}; mean of ${most} seeds` : of;
  barChart(host, width, { rows, label, xTitle, xText: (v) => String(Math.abs(v)), whole: true });
}

// The part of one seed, sorted by gain: [client's number, gain].
function gainPart(problem, pick) {
  const parts = problem.charts.gains.methods[pick("gain")];
  const part = parts.find((p) => String(p.seed) === pick("gain-seed")) || parts[0];
  const gains = sharesOf(part.gain).map((v, i) => [numberAt(part.clients, i), v - 1]);
  return { part, gains: gains.sort((a, b) => a[1] - b[1]) };
}

function gainsDetail(host, width, problem, pick, label) {
  const { baseline } = problem.charts.gains;
  const { part, gains } = gainPart(problem, pick);
  const group = groupsOf(problem)[part.group];
  const key = pick("gain");
  const name = methodOf(problem, key).label;
  const values = finals(group, group.methods[key]);
  const place = (i) => clientAt(group, gains[i][0]);
  sortedBars(host, width, {
    values: gains.map(([, gain]) => gain),
    style: (gain) => `--c: var(${gain < 0 ? "--neg" : "--pos"})`,
    label,
    xTitle: `${gains.length} clients of seed ${part.seed}, sorted by gain`,
    yTitle: `Accuracy, ${name} minus ${baseline}`,
    plus: true,
    open: (i) => openClient(problem, part.group, place(i)),
    tip: (i) => ({
      title: clientName(group, place(i)),
      rows: [
        { name: baseline, value: short(values[place(i)] - gains[i][1]) },
        { name, value: short(values[place(i)]) },
        { name: "Difference", value: signed(gains[i][1]) },
      ],
    }),
  });
  const { winners, losers, same, seed } = part;
  const text = `${name}, seed ${seed}: ${winners} clients gain, ${losers} lose, ${same} stay the same.`;
  paragraph(host, "note", text);
}

// Every client under one method, the least accurate first.
function rankedClients(problem, pick) {
  const at = groupOfSeed(problem, pick("client-seed"));
  const group = groupsOf(problem)[at];
  const keys = Object.keys(group.methods);
  const key = keys.includes(pick("client-method")) ? pick("client-method") : keys[0];
  const values = finals(group, group.methods[key]);
  const order = [...values.keys()].filter((i) => finite(values[i]));
  return { at, group, key, values, order: order.sort((a, b) => values[a] - values[b]) };
}

function clientsChart(host, width, problem, pick, label) {
  const { at, group, key, values, order } = rankedClients(problem, pick);
  if (!order.length)
    return paragraph(host, "absent", "No client of this seed has been evaluated yet.");
  const m = methodOf(problem, key);
  sortedBars(host, width, {
    values: order.map((i) => values[i]),
    style: () => colour(m),
    label,
    xTitle: `${order.length} clients of seed ${group.seed}, sorted`,
    yTitle: `Test accuracy under ${m.label}`,
    open: (i) => openClient(problem, at, order[i]),
    tip: (i) => ({
      title: clientName(group, order[i]),
      rows: Object.keys(group.methods)
        .filter((k) => !STATE.hidden.has(k))
        .map((k) => ({
          name: methodOf(problem, k).label,
          style: colour(methodOf(problem, k)),
          value: short(finals(group, group.methods[k])[order[i]]),
        }))
        .concat([{ name: "Click or Enter", value: "opens this client" }]),
    }),
  });
}
