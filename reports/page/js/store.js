// The data of the page: columns with one value a case, and each text once. Details are inflated on demand.

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

/** Return the text of a case in a column; empty if it has none. */
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

/** Return the text that distinguishes a case within its law: the text in its brackets, or the test's own name. */
const pointOf = (index) => textIn("case", index);

/** Return the node id. The data holds it in parts that cases share. */
function idOf(index) {
  const head = textIn("head", index);
  if (column.tail[index] < 0) return head + pointOf(index);
  return `${head}${lawOf(index).key}[${pointOf(index)}]${textIn("tail", index)}`;
}

/** The shortest end of the path of each file of tests that no other file has. */
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

/** Return the text before a case's name: its contract; or a test's file, if there are several. */
function groupOf(index) {
  const law = lawOf(index);
  if (law.contract) return `${law.contract}/`;
  return FILES.size > 1 ? `${FILES.get(law.name)}::` : "";
}

/** Return the case's name within its contract, or within its file. */
const titleOf = (index) => (lawOf(index).contract ? `${lawOf(index).name}[${pointOf(index)}]` : pointOf(index));

/** Return the case's name in a list; tests of the same name in two files have two names. */
const nameOf = (index) => (lawOf(index).contract ? "" : groupOf(index)) + titleOf(index);

/** Return a case's subject, or the file of a test without one. */
const ownerOf = (index) => subjectOf(index) || (lawOf(index).contract ? subjectName("") : lawOf(index).name);

let indexByKey = null;
const keys = new Map();

/** Number the runs of a test that ran more than once: the address distinguishes them. */
function makeKeys() {
  indexByKey = new Map();
  for (let index = 0; index < COUNT; index++) {
    const id = idOf(index);
    let key = id;
    for (let again = 2; indexByKey.has(key); again++) key = `${id} #${again}`;
    indexByKey.set(key, index);
    if (key !== id) keys.set(index, key);
  }
}

/** Return the case's name in the address. */
function keyOf(index) {
  if (indexByKey === null) makeKeys();
  return keys.get(index) || idOf(index);
}

/** Return the case that the address names, or -1. */
function indexOf(key) {
  if (indexByKey === null) makeKeys();
  return indexByKey.has(key) ? indexByKey.get(key) : -1;
}

let hay = null;

/** Return the texts that the filter by words searches. */
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
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** Return all data of one case that the columns do not have. */
async function detailOf(index) {
  if (chunks === null) chunks = JSON.parse(byId("details").textContent);
  const which = Math.floor(index / data.chunk);
  if (!opened.has(which)) opened.set(which, inflate(chunks[which]));
  return (await opened.get(which))[index % data.chunk];
}

/** Count these cases by outcome, in the order of OUTCOMES. */
function tally(indices) {
  const counts = new Array(OUTCOMES.length).fill(0);
  for (const index of indices) counts[column.outcome[index]]++;
  return counts;
}

/** Group indices by the result of a function, in the order of first appearance. */
function grouped(indices, key) {
  const groups = new Map();
  for (const index of indices) {
    const name = key(index);
    const group = groups.get(name);
    if (group) group.push(index);
    else groups.set(name, [index]);
  }
  return groups;
}

/** Compare two cases: the worst outcome first, then in the order of collection. */
const worstFirst = (left, right) => column.outcome[left] - column.outcome[right] || left - right;

/** Return the first of the worst cases. */
function worstOf(indices) {
  let worst = indices[0];
  for (const index of indices) if (worstFirst(index, worst) < 0) worst = index;
  return worst;
}
