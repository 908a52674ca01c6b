// The data of the page: columns, one entry a case; strings once each. Details are inflated when a case is opened.

const data = JSON.parse(byId("data").textContent);
const OUTCOMES = data.outcomes; // what needs a person first
const RED = new Set(data.red);
const REDNESS = OUTCOMES.map((outcome) => RED.has(outcome));
const COUNT = data.count;
const LAWS = data.tables.law.map(([contract, name]) => ({
  contract,
  name,
  key: contract ? `${contract}/${name}` : name,
}));
const column = data.values;
const ALL = Array.from({ length: COUNT }, (_, index) => index);
const NONE = "(none)";

/** The text that a case has in a column, or none. */
const textIn = (name, index) => data.tables[name][column[name][index]] ?? "";
const outcomeOf = (index) => OUTCOMES[column.outcome[index]];
const subjectOf = (index) => textIn("subject", index);
const lawOf = (index) => LAWS[column.law[index]];
const optimizerOf = (index) => textIn("optimizer", index);
const messageOf = (index) => textIn("message", index);
const workerOf = (index) => textIn("worker", index);
const worldOf = (index) => textIn("world", index);
const secondsOf = (index) => column.time[index] / 1000;
const isRed = (index) => REDNESS[column.outcome[index]];

/** A suite of plain tests: nothing on this page belongs to a subject. */
const PLAIN = COUNT > 0 && data.tables.subject.every((subject) => subject === "");
const subjectName = (subject) => subject || (PLAIN ? "tests" : "tests without a subject");
const CASE = PLAIN ? "test" : "case"; // what one entry of a list is called

/** Returns the text that distinguishes a case within its law: the text in its brackets, or the test's own name. */
const pointOf = (index) => textIn("case", index);

/** The node id, which is kept in the parts that cases share. */
function idOf(index) {
  const head = textIn("head", index);
  if (column.tail[index] < 0) return head + pointOf(index);
  return `${head}${lawOf(index).key}[${pointOf(index)}]${textIn("tail", index)}`;
}

/** Files of tests by the shortest end of their path that no other of them has. */
const FILES = shortPaths(LAWS.filter((law) => !law.contract).map((law) => law.name));

function shortPaths(paths) {
  const short = new Map();
  for (const path of paths) {
    const parts = path.split("/");
    let from = parts.length - 1;
    const end = () => `/${parts.slice(from).join("/")}`;
    while (from > 0 && paths.some((other) => other !== path && `/${other}`.endsWith(end()))) from--;
    short.set(path, parts.slice(from).join("/"));
  }
  return short;
}

/** What goes before a case's name: its contract, or a test's file where there are several. */
function groupOf(index) {
  const law = lawOf(index);
  if (law.contract) return `${law.contract}/`;
  return FILES.size > 1 ? `${FILES.get(law.name)}::` : "";
}

/** The case as it is called among those of its contract, or of its file. */
const titleOf = (index) => (lawOf(index).contract ? `${lawOf(index).name}[${pointOf(index)}]` : pointOf(index));

/** The case as it is called in a list; tests of the same name in two files have two names. */
const nameOf = (index) => (lawOf(index).contract ? "" : groupOf(index)) + titleOf(index);

/** Whose a case is: its subject, or the file of a test that has none. */
const ownerOf = (index) => subjectOf(index) || (lawOf(index).contract ? subjectName("") : lawOf(index).name);

let places = null;
const keys = new Map();

/** A test that ran more than once has one id; the address distinguishes its runs. */
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
    const searched = COLUMNS.filter((by) => by.searched);
    hay = new Array(COUNT);
    for (let index = 0; index < COUNT; index++) {
      hay[index] = [idOf(index), ...searched.map((by) => textIn(by.name, index))].join("\n").toLowerCase();
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
