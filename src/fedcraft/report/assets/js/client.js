// The view of one client: a dialog beside the page.
const sheet = document.getElementById("client");
let opened = null; // { problem: number, seed, client }: survives a new page, unlike places in lists

function openClient(problem, at, i) {
  const group = groupsOf(problem)[at];
  if (!group || i < 0) return;
  opened = { problem: DATA.indexOf(problem), seed: group.seed, client: clientId(group, i) };
  if (!sheet.open) sheet.showModal();
  drawClient();
  sheet.scrollTop = 0;
  remember(`#client=${opened.problem},${opened.seed},${opened.client}`);
}

// The address names the client, so that a link opens it.
function remember(hash) {
  attempt(() => history.replaceState(null, "", hash || location.pathname + location.search));
}

function openFromAddress() {
  const [, problem, seed, client] = location.hash.match(/^#client=(\d+),(\d+),(\d+)$/) || [];
  if (!DATA[problem] || !groupsOf(DATA[problem]).length) return;
  const at = groupOfSeed(DATA[problem], seed);
  openClient(DATA[problem], at, clientAt(groupsOf(DATA[problem])[at], Number(client)));
}

function findOpened() {
  const problem = DATA[opened.problem];
  if (!problem || !groupsOf(problem).length) return null;
  const at = groupOfSeed(problem, opened.seed);
  const i = clientAt(groupsOf(problem)[at], opened.client);
  return i < 0 ? null : { problem, at, group: groupsOf(problem)[at], i };
}

function drawClient() {
  const found = opened && findOpened();
  if (!found) {
    sheet.close();
    return;
  }
  const { problem, group, i } = found;
  const id = `Client ${clientId(group, i)}`;
  document.getElementById("client-title").textContent = group.names[i] || id;
  document.getElementById("client-data").textContent = [
    ...(group.names[i] ? [id] : []),
    `seed ${group.seed}`,
    ...(group.counts ? [`trains on ${samplesOf(group, i)} samples`] : []),
    ...(finite(numberAt(group.test, i)) ? [`tested on ${numberAt(group.test, i)}`] : []),
  ].join(" · ");
  fillClientTable(problem, group, i);
  fillCosinePick(problem, group);
  document.getElementById("client-notes").textContent = problem.charts.client.notes.join(" ");
  sheet.querySelectorAll(".chart").forEach((figure) => {
    const width = printing ? PRINT_WIDTH.whole : Math.floor(figure.clientWidth);
    figure.replaceChildren();
    CLIENT_CHARTS[figure.dataset.chart](figure, width, found, figure.dataset.label);
    csvButton(figure, () => CLIENT_TABLES[figure.dataset.chart](found), problem, clientId(group, i));
  });
}

function fillClientTable(problem, group, i) {
  document.getElementById("client-rank").textContent = `Rank of ${clientCount(group)}`;
  const rows = problem.methods
    .filter((m) => group.methods[m.key])
    .map((m) => {
      const member = group.methods[m.key];
      const values = finals(group, member);
      const place = rankOf(values, i);
      const met = conflictsOf(member, i);
      const part = member.part ? numberAt(member.part, i) : "–";
      const dot = html("span", { class: "dot", style: colour(m) }, "● ");
      return html(
        "tr",
        {},
        html("th", { scope: "row" }, dot, m.label),
        html("td", {}, finite(values[i]) ? values[i].toFixed(3) : "–"),
        html("td", {}, place ? place.rank : "–"),
        html("td", {}, part),
        html("td", {}, met ? `${met.against} of ${met.of}` : "–"),
      );
    });
  sheet.querySelector("tbody").replaceChildren(...rows);
}

function fillCosinePick(problem, group) {
  const select = sheet.querySelector("select");
  const known = problem.methods.filter((m) => group.methods[m.key]?.cosines);
  const before = select.value || "craft";
  select.replaceChildren(...known.map((m) => html("option", { value: m.key }, m.label)));
  if (known.some((m) => m.key === before)) select.value = before;
  select.closest("label").hidden = !known.length;
}

function clientCurves(host, width, { problem, group, i }, label) {
  const series = problem.methods
    .filter((m) => group.methods[m.key] && !STATE.hidden.has(m.key))
    .map((m) => ({
      ...looks(m),
      x: group.methods[m.key].rounds,
      y: curveOf(group.methods[m.key], i),
    }))
    .filter((s) => s.y.some(finite));
  const points = Math.max(0, ...series.map((s) => s.x.length));
  if (width <= 620 && points > 1) legend(host, series.map((s) => [s.label, s.style]));
  const text = "Only the last evaluation of each client is stored: see the table.";
  if (series.length && points < 2) paragraph(host, "absent", text);
  else
    lineChart(host, width, {
      series,
      label,
      xTitle: "Round",
      yTitle: "Test accuracy",
      height: width > 620 ? 280 : 240,
    });
}

const MOST_LABELS = 16;
function clientLabels(host, width, { group, i }, label) {
  if (!group.counts) return paragraph(host, "absent", "No label counts were written.");
  const held = labelsOf(group, i).filter(([, n]) => n > 0);
  const total = samplesOf(group, i);
  const sorted = [...held].sort((a, b) => b[1] - a[1]);
  const rows = sorted.slice(0, MOST_LABELS).map(([name, n]) => ({
    label: name,
    parts: [{ value: n, style: "--c: var(--seq)" }],
    end: `${n} (${((100 * n) / total).toFixed(0)} %)`,
    tip: [{ name: "Samples", value: `${n} of ${total}` }],
  }));
  barChart(host, width, { rows, label, xTitle: "Training samples", rise: 22, whole: true });
  const more = sorted.length - rows.length;
  const rest = more > 0 ? ` The ${more} rarest are left out here; the CSV has all.` : "";
  const text = `${held.length} of ${group.labels.length} labels occur.${rest}`;
  paragraph(host, "note", text);
}

// One scale for all methods, so that switching between them compares.
function clientRange(group, i) {
  const all = Object.values(group.methods).flatMap((member) => cosinesOf(member, i)?.cells.flat() || []);
  return roundedRange(all);
}

function clientCosines(host, width, { problem, group, i }, label) {
  const key = sheet.querySelector("select").value;
  const found = key ? cosinesOf(group.methods[key], i) : null;
  if (found?.rounds.length) cosineMap(host, width, group, i, found, label);
  else if (found) paragraph(host, "absent", "It took part in no round that was written.");
  paragraph(host, "note", problem.charts.client.recorded);
}

function cosineMap(host, width, group, i, found, label) {
  const most = clientRange(group, i);
  cosineLegend(host, most);
  heatMap(host, width, {
    rows: found.layers,
    columns: found.rounds.map(String),
    cells: found.cells,
    fill: diverging(most),
    label,
    rowHeight: clamp(360 / found.layers.length, 9, 28),
    most: 60,
    xTitle: "Rounds in which it took part",
    yTitle: "Layer",
    tip: (r, c) => ({
      title: `${found.layers[r]}, round ${found.rounds[c]}`,
      rows: [{ name: "Cosine with the step", value: short(found.cells[r][c], 2) }],
    }),
  });
}

const CLIENT_CHARTS = {
  "client-accuracy": clientCurves,
  "client-labels": clientLabels,
  "client-cosines": clientCosines,
};

function stepClient(by) {
  const { problem, at, group, i } = findOpened();
  openClient(problem, at, (i + by + clientCount(group)) % clientCount(group));
}

sheet.querySelector("select").addEventListener("change", drawClient);
document.getElementById("client-before").addEventListener("click", () => stepClient(-1));
document.getElementById("client-after").addEventListener("click", () => stepClient(1));
document.getElementById("client-close").addEventListener("click", () => sheet.close());
sheet.addEventListener("click", (event) => {
  if (event.target === sheet) sheet.close(); // the backdrop
});
sheet.addEventListener("close", () => {
  if (printing) return;
  opened = null;
  hideTooltip();
  remember("");
});
addEventListener("hashchange", openFromAddress);
