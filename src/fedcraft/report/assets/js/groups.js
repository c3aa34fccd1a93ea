// Clients by group: the runs of one seed over one split. Packed numbers are read when first needed.
const KINDS = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array };
const UNPACKED = new WeakMap();

function unpack(packed) {
  if (!UNPACKED.has(packed)) {
    const bytes = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
    UNPACKED.set(packed, new KINDS[packed.bytes](bytes.buffer));
  }
  return UNPACKED.get(packed);
}

// The largest number stands for a missing one.
const numberAt = (packed, i) => {
  const value = unpack(packed)[i];
  return value === undefined || value === 2 ** (8 * packed.bytes) - 1 ? null : value;
};
const shareAt = (packed, i) => {
  const value = numberAt(packed, i);
  return value === null ? null : value / 10000;
};
const sharesOf = (packed) => [...unpack(packed)].map((_, i) => shareAt(packed, i));

const groupsOf = (problem) => (problem.charts.client || { groups: [] }).groups;
const groupOfSeed = (problem, seed) =>
  Math.max(0, groupsOf(problem).findIndex((g) => String(g.seed) === String(seed)));
const clientCount = (group) => unpack(group.clients).length;
const clientId = (group, i) => numberAt(group.clients, i);
const clientAt = (group, id) => unpack(group.clients).indexOf(id);
const clientName = (group, i) => group.names[i] || `Client ${clientId(group, i)}`;

function curveOf(member, i) {
  const width = member.rounds.length;
  return member.rounds.map((_, r) => shareAt(member.accuracy, i * width + r));
}

// The accuracy at the last evaluation that is known, for every client.
function finals(group, member) {
  return Array.from({ length: clientCount(group) }, (_, i) => {
    const curve = curveOf(member, i);
    const last = curve.findLastIndex(finite);
    return last < 0 ? null : curve[last];
  });
}

// 1 for the most accurate client; equal accuracies share a rank.
function rankOf(values, i) {
  if (!finite(values[i])) return null;
  return { rank: 1 + values.filter((v) => v > values[i]).length, of: values.filter(finite).length };
}

const samplesOf = (group, i) =>
  group.counts ? labelsOf(group, i).reduce((total, [, n]) => total + n, 0) : null;
const labelsOf = (group, i) =>
  group.labels.map((label, k) => [label, unpack(group.counts)[i * group.labels.length + k]]);

// What was written of a client's updates: its rounds, and a row of cosines for each layer.
function cosinesOf(member, i) {
  if (!member.cosines) return null;
  const { layers, rounds, clients, values } = member.cosines;
  const own = [...unpack(clients).keys()].filter((k) => unpack(clients)[k] === i);
  const cosine = (value) => (value === null ? null : (value - 100) / 100);
  return {
    layers,
    rounds: own.map((k) => numberAt(rounds, k)),
    cells: layers.map((_, q) => own.map((k) => cosine(numberAt(values, k * layers.length + q)))),
  };
}

// How often a client took part where cosines were written, and how often the step went against it.
function conflictsOf(member, i) {
  const found = cosinesOf(member, i);
  if (!found) return null;
  return { against: found.cells.at(-1).filter((v) => finite(v) && v < 0).length, of: found.rounds.length };
}
