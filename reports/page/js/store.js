// The data of the page: columns, one entry a case; strings once each. Details are inflated when a case is opened.

const data = JSON.parse(byId("data").textContent);
const OUTCOMES = data.outcomes; // what needs a person first
const RED = new Set(data.red);
const REDNESS = OUTCOMES.map((outcome) => RED.has(outcome));
const COUNT = data.count;
const LAWS = data.laws.map(([contract, name]) => ({
  contract,
  name,
  key: contract ? `${contract}/${name}` : name,
}));
const SUBJECTS = data.subjects;
const OPTIMIZERS = data.optimizers;
const column = data.columns;
const NONE = "(none)";

const outcomeOf = (index) => OUTCOMES[column.outcome[index]];
const subjectOf = (index) => SUBJECTS[column.subject[index]];
const lawOf = (index) => LAWS[column.law[index]];
const optimizerOf = (index) => OPTIMIZERS[column.optimizer[index]];
const messageOf = (index) => data.strings[column.message[index]];
const workerOf = (index) => data.strings[column.worker[index]];
const worldOf = (index) => data.strings[column.world[index]];
const secondsOf = (index) => column.seconds[index] / 1000;
const isRed = (index) => REDNESS[column.outcome[index]];
const words = (subject) => subject || "tests without a subject";

/** What tells a case from the others of its law: the text in its brackets, or the test's own name. */
const pointOf = (index) => data.strings[column.point[index]];

/** The node id, which is kept in the parts that cases share. */
function idOf(index) {
  const head = data.strings[column.head[index]];
  if (column.tail[index] < 0) return head + pointOf(index);
  return `${head}${lawOf(index).key}[${pointOf(index)}]${data.strings[column.tail[index]]}`;
}

/** The case as it is called in a list. */
function nameOf(index) {
  return lawOf(index).contract ? `${lawOf(index).name}[${pointOf(index)}]` : pointOf(index);
}

let places = null;
const keys = new Map();

/** A test that ran more than once has one id; the address tells its runs apart. */
function place() {
  places = new Map();
  for (let index = 0; index < COUNT; index++) {
    const id = idOf(index);
    let key = id;
    for (let again = 2; places.has(key); again++) key = `${id} #${again}`;
    places.set(key, index);
    if (key !== id) keys.set(index, key);
  }
}

/** What a case is called in the address. */
function keyOf(index) {
  if (places === null) place();
  return keys.get(index) || idOf(index);
}

/** The case that the address names, or -1. */
function indexOf(key) {
  if (places === null) place();
  return places.has(key) ? places.get(key) : -1;
}

let hay = null;

/** What the text filter looks in. */
function haystack() {
  if (hay === null) {
    hay = new Array(COUNT);
    for (let index = 0; index < COUNT; index++) {
      hay[index] = `${idOf(index)}\n${subjectOf(index)}\n${optimizerOf(index)}\n${messageOf(index)}`.toLowerCase();
    }
  }
  return hay;
}

// --- details -----------------------------------------------------------------------------------------

let chunks = null;
const opened = new Map();

async function inflate(text) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser cannot inflate the details (it lacks DecompressionStream); a newer one can");
  }
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** All that the run file says of one case, beyond the columns. */
async function detailOf(index) {
  if (chunks === null) chunks = JSON.parse(byId("details").textContent);
  const which = Math.floor(index / data.chunk);
  if (!opened.has(which)) opened.set(which, inflate(chunks[which]));
  return (await opened.get(which))[index % data.chunk];
}

/** How many of these cases ended how; in the order of OUTCOMES. */
function tally(indices) {
  const counts = new Array(OUTCOMES.length).fill(0);
  for (const index of indices) counts[column.outcome[index]]++;
  return counts;
}

/** Group indices by what a function says of each; keys in the order in which they come. */
function grouped(indices, key) {
  const groups = new Map();
  for (const index of indices) {
    const of = key(index);
    const group = groups.get(of);
    if (group) group.push(index);
    else groups.set(of, [index]);
  }
  return groups;
}

/** What needs a person first; else as collected. */
const worstFirst = (one, other) => column.outcome[one] - column.outcome[other] || one - other;

/** The case to open of several: the worst, and of those the first. */
function worstOf(indices) {
  let worst = indices[0];
  for (const index of indices) if (worstFirst(index, worst) < 0) worst = index;
  return worst;
}
